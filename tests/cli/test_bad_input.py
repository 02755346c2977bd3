"""Degenerate data, through Python and the command line: a result, or one line that says what to do."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_line import one_line, run

import counterpoise as cp
from counterpoise import DataError, FeedbackLog, Moments, balance_samples, evaluate, make
from counterpoise.data.reading import read_log, read_logs

METHODS = ("mf", "counterpoise", "skb-dr", "ips", "dr-jl")
Rows = list[tuple[str, str, Any]]
USERS, ITEMS = [f"u{number}" for number in range(8)], [f"i{number}" for number in range(7)]
LONG = "x" * 10_000
CASED = [
    "ann",
    "Ann",
    "ANN",
    "caf\u00e9",
    "cafe\u0301",
    "\ufb01",
    "fi",
]  # the last four: composed or not, ligature or not
ANGSTROMS = ["\u212b", "\u00c5", "A\u030a", "x", "X"]


def some(users: list[str], items: list[str], count: int, label: Any = None, seed: int = 0) -> Rows:
    """Random rows, each pair once."""
    rng, pairs = np.random.default_rng(seed), list(product(users, items))
    drawn = [pairs[place] for place in rng.permutation(len(pairs))[:count]]
    return [(user, item, int(rng.integers(2)) if label is None else label) for user, item in drawn]


def case(train: Rows, test: Rows | None = None, probe: Rows | None = None) -> dict[str, Rows]:
    return {name: rows for name, rows in (("train", train), ("test", test), ("probe", probe)) if rows is not None}


LOG = some(USERS, ITEMS, 30)
CASES = {
    "one user": case(some(["u"], ITEMS, 4), some(["u"], ITEMS, 7, seed=1)),
    "one item": case(some(USERS, ["i"], 5), some(USERS, ["i"], 8, seed=1)),
    "one pair": case([("u", "i", 1)]),
    "all labels 1": case(some(USERS, ITEMS, 30, 1), some(USERS, ITEMS, 50, 1, seed=1)),
    "all labels 0": case(some(USERS, ITEMS, 30, 0), some(USERS, ITEMS, 50, 0, seed=1)),
    "one rating a user": case(
        [(user, ITEMS[n % 5], n % 2) for n, user in enumerate(USERS)], some(USERS, ITEMS, 40, seed=1)
    ),
    "an item nobody rated": case(LOG, some(USERS, [*ITEMS, "new"], 50, seed=1)),
    "ids of another case or form": case(some(CASED, ANGSTROMS, 25), some(CASED, ANGSTROMS, 30, seed=1)),
    "ids of 10 kB": case(
        some([LONG + user for user in USERS], [LONG + item for item in ITEMS], 30),
        some([LONG + user for user in USERS], [LONG + item for item in ITEMS], 50, seed=1),
    ),
    "ratings beyond float32": case(
        [(user, item, ("-1e300", "1e300")[label]) for user, item, label in LOG],
        [(user, item, ("-1e308", "1e39")[label]) for user, item, label in some(USERS, ITEMS, 50, seed=1)],
    ),
    "a probe that contradicts the log": case(
        LOG, some(USERS, ITEMS, 50, seed=1), [(user, item, 1 - label) for user, item, label in LOG[:15]]
    ),
    "a test without positives": case(LOG, some(USERS, ITEMS, 50, 0, seed=1)),
}
REFUSED = {  # what cannot be learned from, and the advice of its error
    ("one user", "ips"): "such as 'propensity'",
    ("one user", "dr-jl"): "such as 'propensity'",
    ("all labels 0", "counterpoise"): "another method",
    **{("all labels 0", method): "such as weights='propensity'" for method in ("ips", "dr-jl")},
    **{(name, method): "Choose a method for clicks" for name in ("one pair", "all labels 1") for method in METHODS},
}


def written(folder: Path, files: dict[str, Rows]) -> Path:
    for name, rows in files.items():
        text = "".join(f"{user},{item},{rating}\n" for user, item, rating in rows)
        (folder / f"{name}.csv").write_text(f"user_id,item_id,rating\n{text}", encoding="utf-8")
    return folder


def strict(text: str) -> Any:
    """JSON as its standard has it: NaN and Infinity are no numbers."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CASES)
def test_every_method_fits_or_explains_its_error(name: str, method: str, tmp_path: Path) -> None:
    logs = read_logs({part: tmp_path / f"{part}.csv" for part in written_parts(tmp_path, name)}, threshold=1)
    model = make(method, epochs=4, dim=3)
    probe = (
        logs.get("probe")
        if "probe" in logs or "test" not in logs
        else logs["test"].take(range(0, len(logs["test"]), 9))
    )
    if (name, method) in REFUSED and (probe is None or "label" in name):
        with pytest.raises(cp.CounterpoiseError, match=REFUSED[name, method]):
            model.fit(logs["train"], probe)
        return
    model.fit(logs["train"], probe)
    best = model.recommend(k=3)
    left = logs["train"].shape[1] - np.bincount(logs["train"].users, minlength=logs["train"].shape[0])
    assert len(best) == np.minimum(left, 3).sum()
    assert best["score"].is_between(0, 1).all()
    if "test" in logs:
        found = evaluate(model, logs["test"], k=3, protocol="paper")
        assert 0 <= found.mse <= 1
        assert (found.auc is None or np.isnan(found.auc)) == (name in ("all labels 0", "a test without positives"))


def written_parts(folder: Path, name: str) -> list[str]:
    written(folder, CASES[name])
    return list(CASES[name])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_command_works_or_explains_its_error(name: str, tmp_path: Path) -> None:
    data, fitted = written(tmp_path, CASES[name]), tmp_path / "run"
    code, out, err = run("fit", data, "--method", "skb-dr", "--threshold", 1, "--epochs", 4, "--out", fitted, "--json")
    if (name, "skb-dr") in REFUSED:
        assert code == 2
        assert one_line(err)
        assert not fitted.exists()
        return
    assert (code, err) == (0, "")
    assert strict(out)["evaluation"] is not None
    commands = [
        ("evaluate", fitted, data / "test.csv", "--protocol", "paper", "--json"),
        ("recommend", fitted, "--k", 2, "--json"),
        ("report", fitted, "--json"),
    ]
    for words in commands:
        code, out, err = run(*words)
        assert (code, err) == (0, ""), words
        assert strict(out)


def test_ids_differ_by_case_and_unicode_form(tmp_path: Path) -> None:
    log = read_log(written(tmp_path, CASES["ids of another case or form"]) / "train.csv")
    assert set(log.user_ids.column) == set(CASED)
    assert set(log.item_ids.column) == set(ANGSTROMS)


def test_long_ids_are_shortened_in_errors(tmp_path: Path) -> None:
    rows = [(LONG, "i", 1), (LONG, "i", 0), ("u", "i", 1)]
    assert one_line(run("fit", written(tmp_path, case(rows)) / "train.csv")[2])
    assert one_line(run("fit", written(tmp_path, case([("u", "i", LONG)])) / "train.csv")[2])
    model = make("mf", epochs=1).fit(FeedbackLog.from_arrays(["u", LONG], ["i", "j"], [1, 0]))
    model.save(tmp_path / "run")
    code, _, err = run("recommend", tmp_path / "run", "--users", LONG + "y")
    assert code == 2
    assert one_line(err)


def test_ratings_without_threshold_are_named_in_error(tmp_path: Path) -> None:
    data = written(tmp_path, CASES["ratings beyond float32"])
    code, _, err = run("fit", data / "train.csv", "--out", tmp_path / "run")
    assert code == 2
    assert "from -1e+300 to 1e+300. Give the log a `threshold`" in err


def test_overflowing_mean_of_duplicates_is_an_error() -> None:
    with pytest.raises(DataError, match=r'past the range of numbers. Choose duplicates="last"'):
        FeedbackLog.from_arrays(["u", "u"], ["i", "i"], [1.7e308, 1.7e308], duplicates="mean")


@pytest.mark.parametrize("time", ["9223372036854775808", "1e30", "nan", "99999-01-01", "2020-13-45"])
def test_timestamp_out_of_range_is_named(time: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(f"user_id,item_id,rating,time\na,b,1,7\nb,b,0,{time}\n")
    code, _, err = run("fit", tmp_path / "log.csv", "--timestamp-col", "time", "--out", tmp_path / "run")
    assert code == 2
    assert one_line(err)
    assert "column 'time', row 3: expected a whole number or a date" in err


@pytest.mark.parametrize("kind", [pl.Date(), pl.Datetime("ms")])
def test_date_out_of_range_is_named(kind: pl.DataType, tmp_path: Path) -> None:
    days = pl.Series([0, 2**31 - 1 if kind == pl.Date else 2**62]).cast(pl.Int32 if kind == pl.Date else pl.Int64)
    frame = pl.DataFrame({"user_id": [1, 2], "item_id": [1, 2], "rating": [0, 1], "time": days.cast(kind)})
    frame.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(DataError, match="row 2: expected a whole number or a date"):
        read_log(tmp_path / "log.parquet", timestamp_col="time")


def tables(folder: Path, observed: pl.DataFrame, population: pl.DataFrame) -> tuple[Path, Path]:
    observed.write_csv(folder / "observed.csv")
    population.write_csv(folder / "population.csv")
    return folder / "observed.csv", folder / "population.csv"


def numbers(rows: int, seed: int = 0, **columns: Any) -> pl.DataFrame:
    values = np.random.default_rng(seed).normal(size=(rows, 2))
    return pl.DataFrame({"a": values[:, 0], "b": values[:, 1], **columns})


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("observed", "population", "words"),
    [
        (numbers(20, c=[1.0] * 20), numbers(30, 1, c=[1.0] * 30), ()),
        (numbers(20, c=[1.0] * 20), numbers(30, 1, c=np.arange(30.0)), ("--moments", 2)),
        (numbers(5), numbers(30, 1), ("--n-functions", 500)),
        (numbers(2), numbers(30, 1), ("--moments", 5)),
        (numbers(1), numbers(30, 1), ()),
        (numbers(5, c=[1e-300] * 5), numbers(1, 1, c=[1e-300]), ()),
    ],
    ids=["constant", "constant in the log", "functions > rows", "moments > rows", "one row", "one row of population"],
)
def test_balance_accepts_degenerate_features(
    observed: pl.DataFrame, population: pl.DataFrame, words: tuple[object, ...], tmp_path: Path
) -> None:
    files = tables(tmp_path, observed, population)
    code, out, err = run("balance", *files, "--out", tmp_path / "weights.csv", "--json", *words)
    assert (code, err) == (0, "")
    assert strict(out)
    weights = pl.read_csv(tmp_path / "weights.csv")["weight"]
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize(("value", "message"), [(np.inf, "expected a finite number"), (1e300, "beyond 1e\\+150")])
def test_balance_rejects_infinite_and_huge_features(value: float, message: str, tmp_path: Path) -> None:
    observed, population = numbers(20, c=[value, *[1.0] * 19]), numbers(30, 1, c=np.arange(30.0))
    code, _, err = run("balance", *tables(tmp_path, observed, population), "--out", tmp_path / "weights.csv")
    assert code == 2
    assert one_line(err)
    assert not (tmp_path / "weights.csv").exists()
    with pytest.raises(DataError, match=message):
        balance_samples(observed, population, Moments(1))


def test_side_features_may_be_constant_but_not_missing() -> None:
    rows = {"users": [0, 0, 1, 2, 3], "items": [0, 1, 1, 0, 2], "ratings": [1, 0, 1, 0, 1]}
    constant = np.ones((4, 2)), np.ones((3, 1))
    log = FeedbackLog.from_arrays(**rows, user_features=constant[0], item_features=constant[1])
    model = make("skb-ips", features=("side", "exposure"), epochs=2).fit(log)
    assert np.isfinite(model.ratio_).all()
    for value in (np.nan, 1e300):
        with pytest.raises(DataError, match="`user_features` must be finite"):
            FeedbackLog.from_arrays(**rows, user_features=np.full((4, 2), value))


def test_settings_beyond_64_bits_are_an_error() -> None:
    log = FeedbackLog.from_arrays([0, 1], [0, 1], [0, 1])
    with pytest.raises(cp.ConfigError, match=r"`epochs` must be an integer < 2\^63"):
        make("mf", epochs=10**30).fit(log)
    with pytest.raises(cp.ConfigError, match="`learning_rate` must be a number"):
        make("mf", learning_rate=10**400).fit(log)
