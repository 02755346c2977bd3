"""Distillation from a teacher of the probe: formulas row by row, and its two ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import BridgeDistillation, ConfigError, Dataset, MatrixFactorization, RefineDistillation, Uniform
from counterpoise.imputation.distillation import FittedBridge, FittedRefinement, refined_labels
from counterpoise.training.contracts import FitContext, FittedImputation, Imputation
from counterpoise.training.loop import Training

METHODS = pytest.mark.parametrize("method", ["kd-bridge", "kd-refine"])


def fitted(part: Imputation, dataset: Dataset, **training) -> tuple[FitContext, FittedImputation]:
    settings = MatrixFactorization(dim=4), Training(**training)
    generator = torch.Generator().manual_seed(0)
    context = FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), generator)
    return context, part.init(context, Uniform().init(context))


def teacher_of(dataset: Dataset) -> np.ndarray:
    """The probabilities of `mf` fitted to the probe; without factors no draw matters. (users, items)"""
    model = cp.make("mf", dim=0, l2_biases=2.0, epochs=150).fit(dataset.probe)
    users, items = np.indices(dataset.probe.shape)
    return model.predict(users.ravel(), items.ravel()).astype(float).reshape(users.shape)


@pytest.mark.cpu
@METHODS
def test_strength_0_is_the_naive_fit_exactly(method: str, dataset: Dataset) -> None:
    naive = cp.make("mf", dim=4, epochs=20).fit(dataset.train)
    own = cp.make(method, strength=0.0, dim=4, epochs=20).fit(dataset.train, dataset.probe)
    assert np.array_equal(own.predict_log(dataset.test), naive.predict_log(dataset.test))


@pytest.mark.parametrize("all_pairs", [True, False])
def test_the_bridge_is_the_mean_distance_on_pairs(all_pairs: bool, dataset: Dataset) -> None:
    """strength x mean over pairs of -t log(r^) - (1 - t) log(1 - r^), pair by pair."""
    context, part = fitted(
        BridgeDistillation(0.7, MatrixFactorization(dim=0)), dataset, pairs="all" if all_pairs else 2
    )
    batch, teacher = context.batches(pairs=True).whole(), teacher_of(dataset)
    assert (batch.pair_users is None) == all_pairs
    shape = dataset.train.shape
    users, items = (codes.ravel() for codes in np.indices(shape)) if all_pairs else (batch.pair_users, batch.pair_items)
    logits = torch.randn(len(users), generator=torch.Generator().manual_seed(1))
    found, total = part.extra_loss(batch, torch.empty(0), logits), 0.0
    for u, i, logit in zip(users, items, logits.double().tolist(), strict=True):
        prediction = 1 / (1 + np.exp(-logit))
        total -= teacher[u, i] * np.log(prediction) + (1 - teacher[u, i]) * np.log(1 - prediction)
    assert float(found) == pytest.approx(0.7 * total / len(users), rel=1e-5)


def test_a_strong_bridge_ends_at_the_teacher(dataset: Dataset) -> None:
    backbone = MatrixFactorization(dim=0, l2_biases=2.0)
    model = cp.make("kd-bridge", strength=1e4, backbone=backbone, epochs=400).fit(dataset.train, dataset.probe)
    users, items = np.indices(dataset.train.shape)
    found = model.predict(users.ravel(), items.ravel()).reshape(users.shape)
    assert np.abs(found - teacher_of(dataset)).max() < 0.01


def test_refined_labels_lie_between_label_and_teacher(dataset: Dataset) -> None:
    """(r + strength z) / (1 + strength), z = (t - min t) / (max t - min t) over the log, row by row."""
    context, part = fitted(RefineDistillation(0.5, MatrixFactorization(dim=0)), dataset)
    assert isinstance(part, FittedRefinement)
    log, teacher = dataset.train, teacher_of(dataset)
    on_log = [teacher[u, i] for u, i in zip(log.users, log.items, strict=True)]
    low, high = min(on_log), max(on_log)
    expected = [(r + 0.5 * (t - low) / (high - low)) / 1.5 for r, t in zip(log.labels, on_log, strict=True)]
    found = part.targets(context.batches().whole())
    assert np.allclose(found, expected, atol=1e-4)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1
    assert part.facts() == {
        "smallest_teacher_label": pytest.approx(low, abs=1e-5),
        "largest_teacher_label": pytest.approx(high, abs=1e-5),
    }


def test_the_range_of_the_teacher_is_that_of_the_log_in_every_batch(dataset: Dataset) -> None:
    context, part = fitted(RefineDistillation(0.5), dataset, batch_size=100)
    whole = part.targets(context.batches().whole())
    for batch in context.batches().epoch():
        torch.testing.assert_close(part.targets(batch), whole[batch.rows])


def test_the_predictor_minimises_the_error_of_refined_labels(dataset: Dataset) -> None:
    """Its fit is that of `mf` to a log with these labels."""
    model = cp.make("kd-refine", strength=0.8, dim=0, epochs=400).fit(dataset.train, dataset.probe)
    _, part = fitted(RefineDistillation(0.8, MatrixFactorization(dim=0)), dataset)
    context = FitContext(
        dataset.train, None, MatrixFactorization(dim=0), Training(), torch.device("cpu"), torch.Generator()
    )
    targets = part.targets(context.batches().whole()).numpy()
    log = cp.FeedbackLog.from_arrays(
        dataset.train.users, dataset.train.items, targets, user_ids=np.arange(60), item_ids=np.arange(50)
    )
    plain = cp.make("mf", dim=0, epochs=400).fit(log)
    assert np.abs(model.predict_log(dataset.test) - plain.predict_log(dataset.test)).max() < 0.005


def test_a_teacher_of_one_label_refines_without_dividing_by_0() -> None:
    found = refined_labels(torch.tensor([0.0, 1.0]), torch.tensor([0.4, 0.4]), 0.4, 0.4, 1.0)
    assert found.tolist() == [0.0, 0.5]


@METHODS
def test_the_teacher_is_fixed_and_not_saved(method: str, dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make(method, dim=3, epochs=3, device="cpu", imputation__backbone="ncf").fit(dataset.train, dataset.probe)
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert loaded.imputation.backbone == "ncf" or type(loaded.imputation.backbone).__name__ == "NeuralCF"
    assert not any("teacher" in name for name in model.scorer_.state_dict())
    assert np.array_equal(loaded.predict_log(dataset.test), model.predict_log(dataset.test))


@METHODS
def test_a_probe_is_needed_and_the_strength_is_checked(method: str, dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"`probe` must be given for a teacher: .* 'mf'"):
        cp.make(method).fit(dataset.train)
    with pytest.raises(ConfigError, match="`strength`"):
        cp.make(method, strength=-0.1).fit(dataset.train, dataset.probe)


def test_the_bridge_joins_other_weights(dataset: Dataset) -> None:
    model = cp.make("kd-bridge", weights="naive-bayes", epochs=3).fit(dataset.train, dataset.probe)
    assert model.ratio_.std() > 0.01


def test_an_inactive_bridge_asks_for_no_pairs(dataset: Dataset) -> None:
    part = fitted(BridgeDistillation(0.0), dataset)[1]
    assert isinstance(part, FittedBridge)
    assert not part.needs_pairs
    assert not part.active
