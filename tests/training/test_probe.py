"""Learning from the probe's labels, against formulas written out and fits that must be the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import ConfigError, Dataset, FeedbackLog
from counterpoise.training.learner import Learner

CPU = {"device": "cpu"}


def learner_of(model: cp.DebiasedRecommender, dataset: Dataset, probe: FeedbackLog | None) -> Learner:
    learner = model._learner(model._context(dataset.train, probe))
    assert isinstance(learner, Learner)
    return learner


def log_loss(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, logits) - labels * logits


@pytest.mark.parametrize("weights", ["uniform", "naive-bayes"])
def test_the_loss_is_the_risk_and_the_mean_error_on_the_probe(weights: str, dataset: Dataset) -> None:
    model = cp.make("ips", weights=weights, probe_labels="likelihood", dim=3, **CPU)
    model.probe_labels.weight = 1.7
    learner = learner_of(model, dataset, dataset.probe)
    learner.start_epoch(1)
    log, probe, grid = dataset.train, dataset.probe, learner.scorer.grid().detach().double().numpy()
    assert probe is not None
    ratio = learner.weights.ratio.double().numpy()
    share = 1.7 * len(probe) * (ratio**2).sum() / ratio.sum() ** 2
    expected = (ratio * log_loss(log.labels, grid[log.users, log.items])).mean()
    expected += share * log_loss(probe.labels, grid[probe.users, probe.items]).mean()
    expected += float(learner.optimizer.penalty())
    found = float(learner.step(learner.log.whole(), 1.0))
    assert found == pytest.approx(expected, rel=1e-5)


def test_log_and_probe_are_learned_as_one_log(dataset: Dataset) -> None:
    log = dataset.train
    assert dataset.probe is not None
    probe = dataset.probe.take(~np.isin(dataset.probe.pairs, log.pairs))
    rows = [np.concatenate([getattr(part, name) for part in (log, probe)]) for name in ("users", "items", "ratings")]
    ids = {"user_ids": log.user_ids, "item_ids": log.item_ids, "threshold": log.threshold}
    together = FeedbackLog.from_arrays(*rows, **ids)
    assert len(together) == len(log) + len(probe) > len(log) + 30
    settings = {"dim": 3, "l2_biases": 2.0, "epochs": 400, **CPU}
    ours = cp.make("mf-with-probe", **settings).fit(log, probe)
    theirs = cp.make("mf", **settings).fit(together)
    assert np.allclose(ours.scorer_.grid(), theirs.scorer_.grid(), atol=0.03)


def test_the_probe_alone_learns_nothing_of_the_labels_of_the_log(dataset: Dataset) -> None:
    flipped = dataset.train.take(np.arange(len(dataset.train)))
    top = float(flipped.ratings.max() + flipped.ratings.min())
    flipped = replace(flipped, ratings=top - flipped.ratings)
    settings = {"dim": 3, "epochs": 400, **CPU}
    first, second = (cp.make("mf-probe", **settings).fit(log, dataset.probe) for log in (dataset.train, flipped))
    assert np.allclose(first.predict_log(dataset.test), second.predict_log(dataset.test), atol=0.01)


def test_a_shift_takes_the_level_of_the_log_away() -> None:
    data = cp.simulate(200, 150, 0.1, seed=3, selection="preference", probe_fraction=0.2).dataset
    assert data.probe is not None
    assert data.test is not None
    found = {
        shift: cp.make("mf", probe_labels=cp.ProbeLabels(shift=shift), **CPU).fit(data.train, data.probe)
        for shift in (True, False)
    }
    rates = {shift: float(model.predict_log(data.test).mean()) for shift, model in found.items()}
    truth = float(data.test.labels.mean())
    assert 2 * abs(rates[True] - truth) < abs(rates[False] - truth)
    assert found[True].facts_["probe"]["shift"] == pytest.approx(1.0, abs=0.35)  # labels of the simulation have 1
    assert found[False].facts_["probe"]["shift"] == 0


def test_the_missingness_model_gives_its_own_shift(dataset: Dataset) -> None:
    model = cp.make("mnar", probe_labels="likelihood", **CPU)
    learner = learner_of(model, dataset, dataset.probe)
    assert learner.probe is not None
    assert not learner.probe.shift.requires_grad
    assert float(learner.probe.shift) == pytest.approx(learner.imputation.offset)


def test_without_a_probe_nothing_changes(dataset: Dataset) -> None:
    first, second = (
        cp.make("mf", epochs=5, probe_labels=part, **CPU).fit(dataset.train) for part in (None, cp.ProbeLabels())
    )
    assert np.array_equal(first.scorer_.grid(), second.scorer_.grid())
    assert "probe" not in second.facts_


def test_facts_say_how_the_probe_was_used(dataset: Dataset) -> None:
    assert dataset.probe is not None
    rows = len(dataset.probe)
    unused = cp.make("mf", epochs=2, **CPU).fit(dataset.train, dataset.probe)
    used = cp.make("mf-with-probe", epochs=2, **CPU).fit(dataset.train, dataset.probe)
    assert unused.facts_["probe"] == {"rows": rows, "learned": False}
    share = rows / (rows + len(dataset.train))
    assert used.facts_["probe"] == {"rows": rows, "learned": True, "share": pytest.approx(share), "shift": 0.0}


def test_the_risk_of_the_probe_needs_one(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`probe` must be given for the risk 'probe'"):
        cp.make("mf-probe", **CPU).fit(dataset.train)
    with pytest.raises(ConfigError, match="ProbeLabels"):
        cp.make("mf-probe", probe_labels=None, **CPU).fit(dataset.train, dataset.probe)


@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"weight": "much"}, {"shift": "yes"}])
def test_wrong_settings_are_named(settings: dict[str, object], dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        cp.make("mf", probe_labels=cp.ProbeLabels(**settings), **CPU).fit(dataset.train, dataset.probe)


@pytest.mark.parametrize("method", ["dr-jl", "skb-dr", "snips", "ips-v2", "mr"])
def test_any_method_can_learn_from_the_probe(method: str, dataset: Dataset) -> None:
    settings = {"epochs": 3, "dim": 3, **CPU}
    models = [
        cp.make(method, probe_labels=part, **settings).fit(dataset.train, dataset.probe)
        for part in ("none", "likelihood")
    ]
    assert not torch.equal(models[0].scorer_.grid(), models[1].scorer_.grid())


def test_errors_that_are_imputed_have_no_shift(dataset: Dataset) -> None:
    learner = learner_of(cp.make("dr-jl", probe_labels="likelihood", **CPU), dataset, dataset.probe)
    assert learner.probe is not None
    assert not learner.probe.shift.requires_grad
    assert float(learner.probe.shift) == 0


def test_the_risk_of_the_probe_goes_with_neither_patience_nor_ensemble(dataset: Dataset) -> None:
    for settings, name in (({"patience": 3}, "patience"), ({"ensemble": "average"}, "ensemble")):
        with pytest.raises(ConfigError, match=f"`{name}` must be None for risk='probe'"):
            cp.make("mf-probe", **settings, **CPU).fit(dataset.train, dataset.probe)


def test_the_precision_of_the_shift_is_part_of_the_state(dataset: Dataset) -> None:
    learner = learner_of(cp.make("mf", probe_labels="likelihood", **CPU), dataset, dataset.probe)
    assert learner.probe is not None
    assert any(tensor is learner.probe.precision for tensor in learner.state())
