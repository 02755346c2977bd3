"""AutoDebias, against dense tables in float64: its losses, and the gradient through the look-ahead step."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise import AutoDebias, ConfigError, Dataset, MatrixFactorization, NoImputation, UnitWeights
from counterpoise.data.batches import Batch
from counterpoise.imputation.base import Constant
from counterpoise.risks import ips
from counterpoise.training.contracts import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import Training, train
from counterpoise.weights.auto_debias import DebiasingParameters, FittedAutoDebias, imputed_loss, log_loss_of

L2, L2_BIASES, STRENGTH = 4.0, 2.0, 0.4


def context_of(dataset: Dataset, dim: int = 3, **training) -> FitContext:
    settings = MatrixFactorization(dim=dim, l2=L2, l2_biases=L2_BIASES), Training(**training)
    return FitContext(dataset.train, dataset.probe, *settings, torch.device("cpu"), torch.Generator().manual_seed(0))


def learner_of(context: FitContext, part: AutoDebias) -> tuple[Learner, FittedAutoDebias]:
    learner = Learner.init(context, part, "ips", NoImputation())
    assert isinstance(learner.weights, FittedAutoDebias)
    return learner, learner.weights


def in_float64(dataset: Dataset, look_ahead: float = 0.05) -> tuple[FittedAutoDebias, Batch, list[Tensor]]:
    """Weights in the middle of a fit, the whole log as a batch, and the predictor's tables, all in float64."""
    context = context_of(dataset, epochs=10)
    part = AutoDebias(STRENGTH, look_ahead)
    learner, fitted = learner_of(context, part)
    train(learner, context.batches(True), None, context.training)
    generator = torch.Generator().manual_seed(3)
    phi = (torch.randn(values.shape, generator=generator, dtype=torch.float64) for values in fitted.phi)
    fitted.phi = DebiasingParameters(*(values.requires_grad_() for values in phi))
    fitted.start(learner.scorer.double())
    fitted.probe = replace(fitted.probe, labels=fitted.probe.labels.double())
    batch = context.batches(True).whole()
    theta = [values.detach().clone().requires_grad_() for values in learner.scorer.parameters()]
    return fitted, replace(batch, labels=batch.labels.double()), theta


class Dense:
    """The formulas of the module over |U| x |I| tables."""

    def __init__(self, dataset: Dataset, look_ahead: float, names: list[str]) -> None:
        self.log, self.probe, self.look_ahead, self.names = dataset.train, dataset.probe, look_ahead, names
        self.observed = torch.zeros(self.log.shape, dtype=torch.float64)
        self.labels = torch.zeros(self.log.shape, dtype=torch.float64)
        self.observed[self.log.users, self.log.items] = 1
        self.labels[self.log.users, self.log.items] = torch.from_numpy(self.log.labels).double()

    def logits(self, theta: list[Tensor]) -> Tensor:
        table = dict(zip(self.names, theta, strict=True))
        biases = table["mean"] + table["user_bias.weight"] + table["item_bias.weight"].T
        return biases + table["user_factors.weight"] @ table["item_factors.weight"].T

    @staticmethod
    def error(labels: Tensor, logits: Tensor) -> Tensor:
        prediction = 1 / (1 + torch.exp(-logits))
        return -labels * torch.log(prediction) - (1 - labels) * torch.log(1 - prediction)

    def loss(self, phi: DebiasingParameters, theta: list[Tensor]) -> Tensor:
        """Mean over O of w1 e + strength x mean over D of w2 CE(m -> r^) + prior."""
        logits, positive, seen = self.logits(theta), self.labels, self.observed
        w1 = torch.exp((phi.user[:, None] + phi.item[None] + torch.where(positive > 0, phi.label[1], phi.label[0])) / 5)
        status = torch.where(seen > 0, phi.observed[1], phi.observed[0])
        w2 = torch.exp((phi.pair_user[:, None] + phi.pair_item[None] + status) / 5)
        of_label = torch.where(positive > 0, phi.imputed[1], phi.imputed[0])
        imputed = 1 / (1 + torch.exp(-torch.where(seen > 0, of_label, phi.imputed[2])))
        on_log = (seen * w1 * self.error(positive, logits)).sum() / seen.sum()
        on_all = (w2 * self.error(imputed, logits)).mean()
        return on_log + STRENGTH * on_all + self.prior(theta)

    def prior(self, theta: list[Tensor]) -> Tensor:
        precision = {"mean": 0.0, "user_bias.weight": L2_BIASES, "item_bias.weight": L2_BIASES}
        terms = [
            precision.get(name, L2) * values.square().sum() for name, values in zip(self.names, theta, strict=True)
        ]
        return torch.stack(terms).sum() / 2 / len(self.log)

    def probe_error(self, phi: DebiasingParameters, theta: list[Tensor]) -> Tensor:
        """The mean error on the probe after one step of plain descent on the sum over the log."""
        gradients = torch.autograd.grad(self.loss(phi, theta), theta, create_graph=True)
        step = self.look_ahead * len(self.log)
        logits = self.logits([values - step * slope for values, slope in zip(theta, gradients, strict=True)])
        labels = torch.from_numpy(self.probe.labels).double()
        return self.error(labels, logits[self.probe.users, self.probe.items]).mean()


def dense(dataset: Dataset, fitted: FittedAutoDebias) -> Dense:
    return Dense(dataset, fitted.part.look_ahead, [name for name, _ in fitted.scorer.named_parameters()])


def test_the_gradient_in_phi_is_that_through_the_look_ahead(dataset: Dataset) -> None:
    fitted, batch, theta = in_float64(dataset)
    found = torch.autograd.grad(fitted.meta_loss(batch), list(fitted.phi))
    expected = torch.autograd.grad(dense(dataset, fitted).probe_error(fitted.phi, theta), list(fitted.phi))
    for own, exact in zip(found, expected, strict=True):
        assert bool(exact.any())
        torch.testing.assert_close(own, exact, rtol=1e-5, atol=1e-9 * float(exact.abs().max()))


def test_the_gradient_in_phi_equals_finite_differences(dataset: Dataset) -> None:
    fitted, batch, theta = in_float64(dataset)
    found = torch.autograd.grad(fitted.meta_loss(batch), list(fitted.phi))
    slow, h = dense(dataset, fitted), 1e-4
    for place, gradient in enumerate(found):
        for entry in (0, len(gradient) - 1):
            ends = []
            for sign in (1, -1):
                phi = [values.detach().clone() for values in fitted.phi]
                phi[place][entry] += sign * h
                ends.append(slow.probe_error(DebiasingParameters(*phi), theta).item())
            assert float(gradient[entry]) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-9)


def test_without_a_look_ahead_phi_has_no_gradient(dataset: Dataset) -> None:
    fitted, batch, _ = in_float64(dataset, look_ahead=0.0)
    assert not any(bool(g.any()) for g in torch.autograd.grad(fitted.meta_loss(batch), list(fitted.phi)))


def test_the_loss_is_that_of_dense_tables(dataset: Dataset) -> None:
    fitted, batch, theta = in_float64(dataset)
    slow = dense(dataset, fitted)
    logits = fitted._logits(fitted.scorer, batch)
    found = fitted._loss(fitted.phi, batch, *map(log_loss_of, logits)) + slow.prior(theta)
    assert found.item() == pytest.approx(slow.loss(fitted.phi, theta).item(), rel=1e-10)


def test_pairs_by_their_codes_are_those_of_the_grid(dataset: Dataset) -> None:
    fitted, batch, _ = in_float64(dataset)
    users, items = (torch.from_numpy(codes.ravel()) for codes in np.indices(dataset.train.shape))
    listed = replace(batch, pair_users=users, pair_items=items)
    assert fitted.meta_loss(listed).item() == pytest.approx(fitted.meta_loss(batch).item(), rel=1e-9)


def test_the_look_ahead_leaves_the_predictor_where_it_is(dataset: Dataset) -> None:
    fitted, batch, theta = in_float64(dataset)
    fitted.meta_loss(batch)
    assert all(torch.equal(a, b) for a, b in zip(fitted.scorer.parameters(), theta, strict=True))


def test_without_imputed_labels_frozen_inverse_propensities_are_ips(dataset: Dataset) -> None:
    context = context_of(dataset, epochs=30)
    learner, fitted = learner_of(context, AutoDebias(imputed_strength=0.0, meta_rate=0.0))
    bayes = cp.NaiveBayes().init(context)
    ratios = bayes.at(None, None, torch.tensor([0.0, 1.0]))
    with torch.no_grad():
        fitted.phi.label.copy_(5 * ratios.log())
    fitted.finalize()
    torch.testing.assert_close(fitted.ratio, bayes.ratio)
    train(learner, context.batches(True), None, context.training)
    expected = Learner.init(context_of(dataset, epochs=30), cp.NaiveBayes(), "ips", NoImputation())
    train(expected, context.batches(), None, context.training)
    torch.testing.assert_close(learner.scorer.grid(), expected.scorer.grid(), rtol=0, atol=1e-4)


def test_with_weights_of_1_on_the_log_and_0_beside_it_is_eib(dataset: Dataset) -> None:
    """(sum over O of e + sum over all others of e^) / |D|, which is density times our loss of strength 1 / density."""
    context, label = context_of(dataset), 0.3
    learner, fitted = learner_of(context, AutoDebias())
    with torch.no_grad():
        fitted.phi.observed[1] = -1e4  # w2 = 0 on O
        fitted.phi.imputed.fill_(np.log(label / (1 - label)))
    eib = Learner.init(context_of(dataset), UnitWeights(), "dr", Constant(label))
    batch, density = context.batches(True).whole(), dataset.train.density
    logits = learner._logits(batch)
    errors = learner._errors(batch, logits.rows)
    imputed = imputed_loss(fitted.phi, batch, log_loss_of(logits.rows), log_loss_of(logits.pairs), density)
    found = density * (ips(errors, fitted.ratio) + imputed / density)
    ratio = eib.weights.ratio
    imputed = eib._imputed(batch, logits, errors)
    expected = eib._risk(batch, logits, errors, ratio, ratio[batch.rows], *imputed)
    torch.testing.assert_close(found, expected)


def test_at_the_start_weights_are_1_and_labels_the_rate_of_the_probe(dataset: Dataset) -> None:
    fitted = learner_of(context_of(dataset), AutoDebias())[1]
    assert bool((fitted.ratio == 1).all())
    facts = fitted.facts()
    rate = float(dataset.probe.labels.mean())
    assert facts["imputed_label_of_missing"] == pytest.approx(rate, abs=1e-5)
    json.dumps(facts, allow_nan=False)


def test_switched_off_it_is_the_naive_fit(dataset: Dataset) -> None:
    off = {"imputed_strength": 0.0, "meta_rate": 0.0, "dim": 3, "epochs": 20}
    own = cp.make("autodebias", **off).fit(dataset.train, dataset.probe)
    naive = cp.make("mf", dim=3, epochs=20).fit(dataset.train)
    assert np.allclose(own.predict_log(dataset.test), naive.predict_log(dataset.test), atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_negative_labels_count_more_where_positive_ones_are_likelier(seed: int) -> None:
    data = cp.simulate(200, 150, 0.1, seed=seed, selection="preference", probe_fraction=0.2).dataset
    model = cp.make("autodebias", seed=seed).fit(data.train, data.probe)
    negative, positive = (model.ratio_[data.train.labels == label].mean() for label in (0, 1))
    assert negative > 1.2 * positive
    assert model.facts_["weights"]["imputed_label_of_missing"] < data.probe.labels.mean()


@pytest.mark.parametrize("backbone", ["ncf", cp.ExposureCovariate(MatrixFactorization(dim=3))])
@pytest.mark.parametrize("batch_size", ["full", 150])
def test_it_learns_with_every_backbone_and_in_batches(backbone, batch_size, dataset: Dataset) -> None:
    model = cp.make("autodebias", backbone=backbone, batch_size=batch_size, epochs=3).fit(dataset.train, dataset.probe)
    assert model.ratio_.std() > 0.005
    assert np.isfinite(model.predict_log(dataset.test)).all()


def test_a_probe_and_labels_are_needed(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"`probe` must be given for AutoDebias"):
        cp.make("autodebias").fit(dataset.train)
    with pytest.raises(ConfigError, match="known only where the label is"):
        learner_of(context_of(dataset), AutoDebias())[1].at(None, None)
    with pytest.raises(ConfigError, match="`look_ahead`"):
        cp.make("autodebias", look_ahead=-1).fit(dataset.train, dataset.probe)
