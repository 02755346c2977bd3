"""Calibrated imputed labels (DCE): which rows they are learned from, and what they are."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit

import counterpoise as cp
from counterpoise import CalibratedLabels, ConfigError, Dataset, MatrixFactorization, Training
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Learned
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext, FittedImputation, StepInputs
from counterpoise.weights.base import NaiveBayes


def fitted(dataset: Dataset, part: Learned, scale: float = 0.0) -> tuple[FitContext, FittedImputation]:
    """With parameters that are random where there is a scale."""
    settings, generator = (MatrixFactorization(dim=4), Training()), torch.Generator().manual_seed(0)
    context = FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), generator)
    found = part.init(context, NaiveBayes().init(context))
    draw = torch.Generator().manual_seed(5)
    for parameter in found.scorer.requires_grad_(False).parameters():
        if scale:
            parameter.copy_(scale * torch.randn(parameter.shape, generator=draw))
    return context, found


def ask(context: FitContext, part: FittedImputation, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Imputed errors of a predictor with random logits."""
    grid = torch.randn(context.log.shape, generator=torch.Generator().manual_seed(2))
    on_pairs = grid.flatten() if batch.pair_users is None else grid[batch.pair_users.long(), batch.pair_items.long()]
    logits = grid[batch.users.long(), batch.items.long()]
    return part.errors(batch, logits, on_pairs, error(batch.labels, logits))


def test_before_they_are_calibrated_labels_are_those_of_the_model(dataset: Dataset) -> None:
    context, own = fitted(dataset, CalibratedLabels(), 0.5)
    _, plain = fitted(dataset, Learned(), 0.5)
    batch = context.batches(pairs=True).whole()
    for found, expected in zip(ask(context, own, batch), ask(context, plain, batch), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


def test_one_expert_is_platt_scaling_of_the_rows_held_out(dataset: Dataset) -> None:
    context, part = fitted(dataset, CalibratedLabels(experts=1, held_out=0.3), 0.7)
    part.refresh(lambda: None)
    log, held = dataset.train, part.held.numpy()
    z = part.scorer(torch.from_numpy(log.users[held]), torch.from_numpy(log.items[held])).double().numpy()
    weight, r = part.weights.ratio[part.held].double().numpy(), log.labels[held].astype(float)

    def loss(at) -> float:
        p = expit(at[0] * z + at[1])
        return -np.sum(weight * (r * np.log(p) + (1 - r) * np.log(1 - p))) + ((at[0] - 1) ** 2 + at[1] ** 2) / 2

    b, c = minimize(loss, [1.0, 0.0], tol=1e-10).x
    assert part.facts() == {"slope": [pytest.approx(b, abs=0.01)], "intercept": [pytest.approx(c, abs=0.01)]}
    found = part.labels(context.batches(pairs=True).whole())[1]
    expected = expit(b * part.scorer.grid().double().numpy().ravel() + c)
    assert found.numpy() == pytest.approx(expected, abs=0.005)


def test_labels_are_mixtures_of_experts_by_user(dataset: Dataset) -> None:
    context, part = fitted(dataset, CalibratedLabels(experts=3), 0.7)
    part.refresh(lambda: None)
    everywhere = part.labels(context.batches(pairs=True).whole())[1].view(context.log.shape)
    grid = part.scorer.grid().double().numpy()
    table = part.scorer.features()[0].double().numpy()
    deviation = table.std(0)
    columns = np.divide(table - table.mean(0), deviation, out=np.zeros_like(table), where=deviation > 1e-9)
    for u, i in ((0, 0), (3, 7), (59, 49)):
        gate = np.exp(np.append(columns[u], 1.0) @ part.experts.gate[0].numpy())
        maps = expit(part.experts.slope.numpy() * grid[u, i] + part.experts.intercept.numpy())
        assert float(everywhere[u, i]) == pytest.approx(float(gate @ maps / gate.sum()), abs=1e-5)


def test_pairs_one_by_one_are_those_of_all(dataset: Dataset) -> None:
    context, part = fitted(dataset, CalibratedLabels(), 0.7)
    part.refresh(lambda: None)
    batch = context.batches(pairs=True).whole()
    users, items = (torch.from_numpy(codes.ravel()) for codes in np.indices(context.log.shape))
    listed = replace(batch, pair_users=users, pair_items=items)
    for one, other in zip(ask(context, part, batch), ask(context, part, listed), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_model_does_not_learn_from_rows_held_out(dataset: Dataset) -> None:
    """Whatever their errors are, its step is the same; and it is not where others change."""
    states = []
    for changed in ("none", "held", "others"):
        context, part = fitted(dataset, CalibratedLabels(held_out=0.3), 0.3)
        part.scorer.requires_grad_(True)
        batch = context.batches().whole()
        logits = torch.randn(len(batch.rows), generator=torch.Generator().manual_seed(1))
        errors = error(batch.labels, logits)
        rows = {"none": part.held[:0], "held": part.held, "others": part.counts.nonzero()[:, 0]}[changed]
        errors = errors.index_add(0, rows, torch.ones(len(rows)))
        part.step(StepInputs(batch, logits, logits[:0], errors), part.weights.ratio, 1.0)
        states.append([tensor.clone() for tensor in part.state()])
    none, held, others = states
    assert all(torch.equal(one, other) for one, other in zip(none, held, strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(none, others, strict=True))


def test_too_sure_labels_are_drawn_together() -> None:
    """A model whose logits are three times too large, on labels that follow a third of them."""
    world = cp.simulate(n_users=150, n_items=120, density=0.3, seed=0)
    log, rng = world.dataset.train, np.random.default_rng(0)
    context, part = fitted(world.dataset, CalibratedLabels(experts=2, held_out=0.5), 0.8)
    z = part.scorer(torch.from_numpy(log.users), torch.from_numpy(log.items)).double().numpy()
    part.whole = replace(part.whole, labels=torch.from_numpy((rng.random(len(z)) < expit(z / 3)).astype(np.float32)))
    part.refresh(lambda: None)
    own, calibrated = torch.sigmoid(part.scorer.grid()).flatten(), part.labels(context.batches(True).whole())[1]
    true = torch.sigmoid(part.scorer.grid() / 3).flatten()
    assert float((calibrated - true).abs().mean()) < 0.3 * float((own - true).abs().mean())


def test_experts_are_fitted_every_so_many_epochs(dataset: Dataset) -> None:
    _, part = fitted(dataset, CalibratedLabels(refresh=4), 0.7)
    slopes = []
    for _ in range(9):
        part.scorer.user_factors.weight += 0.1
        part.refresh(lambda: None)
        slopes.append(tuple(part.facts()["slope"]))
    changed = [one != other for one, other in pairwise(slopes)]
    assert changed == [False, False, False, True, False, False, False, True]


def test_labels_of_one_kind_leave_the_map_finite(dataset: Dataset) -> None:
    context, part = fitted(dataset, CalibratedLabels(), 0.7)
    part.whole = replace(part.whole, labels=torch.ones_like(part.whole.labels))
    part.refresh(lambda: None)
    labels = part.labels(context.batches(pairs=True).whole())[1]
    assert 0.5 < float(labels.mean()) < 0.999


def test_bad_settings_are_named(dataset: Dataset) -> None:
    for part, words in (
        (CalibratedLabels(experts=0), "`experts` must be an integer >= 1, got 0"),
        (CalibratedLabels(held_out=0.9), "`held_out` must be a number > 0 and <= 0.5, got 0.9"),
        (CalibratedLabels(refresh=0), "`refresh` must be an integer >= 1, got 0"),
        (CalibratedLabels(weighting="all"), "`weighting` must be one of"),
    ):
        with pytest.raises(ConfigError, match=words):
            fitted(dataset, part)
