"""What a love plot shows, against loops; what balance costs; the plot of letters."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import counterpoise as cp
from counterpoise.balance.covariate_balance import (
    Imbalance,
    feature_balance,
    imbalances,
    log_balance,
    standardised_difference,
)
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.estimators import balance_frontier
from counterpoise.cli import console
from counterpoise.cli.console import love_lines
from counterpoise.cli.main import main
from counterpoise.errors import ConfigError, DataError


def test_log_balance_equals_that_of_all_pairs_enumerated() -> None:
    log = cp.FeedbackLog.from_arrays(list("aaabbc"), list("xyzxyx"), [1, 0, 1, 1, 0, 1])
    weights = np.array([1.0, 2, 3, 1, 1, 4])
    activity, popularity = log_balance(log, weights)
    counts = {"a": 3, "b": 2, "c": 1}
    all_pairs = [np.log1p(counts[user]) for user in "abc" for _ in "xyz"]
    logged = [np.log1p(counts[user]) for user in "aaabbc"]
    expected = (np.average(logged, weights=weights) - np.mean(all_pairs)) / np.std(all_pairs)
    assert activity.name == "user activity"
    assert activity.smd_after == pytest.approx(expected)
    assert activity.smd_before == pytest.approx((np.mean(logged) - np.mean(all_pairs)) / np.std(all_pairs))
    assert popularity.name == "item popularity"


def test_constant_features_are_left_out() -> None:
    log = cp.FeedbackLog.from_arrays([1, 1, 2, 2], [1, 2, 1, 2], [1, 0, 1, 0], user_features=[[0.0, 5.0], [1.0, 5.0]])
    assert [row.name for row in log_balance(log)] == ["user feature 1"]


def test_imbalances_are_in_standard_deviations_largest_first() -> None:
    rng = np.random.default_rng(0)
    balancer = cp.MomentBalancer().fit(rng.normal(0.5, 1, (200, 3)), rng.normal(size=(300, 3)))
    rows = imbalances(balancer)
    assert [row.before for row in rows] == sorted(balancer.balance_table()["smd_before"].abs(), reverse=True)
    assert imbalances(balancer.balance_table()) == imbalances(balancer.balance_table().to_pandas()) == rows
    functions = imbalances(balancer.result_)
    result = balancer.result_
    assert max(row.before for row in functions) == pytest.approx(max(abs(result.imbalance_before) / result.scale))
    assert max(row.after for row in functions) < 1e-6


def test_feature_balance_equals_sums_over_rows() -> None:
    rng = np.random.default_rng(2)
    observed, population = rng.integers(0, 6, 40).astype(float), rng.integers(0, 8, 60).astype(float)
    before, after, others = rng.random(40), rng.random(40), rng.random(60)
    row = feature_balance("age", observed, before, after, population, others)

    def moments(values, weights):
        mean = sum(w * x for w, x in zip(weights, values, strict=True)) / sum(weights)
        square = sum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True)) / sum(weights)
        return mean, square**0.5

    def below(values, weights, point):
        return sum(w for w, x in zip(weights, values, strict=True) if x <= point) / sum(weights)

    mean, deviation = moments(population, others)
    assert (row.name, row.population_mean, row.population_sd) == ("age", pytest.approx(mean), pytest.approx(deviation))
    for weights, found in (
        (before, (row.mean_before, row.smd_before, row.ks_before, row.sd_ratio_before)),
        (after, (row.mean_after, row.smd_after, row.ks_after, row.sd_ratio_after)),
    ):
        own, spread = moments(observed, weights)
        largest = max(abs(below(observed, weights, p) - below(population, others, p)) for p in range(8))
        assert found == pytest.approx((own, (own - mean) / deviation, largest, spread / deviation))


def test_feature_constant_in_the_population_has_no_standard_deviations() -> None:
    ones, same = np.ones(3), np.full(3, 0.1)
    row = feature_balance("c", np.array([0.1, 0.1, 0.4]), np.array([1.0, 1.0, 0.0]), ones, same, ones / 7)
    assert (row.population_sd, row.smd_before, row.smd_after) == (0.0, 0.0, None)
    assert (row.sd_ratio_before, row.sd_ratio_after) == (None, None)
    assert standardised_difference(-3.0, 3.0, 0.0) is None
    assert standardised_difference(0.0, 0.0, 0.0) == 0.0
    assert standardised_difference(2.0, 3.0, 0.5) == -2.0


def test_imbalances_of_a_result_are_in_its_scale_with_names() -> None:
    H = np.random.default_rng(3).normal(size=(80, 3))
    result = cp.entropy_balance(H, [0.2, -0.1, 0.0], strength=0.01, scale=[1.0, 2.0, 4.0])
    rows = {row.name: row for row in imbalances(result)}
    assert sorted(rows) == ["h1", "h2", "h3"]
    for column, scale in enumerate((1.0, 2.0, 4.0)):
        row = rows[f"h{column + 1}"]
        assert row.before == pytest.approx(abs(result.imbalance_before[column]) / scale)
        assert row.after == pytest.approx(abs(result.imbalance[column]) / scale)
    assert {row.name for row in imbalances(result, names=["a", "b", "c"])} == {"a", "b", "c"}
    with pytest.raises(DataError, match="`names` must have 3 names, one for each row, got 2"):
        imbalances(result, names=["a", "b"])


def test_frontier_equals_balancers_fitted_at_each_tolerance() -> None:
    rng = np.random.default_rng(1)
    observed, population = rng.normal(0.5, 1, (150, 2)), rng.normal(size=(200, 2))
    fitted = cp.MomentBalancer(2).fit(observed, population)
    points = balance_frontier(fitted, [0.2, 0.0])
    for point, tolerance in zip(points, (0.0, 0.2), strict=True):
        again = cp.MomentBalancer(2, tolerance=tolerance).fit(observed, population)
        sizes = abs(again.result_.imbalance) / again.result_.scale
        assert point.effective_sample_size == pytest.approx(effective_sample_size(again.weights_), rel=1e-6)
        assert point.max_imbalance == pytest.approx(sizes.max(), abs=1e-6)
        assert point.rms_imbalance == pytest.approx((sizes**2).mean() ** 0.5, abs=1e-6)
    assert points[0].effective_sample_size < points[1].effective_sample_size
    with pytest.raises(ConfigError, match="no tolerance"):
        balance_frontier(cp.KernelBalancer(5, "worst_case", random_state=0).fit(observed, population))
    with pytest.raises(ConfigError, match="fitted KernelBalancer"):
        balance_frontier(points)


ROWS = [Imbalance("age", 1.0, 0.0), Imbalance("income", 0.5, 0.5), Imbalance("height", 0.25, 0.3)]


def test_text_plot_places_marks_by_size() -> None:
    title, *lines = love_lines(ROWS, "Sample", width=50, fancy=False)
    assert title == "Sample, in SD: o before, x after"
    age, income, height = (line[8:-12].rstrip() for line in lines)
    assert age[0] == "x"
    assert set(age[1:-1]) == {"-"}
    assert age[-1] == "o"
    assert income.strip() == "o"  # not moved
    assert abs(income.index("o") / age.index("o") - 0.5) < 0.05
    assert height.index("o") < height.index("x")
    assert lines[0].endswith("1.00 -> 0.00")


def test_text_plot_keeps_to_its_width() -> None:
    wordy = [Imbalance("a feature with a very long name", 0.3, 0.1), *ROWS]
    for width in (20, 30, 40, 72, 100):
        for fancy in (True, False):
            lines = love_lines(wordy, "Sample", width, fancy=fancy)
            assert max(map(len, lines)) <= max(width, 24), (width, lines)
            assert fancy or all(line.isascii() for line in lines)
    assert love_lines(ROWS, width=10, fancy=False)[-1].split() == ["height", "0.25", "->", "0.30"]
    assert love_lines([]) == []


def test_text_plot_of_equal_weights_and_many_rows() -> None:
    rows = [Imbalance(f"f{j}", 1 / (1 + j), 1 / (1 + j)) for j in range(12)]
    title, *lines, more = love_lines(rows, "Log", fancy=False)
    assert title == "Log, in SD"
    assert len(lines) == 8
    assert more == "and 4 more with smaller imbalance"
    assert not any("->" in line or "x" in line for line in lines)


def test_fit_prints_the_balance_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"u{n % 7},i{n * n % 11},{n % 2}\n" for n in range(60)]
    (tmp_path / "log.csv").write_text("user_id,item_id,rating\n" + "".join(dict.fromkeys(rows)))
    words = ["fit", str(tmp_path / "log.csv"), "--duplicates", "last", "--epochs", "2", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "How the log differs from all pairs, in SD" in text
    assert "item popularity" in text
    assert main([*words, "--json"]) == 0
    assert "How the log differs" not in capsys.readouterr().out
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_balance_command_prints_features_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, shift in (("sample.csv", 1), ("population.csv", 0)):
        lines = [f"{(n * 7 % 11) / 3 + shift},{(n * 5 % 13) / 4}\n" for n in range(90)]
        (tmp_path / name).write_text("age,income\n" + "".join(lines))
    files = [str(tmp_path / name) for name in ("sample.csv", "population.csv", "out.csv")]
    words = ["balance", files[0], files[1], "--moments", "1", "--out", files[2]]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "Observed rows against the population, in SD: o before, x after" in text
    assert "x---" in text
    assert main([*words, "--json"]) == 0
    assert "before, x after" not in capsys.readouterr().out


def test_terminal_gets_circles_and_its_own_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    width, fancy = console.canvas()
    console.show_picture(love_lines(ROWS, "Sample", width, fancy=fancy))
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert width == 50
    assert fancy
    assert "●" in lines[1]
    assert max(map(len, lines)) <= 50


def test_side_features_have_the_names_of_their_columns() -> None:
    rows = {"user_id": [1, 1, 2, 2, 3], "item_id": [1, 2, 1, 3, 2]}
    users = {"user_id": [1, 2, 3], "job": ["cook", "smith", "cook"]}
    log = cp.FeedbackLog.from_arrays(rows["user_id"], rows["item_id"], [1, 0, 1, 0, 1])
    items = pl.DataFrame({"item_id": [1, 2, 3], "price": [1.0, None, 3.0]})
    log = log.with_side_tables(pl.DataFrame(users), items)
    names = [row.name for row in log_balance(log)]
    assert names == ["user activity", "user job=cook", "item popularity", "item price", "item price (missing)"]
