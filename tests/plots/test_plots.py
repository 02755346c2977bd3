"""Figures show the values of their objects, and open no window."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import counterpoise as cp
from counterpoise import plots
from counterpoise.balance.estimators import balance_frontier
from counterpoise.bench import bias
from counterpoise.bench.sweep import Point
from counterpoise.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def balancer() -> cp.KernelBalancer:
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(600, 2))
    observed = drawn[rng.random(600) < 1 / (1 + np.exp(-drawn[:, 0]))]
    return cp.KernelBalancer(12, strength=0.5, random_state=0).fit(observed, rng.normal(size=(400, 2)))


@pytest.fixture(scope="module")
def data() -> cp.Dataset:
    return cp.simulate(n_users=40, n_items=30, density=0.2, seed=0).dataset


@pytest.fixture(scope="module")
def model(data: cp.Dataset) -> cp.DebiasedRecommender:
    return cp.make("ips", epochs=8, seed=0).fit(data.train, probe=data.probe)


def names_on(figure: plots.Picture) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_love_plot_orders_features_by_imbalance_before(balancer: cp.KernelBalancer) -> None:
    axes = plots.love_plot(balancer).axes[0]
    table = sorted(balancer.feature_balances(), key=lambda row: abs(row.smd_before))
    before, after = (np.asarray(dots.get_offsets()) for dots in axes.collections[1:3])
    assert before[:, 0] == pytest.approx([abs(row.smd_before) for row in table])
    assert after[:, 0] == pytest.approx([abs(row.smd_after) for row in table])
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.name for row in table]


def test_love_plot_of_a_result_shows_functions(balancer: cp.KernelBalancer) -> None:
    assert len(names_on(plots.love_plot(balancer.result_))) == 12
    named = plots.love_plot(balancer.result_, names=[f"f{j}" for j in range(12)], max_rows=5)
    assert len(names_on(named)) == 5
    assert named.axes[0].get_title("left") == "the 5 largest of 12"
    with pytest.raises(DataError, match="12 names"):
        plots.love_plot(balancer.result_, names=["one"])


def test_love_plot_of_a_recommender_needs_its_log(model: cp.DebiasedRecommender, data: cp.Dataset) -> None:
    assert {"user activity", "item popularity"} <= set(names_on(plots.love_plot(model, data.train)))
    with pytest.raises(ConfigError, match="`log` must be given"):
        plots.love_plot(model)
    with pytest.raises(DataError, match="rows that the weights belong to"):
        plots.love_plot(model, data.test)
    with pytest.raises(ConfigError, match="got int"):
        plots.love_plot(3)


def test_weight_histogram_counts_rows_and_effective_sample_size(model: cp.DebiasedRecommender) -> None:
    axes = plots.weight_histogram(model).axes[0]
    assert sum(bar.get_height() for bar in axes.patches) == len(model.ratio_)
    assert f"{len(model.ratio_):,} rows, effective sample size" in axes.get_title("left")
    assert plots.weight_histogram(np.ones(7)).axes[0].get_title("left") == "7 rows, effective sample size 7"
    assert "2 with weight 0" in plots.weight_histogram([0.0, 0.0, 1.0]).axes[0].get_title("left")
    with pytest.raises(ConfigError, match="must have weights"):
        plots.weight_histogram("heavy")


def test_dual_values_mark_relaxed_functions(balancer: cp.KernelBalancer) -> None:
    result = balancer.result_
    axes = plots.dual_values(balancer).axes[0]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx(sorted(abs(result.dual) * result.scale))
    assert len({bar.get_facecolor() for bar in axes.patches}) == 2  # some were relaxed at this strength
    assert axes.get_title("left") == f"{result.relaxed.sum()} of 12 functions relaxed"
    with pytest.raises(ConfigError, match="BalanceResult"):
        plots.dual_values([1.0])


def test_frontier_takes_a_balancer_or_points(balancer: cp.KernelBalancer) -> None:
    points = balance_frontier(balancer, [0.0, 0.1])
    for source in (plots.balance_frontier(balancer, [0.1, 0.0]), plots.balance_frontier(points)):
        line = source.axes[0].lines[0]
        assert list(line.get_ydata()) == pytest.approx([point.effective_sample_size for point in points])
        assert list(line.get_xdata()) == pytest.approx([point.rms_imbalance for point in points])


def test_balance_path_has_a_line_for_each_fold_and_marks_the_chosen_points(data: cp.Dataset) -> None:
    balanced = cp.make("skb-ips", epochs=5, seed=0).fit(data.train)
    path, axes = balanced.facts_["weights"]["path"], plots.balance_path(balanced).axes[0]
    for line, points in zip(axes.lines, path["points"], strict=False):
        assert list(line.get_xdata()) == pytest.approx([point["imbalance"] for point in points])
        assert list(line.get_ydata()) == pytest.approx([100 * point["kept"] for point in points])
    assert len(axes.lines) == len(path["points"]) + 1
    assert list(axes.lines[-1].get_ydata()) == pytest.approx([100 * path["kept"]] * 2)
    chosen = np.asarray(axes.collections[0].get_offsets())
    assert len(chosen) == len(path["points"])
    assert (chosen[:, 1] >= 100 * path["kept"]).all()
    for other in (cp.make("mf", epochs=1).fit(data.train), [1.0]):
        with pytest.raises(ConfigError, match='strength="auto"'):
            plots.balance_path(other)


def test_learning_curves_mark_the_best_epoch(data: cp.Dataset, model: cp.DebiasedRecommender) -> None:
    stopped = cp.make("mf", epochs=6, patience=6, seed=0).fit(data.train)
    axes = plots.learning_curves({"mf": stopped, "ips": model.history_}).axes[0]
    assert [len(line.get_xdata()) for line in axes.lines] == [6, 6, 1, 8]
    assert axes.lines[2].get_xdata()[0] == stopped.history_.best_epoch
    with pytest.raises(ConfigError, match="histories, got str"):
        plots.learning_curves("mf")


def test_calibration_takes_models_or_scores(data: cp.Dataset, model: cp.DebiasedRecommender) -> None:
    figure = plots.calibration({"model": model, "half": np.full(len(data.test), 0.5)}, data.test, bins=4)
    first, second = (container.lines[0] for container in figure.axes[0].containers)
    assert len(first.get_xdata()) == 4
    assert list(second.get_xdata()) == [0.5]
    assert second.get_ydata()[0] == pytest.approx(data.test.labels.mean())


def test_sweep_has_a_panel_per_metric() -> None:
    points = [
        Point("coat", "a", "A", "ips", value, metric, 2, 0.7, 0.1) for metric in ("auc", "f1") for value in (1, 2)
    ]
    points.append(Point("coat", "mf", "MF", "ips", None, "auc", 2, 0.6, None))
    figure = plots.sweep(points, "n", titles={("coat", "auc"): "AUC"})
    assert [axes.get_ylabel() for axes in figure.axes] == ["AUC", "f1"]
    assert [len(axes.lines) for axes in figure.axes] == [2, 1]


def test_sweep_has_ips_panels_left_of_dr_panels() -> None:
    points = [
        Point(dataset, f"a-{family}", f"A{family}", family, value, metric, 2, 0.7, 0.1)
        for dataset in ("coat", "music-like")
        for metric in ("auc", "f1")
        for family in ("dr", "ips")
        for value in (1, 30)
    ]
    points.append(Point("coat", "b-dr", "Bdr", "dr", None, "auc", 2, 0.6, None))
    figure = plots.sweep(points, "n")
    row = [("IPS", "auc"), ("IPS", "f1"), ("DR", "auc"), ("DR", "f1")]
    expected = [(f"{dataset}, {family}", metric) for dataset in ("coat", "music-like") for family, metric in row]
    assert [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes] == expected
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 2, 1, 1, 1, 1, 1]
    assert list(figure.axes[0].get_xticks()) == [1, 30]
    assert [axes.get_legend() is not None for axes in figure.axes] == [False] * 4 + [True] * 4


def test_risk_estimates_are_means_over_draws() -> None:
    rows = [
        bias.Row("one", name, repeat, 1.0, deviation)
        for name, deviation in (("ips", 0.2), ("dr", -3.0))
        for repeat in (0, 1)
    ]
    axes = plots.risk_estimates([*rows, bias.Row("one", "ips", 2, 1.0, 0.5)]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ips", "dr"]
    assert list(axes.containers[0].lines[0].get_xdata()) == pytest.approx([0.3, -3.0])
    assert axes.get_xscale() == "symlog"
    with pytest.raises(ConfigError, match="must not be empty"):
        plots.risk_estimates([])


def test_saved_figures_are_deterministic_with_text_as_text(balancer: cp.KernelBalancer, tmp_path: Path) -> None:
    for kind in ("svg", "pdf", "png"):
        written = []
        for name in ("a", "b"):
            plots.save(plots.love_plot(balancer), tmp_path / f"{name}.{kind}")
            written.append((tmp_path / f"{name}.{kind}").read_bytes())
        assert written[0] == written[1], kind
    assert "imbalance, in standard deviations</text>" in (tmp_path / "a.svg").read_text()
    plots.love_plot(balancer).savefig(tmp_path / "own.svg")
    assert "</text>" in (tmp_path / "own.svg").read_text()
    assert plots.love_plot(balancer)._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    with pytest.raises(ConfigError, match="gif"):
        plots.save(plots.love_plot(balancer), tmp_path / "a.gif")


def test_plots_load_lazily_without_pyplot() -> None:
    program = (
        "import sys, counterpoise as cp; assert 'matplotlib' not in sys.modules;"
        "cp.plots.weight_histogram([1, 2, 3.0]);"
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]
