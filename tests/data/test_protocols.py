"""Evaluation protocols by name: what leaves the test, and what a name sets for a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterpoise import ConfigError, evaluate, load_dataset, make
from counterpoise.data.log import FeedbackLog
from counterpoise.data.protocols import PROTOCOLS, find_protocol
from counterpoise.data.splits import apply_protocol
from counterpoise.runs import FitConfig, fit_and_evaluate


def log_of(rows: int, seed: int) -> FeedbackLog:
    rng = np.random.default_rng(seed)
    pairs = rng.choice(20 * 15, rows, replace=False)
    ratings = rng.integers(1, 6, rows).astype(float)
    return FeedbackLog.from_arrays(
        pairs // 15, pairs % 15, ratings, user_ids=range(20), item_ids=range(15), threshold=3
    )


def write_coat(folder: Path) -> Path:
    """Files as those of Coat: 20 x 15 ratings, 0 where there is none; some pairs stand in both."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, seed in (("train", 1), ("test", 2)):
        rng = np.random.default_rng(seed)
        matrix = rng.integers(1, 6, (20, 15)) * (rng.random((20, 15)) < 0.4)
        np.savetxt(folder / f"{name}.ascii", matrix, fmt="%d")
    return folder


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_leaves_the_test_is_what_the_protocol_says(name: str) -> None:
    rules, train, ratings = find_protocol(name), log_of(100, 1), replace(log_of(120, 2), sample="uniform")
    probe, test, counts = apply_protocol(train, ratings, name, rules.probe, rng=np.random.default_rng(0))
    probed = set() if probe is None else set(probe.pairs.tolist())
    assert len(probed) == counts["probe_rows"] == round(rules.probe * 120)
    gone = set(ratings.pairs.tolist()) - set(test.pairs.tolist())
    expected = set() if rules.keeps_probe else set(probed)
    expected |= set() if rules.keeps_seen else set(train.pairs.tolist()) & set(ratings.pairs.tolist())
    assert expected <= gone
    assert not (gone - expected) & probed  # the validation rows are others than those of the probe
    assert len(gone - expected) == counts["removed_as_validation"] == round(rules.validation * 120)
    removed = sum(counts[f"removed_as_{why}"] for why in ("probe", "validation", "in_train"))
    assert counts["given_rows"] - removed == counts["test_rows"] == len(test)


def test_the_shares_of_published_protocols() -> None:
    shares = {name: (one.probe * (not one.keeps_probe), one.validation) for name, one in PROTOCOLS.items()}
    assert {name: pair for name, pair in shares.items() if any(pair)} == {
        "honest": (0.05, 0.0),
        "cdr": (0.0, 0.10),
        "kdcrec": (0.05, 0.05),
        "idcf": (0.0, 0.30),
        "autodebias": (0.0, 0.10),
    }


def test_a_protocol_sets_threshold_and_kind_of_feedback(tmp_path: Path) -> None:
    folder = write_coat(tmp_path)
    stars = {name: load_dataset("coat", folder, protocol=name).train for name in ("honest", "d-dr", "counter-if")}
    assert [log.threshold for log in stars.values()] == [3, 4, 4]
    assert stars["counter-if"].feedback == "clicks"
    assert len(stars["counter-if"]) == sum(stars["honest"].ratings >= 4)
    assert load_dataset("coat", folder, protocol="d-dr", threshold=5).train.threshold == 5
    data = load_dataset("coat", folder, protocol="cdr")
    given, removed = data.description["given_rows"], data.description["removed_as_validation"]
    assert removed == round(0.1 * given)
    assert len(data.test) == given - removed


def test_a_protocol_of_other_data_is_refused(tmp_path: Path) -> None:
    folder = write_coat(tmp_path)
    with pytest.raises(ConfigError, match=r"`protocol` 'kdcrec' is of yahoo-r3, got 'coat'. Use 'honest' or 'paper'"):
        load_dataset("coat", folder, protocol="kdcrec")
    with pytest.raises(ConfigError, match="`feedback` must be 'clicks' for protocol='recrec', got 'ratings'"):
        load_dataset("coat", folder, protocol="recrec", feedback="ratings")


@pytest.mark.parametrize(
    ("name", "nearest"), [("honets", "honest"), ("counter", "counter-if"), ("super-dr", "superdr")]
)
def test_a_misspelt_protocol_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"got '{name}'. Did you mean '{nearest}'"):
        load_dataset("coat", protocol=name)


def test_evaluate_needs_only_the_rule_for_seen_pairs(tmp_path: Path) -> None:
    data = load_dataset("coat", write_coat(tmp_path), protocol="paper")
    model = make("mf", epochs=2, dim=2).fit(data.train, probe=data.probe)
    whole, paper, honest = (
        evaluate(model, data.test, protocol=name, bootstrap=0) for name in ("cdr", "paper", "honest")
    )
    assert whole.n_rows == paper.n_rows == len(data.test) == honest.n_rows + honest.n_seen
    assert whole.n_seen == honest.n_seen > 0
    assert f"{whole.n_seen}  rows were seen in training or in the probe: counted (cdr protocol)" in str(whole)
    with pytest.raises(ConfigError, match='`weights` must be None for protocol="cdr"'):
        evaluate(model, data.test, protocol="cdr", weights="balanced")


def test_fit_takes_a_published_protocol(tmp_path: Path) -> None:
    settings = {"epochs": 2, "dim": 2, "device": "cpu"}
    config = FitConfig(data="coat", path=str(write_coat(tmp_path)), protocol="idcf", method="mf", settings=settings)
    fitted = fit_and_evaluate(config)
    assert fitted.dataset.train.threshold == 4
    assert fitted.evaluation is not None
    given = fitted.dataset.description["given_rows"]
    assert fitted.evaluation.n_rows == given - round(0.3 * given)
