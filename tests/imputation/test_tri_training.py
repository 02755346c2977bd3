"""Asymmetric tri-training: two models, where they agree, and a third that learns from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from counterpoise import (
    ConfigError,
    Dataset,
    DebiasedRecommender,
    KnownPropensity,
    MatrixFactorization,
    Training,
    Uniform,
)
from counterpoise.imputation.tri_training import TriTraining, _FittedTriTraining, agree
from counterpoise.risks import direct, error
from counterpoise.training.contracts import FitContext, FittedImputation

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=20)


def context_of(dataset: Dataset, **training) -> FitContext:
    settings = MatrixFactorization(dim=4), Training(**{"epochs": 20} | training)
    return FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))


def init(dataset: Dataset, part: TriTraining, **training) -> tuple[FitContext, FittedImputation]:
    context = context_of(dataset, **training)
    return context, part.init(context, Uniform().init(context))


@given(PROBABILITIES, st.floats(0, 1), st.floats(0, 1))
def test_agreement_is_symmetric_and_grows_with_the_threshold(values: list[float], one: float, other: float) -> None:
    first, second = torch.tensor(values), torch.tensor(values[::-1])
    narrow, wide = sorted((one, other))
    assert torch.equal(agree(first, second, narrow), agree(second, first, narrow))
    assert (agree(first, second, narrow) <= agree(first, second, wide)).all()
    assert agree(first, first, 0.0).all()
    assert agree(first, second, 1.0).all()


def test_the_risk_is_the_mean_over_the_agreeing_pairs(dataset: Dataset) -> None:
    context, fitted_imputation = init(dataset, TriTraining(threshold=0.03))
    first, second = (
        torch.sigmoid(model.grid()).flatten().tolist() for model in (fitted_imputation.first, fitted_imputation.second)
    )
    logits = torch.randn(context.log.n_pairs, generator=torch.Generator().manual_seed(1))
    total = count = 0.0
    for one, other, logit in zip(first, second, logits.tolist(), strict=True):
        if abs(one - other) <= 0.03:
            total += one * np.log1p(np.exp(-logit)) + (1 - one) * np.log1p(np.exp(logit))
            count += 1
    batch = context.batches(pairs=True).whole()
    _, on_pairs = fitted_imputation.errors(batch, torch.zeros(len(batch.rows)), logits, torch.zeros(len(batch.rows)))
    assert 0.05 < count / len(first) < 0.95
    assert fitted_imputation.facts() == {"share_agreed": pytest.approx(count / len(first))}
    assert float(direct(on_pairs)) == pytest.approx(total / count, rel=1e-5)


def test_minibatches_average_to_the_loss_of_all_pairs(dataset: Dataset) -> None:
    context, fitted_imputation = init(dataset, TriTraining(threshold=0.03), batch_size=64, pairs=4)
    table = torch.randn(context.log.shape, generator=torch.Generator().manual_seed(1))
    whole = context_of(dataset).batches(pairs=True).whole()
    zeros = torch.zeros(len(whole.rows))
    full = float(direct(fitted_imputation.errors(whole, zeros, table.flatten(), zeros)[1]))
    values = []
    for _ in range(60):
        for batch in context.batches(pairs=True).epoch():
            rows = torch.zeros(len(batch.rows))
            logits = table[batch.pair_users.long(), batch.pair_items.long()]
            values.append(float(direct(fitted_imputation.errors(batch, rows, logits, rows)[1])))
    assert abs(np.mean(values) - full) < 4 * np.std(values) / np.sqrt(len(values))


def test_a_batch_without_agreement_has_no_loss_and_no_gradient(dataset: Dataset) -> None:
    context, fitted_imputation = init(dataset, TriTraining(threshold=0.03))
    first, second = torch.sigmoid(fitted_imputation.first.grid()), torch.sigmoid(fitted_imputation.second.grid())
    users, items = torch.nonzero(~agree(first, second, 0.03), as_tuple=True)
    batch = replace(context.batches().whole(), pair_users=users, pair_items=items)
    logits = torch.randn(len(users), requires_grad=True)
    rows = torch.zeros(len(batch.rows))
    loss = direct(fitted_imputation.errors(batch, rows, logits, rows)[1])
    assert loss.item() == 0
    assert torch.autograd.grad(loss, logits)[0].abs().max() == 0


def test_models_that_agree_nowhere_are_an_error(dataset: Dataset) -> None:
    with pytest.raises(
        ConfigError, match=r"`threshold` is 0, and the two models differ by more on every pair.*Raise it"
    ):
        init(dataset, TriTraining(threshold=0))
    with pytest.raises(ConfigError, match=r"`threshold` must be a number >= 0, got -1\. 1 takes every pair"):
        init(dataset, TriTraining(threshold=-1))
    with pytest.raises(ConfigError, match="`weights` must be a Weights part"):
        init(dataset, TriTraining(weights="uniform"))
    with pytest.raises(ConfigError, match="`propensity` must not be an array by rows here"):
        init(dataset, TriTraining(weights=KnownPropensity(np.ones(len(dataset.train)))))


def test_the_same_model_twice_agrees_everywhere(dataset: Dataset) -> None:
    context, fitted_imputation = init(dataset, TriTraining())
    twice = _FittedTriTraining(fitted_imputation.first, fitted_imputation.first, 0.0)
    twice.measure(context)
    assert twice.share == 1


def test_a_large_population_is_sampled(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = init(dataset, TriTraining(threshold=0.03))[1].share
    monkeypatch.setattr("counterpoise.imputation.tri_training.MAX_EXACT_PAIRS", 2000)
    assert init(dataset, TriTraining(threshold=0.03))[1].share == pytest.approx(exact, abs=4 * np.sqrt(0.25 / 2000))


def test_with_any_difference_allowed_the_third_model_distils_the_first(dataset: Dataset) -> None:
    context, fitted_imputation = init(dataset, TriTraining(threshold=1), epochs=150)
    batch = context.batches(pairs=True).whole()
    logits = torch.randn(context.log.n_pairs)
    rows = torch.zeros(len(batch.rows))
    expected = error(torch.sigmoid(fitted_imputation.first.grid()).flatten(), logits)
    assert torch.allclose(fitted_imputation.errors(batch, rows, logits, rows)[1], expected)
    backbone = MatrixFactorization(dim=4)
    training = Training(epochs=150, device="cpu")
    model = DebiasedRecommender(Uniform(), "direct", TriTraining(threshold=1), backbone, training)
    third = torch.sigmoid(model.fit(dataset.train, dataset.probe).scorer_.grid())
    first = torch.sigmoid(fitted_imputation.first.grid())
    assert np.corrcoef(first.flatten(), third.flatten())[0, 1] > 0.97


@pytest.mark.parametrize("training", [{}, {"batch_size": 128}, {"patience": 3}])
def test_it_trains_with_any_batch_size_and_early_stopping(dataset: Dataset, training) -> None:
    settings = Training(epochs=10, **training)
    model = DebiasedRecommender(Uniform(), "direct", TriTraining(), training=settings).fit(dataset.train, dataset.probe)
    assert model.history_.loss[-1] < model.history_.loss[0]
    assert 0 < model.facts_["imputation"]["share_agreed"] <= 1
