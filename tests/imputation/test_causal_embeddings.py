"""CausE: two tables of items, against loops and against what it is at the ends of its penalty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import counterpoise as cp
from counterpoise import CausalEmbeddings, ConfigError, Dataset, DebiasedRecommender, FeedbackLog, MatrixFactorization
from counterpoise.imputation.causal_embeddings import FittedCausalEmbeddings
from counterpoise.training.contracts import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import Training, train


def context_of(dataset: Dataset, backbone=None, **training) -> FitContext:
    settings = backbone or MatrixFactorization(dim=4), Training(**training)
    return FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))


def trained(context: FitContext, part: CausalEmbeddings) -> tuple[Learner, FittedCausalEmbeddings]:
    learner = Learner.init(context, cp.Uniform(), "ips", part)
    train(learner, context.batches(), None, context.training)
    assert isinstance(learner.imputation, FittedCausalEmbeddings)
    return learner, learner.imputation


def both_logs(first: FeedbackLog, second: FeedbackLog) -> FeedbackLog:
    """All rows of both, also where they have a pair in common."""
    names = ("users", "items", "ratings")
    return replace(first, **{name: np.concatenate([getattr(log, name) for log in (first, second)]) for name in names})


def grid(scorer) -> np.ndarray:
    with torch.no_grad():
        return torch.sigmoid(scorer.grid()).numpy()


def test_the_probe_is_scored_with_its_own_items(dataset: Dataset) -> None:
    """(1 / |O|) sum over the probe of CE, logit = mean + b_u + b'_i + <p_u, q'_i>, row by row in float64."""
    context = context_of(dataset, epochs=5)
    learner, part = trained(context, CausalEmbeddings(l2_distance=1.0))
    table = {name: values.detach().double().numpy() for name, values in learner.scorer.named_parameters()}
    own = {name: values.detach().double().numpy() for name, values in part.differences.items()}
    assert set(own) == {"item_factors.weight", "item_bias.weight"}
    factors, bias = (table[name] + own[name] for name in ("item_factors.weight", "item_bias.weight"))
    expected, probe = 0.0, dataset.probe
    for u, i, label in zip(probe.users, probe.items, probe.labels, strict=True):
        logit = (
            table["mean"] + table["user_bias.weight"][u, 0] + bias[i, 0] + table["user_factors.weight"][u] @ factors[i]
        )
        expected += np.logaddexp(0, logit) - label * logit
    batch = context.batches().whole()
    found = part.extra_loss(batch, torch.empty(0), torch.empty(0))
    assert found.item() == pytest.approx(expected / len(dataset.train), rel=1e-5)
    distance = sum(float((values**2).sum()) for values in own.values())
    assert float(part.optimizer.penalty()) == pytest.approx(1.0 / 2 * distance / len(dataset.train), rel=1e-5)
    assert part.facts() == {"item_distance": pytest.approx((distance / dataset.train.shape[1]) ** 0.5, rel=1e-5)}


def test_gradients_reach_users_and_items_but_each_owner_steps_its_own(dataset: Dataset) -> None:
    part = trained(context_of(dataset, epochs=2), CausalEmbeddings())[1]
    loss = part._loss()
    users, items = part.scorer.user_factors.weight, part.scorer.item_factors.weight
    own = part.differences["item_factors.weight"]
    gradients = torch.autograd.grad(loss, [users, items, own])
    assert all(bool(gradient.any()) for gradient in gradients)
    assert torch.equal(gradients[1], gradients[2])  # b' = b + difference
    assert not any(own is parameter for parameter in part.scorer.parameters())


def test_without_penalty_items_of_the_log_learn_from_the_log_alone() -> None:
    """Additive models and users of the probe whom the log does not have: nothing but items could carry its labels."""
    rng = np.random.default_rng(0)
    users, items = np.divmod(rng.permutation(30 * 20)[:300], 20)
    ids = {"user_ids": np.arange(40), "item_ids": np.arange(20)}
    log = FeedbackLog.from_arrays(users, items, (rng.random(300) < 0.3).astype(float), **ids)
    others = np.repeat(np.arange(30, 40), 20), np.tile(np.arange(20), 10)
    probe = FeedbackLog.from_arrays(*others, rng.uniform(0.5, 0.9, 200), **ids)  # no item whose labels are all equal
    settings = {"dim": 0, "epochs": 600}
    alone = cp.make("mf", **settings).fit(log)
    apart, together = (cp.make("cause", l2_distance=l2, **settings).fit(log, probe) for l2 in (0.0, 1e3))
    found, expected = apart.predict_log(log), alone.predict_log(log)
    assert np.abs(found - expected).max() < 0.005
    assert np.abs(together.predict_log(log) - expected).max() > 0.05


@pytest.mark.cpu
@pytest.mark.parametrize("dim", [0, 4])
def test_with_a_large_penalty_both_tables_are_one_and_the_probe_is_log(dim: int, dataset: Dataset) -> None:
    learner, part = trained(
        context_of(dataset, MatrixFactorization(dim=dim, l2_biases=2.0), epochs=400), CausalEmbeddings(1e6)
    )
    assert part.facts()["item_distance"] < 1e-3
    given = {"dim": dim, "epochs": 400, "l2_biases": 2.0}
    pooled = cp.make("mf", **given).fit(both_logs(dataset.train, dataset.probe))
    assert np.abs(grid(learner.scorer) - grid(pooled.scorer_)).max() < 0.02
    alone = cp.make("mf", **given).fit(dataset.train)
    assert np.abs(grid(learner.scorer) - grid(alone.scorer_)).max() > 0.05


def test_the_distance_falls_with_its_penalty(dataset: Dataset) -> None:
    context = context_of(dataset, epochs=150)
    distances = [trained(context, CausalEmbeddings(l2))[1].facts()["item_distance"] for l2 in (0.1, 1.0, 10.0, 100.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 10 * distances[-1]


@pytest.mark.parametrize("backbone", ["ncf", cp.ExposureCovariate(MatrixFactorization(dim=3))])
def test_every_backbone_has_tables_of_items(backbone, dataset: Dataset, tmp_path: Path) -> None:
    model = DebiasedRecommender(
        imputation=CausalEmbeddings(), backbone=backbone, training=Training(epochs=3, device="cpu")
    )
    model.fit(dataset.train, dataset.probe)
    assert model.facts_["imputation"]["item_distance"] > 0
    model.save(tmp_path / "run")
    loaded = cp.load_model(tmp_path / "run")
    assert np.array_equal(loaded.predict_log(dataset.test), model.predict_log(dataset.test))


def test_a_probe_is_needed_and_the_penalty_is_checked(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"`probe` must be given for causal embeddings: .* 'mf'"):
        cp.make("cause").fit(dataset.train)
    with pytest.raises(ConfigError, match="`l2_distance`"):
        cp.make("cause", l2_distance=-1).fit(dataset.train, dataset.probe)


def test_a_backbone_without_tables_of_items_is_refused(dataset: Dataset) -> None:
    scorer = MatrixFactorization(dim=2).build(dataset.train, torch.Generator())
    scorer.side = lambda name: None
    context = context_of(dataset)
    with pytest.raises(ConfigError, match="tables of items"):
        CausalEmbeddings().init(context, cp.Uniform().init(context)).start(scorer)
