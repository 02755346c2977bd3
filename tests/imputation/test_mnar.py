"""The MNAR likelihood and the exposure covariate, against loops over all pairs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise import ConfigError, Dataset, ExposureCovariate, MNARLikelihood
from counterpoise.imputation.mnar import LabelPropensities, exposure_loss, label_propensities
from counterpoise.models.base import Scorer
from counterpoise.probability import shrink_by_error
from counterpoise.risks import error
from counterpoise.training.contracts import FitContext
from counterpoise.training.learner import Learner
from counterpoise.training.loop import Training, train

OF = LabelPropensities(positive=0.4, negative=0.2)
SHAPE = (5, 4)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def init(data: Dataset, method: str = "counterpoise", probe: bool = True, **settings: object) -> Learner:
    model, generator = cp.make(method, **settings), torch.Generator().manual_seed(0)
    context = FitContext(
        data.train, data.probe if probe else None, model.backbone, Training(), torch.device("cpu"), generator
    )
    return Learner.init(context, model.weights, model.risk, model.imputation)


def pretrained(backbone: ExposureCovariate, log: cp.FeedbackLog) -> Scorer:
    generator = torch.Generator().manual_seed(0)
    return FitContext(log, None, backbone, Training(), torch.device("cpu"), generator).build(backbone)


def test_bayes_rule_gives_the_two_propensities() -> None:
    """Of 1000 pairs 400 are positive; 60 of them and 40 of the others are observed."""
    found = label_propensities(0.1, log_rate=0.6, rate=0.4)
    assert found == pytest.approx((60 / 400, 40 / 600))
    assert found.log_odds_ratio == pytest.approx(math.log(0.6 / 0.4) - math.log(0.4 / 0.6))
    assert label_propensities(0.9, log_rate=0.9, rate=0.1).positive == 0.95


def test_a_log_odds_ratio_within_its_error_is_zero() -> None:
    assert shrink_by_error(0.3, 0.05) == 0.0
    assert shrink_by_error(0.0, 0.1) == 0.0
    assert shrink_by_error(-0.4, 0.04) == pytest.approx(-0.4 * (1 - 2 * 0.04 / 0.16))


def test_unobserved_gradient_is_log_loss_against_the_imputed_label(logits: Tensor) -> None:
    """-log(1 - m(R)) has the gradient R - r~, r~ = P(label = 1 | not observed) held fixed."""
    mixed = OF.negative + (OF.positive - OF.negative) * torch.sigmoid(logits)
    (gradient,) = torch.autograd.grad(-torch.log(1 - mixed).sum(), logits)
    label = (torch.sigmoid(logits) * (1 - OF.positive) / (1 - mixed)).detach()
    (expected,) = torch.autograd.grad(error(label, logits).sum(), logits)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_risk_and_exposure_loss_are_the_full_likelihood(logits: Tensor) -> None:
    """Up to a constant: the gradient is that of a loop over all pairs, observed with their labels or not."""
    observed = {(0, 1): 1.0, (2, 3): 0.0, (4, 0): 1.0, (3, 3): 1.0}
    total = torch.zeros(())
    for user, item in np.ndindex(*SHAPE):
        chance = torch.sigmoid(logits[user, item])
        if (user, item) in observed:
            total = total - torch.log(0.4 * chance if observed[user, item] else 0.2 * (1 - chance))
        else:
            total = total - torch.log(1 - 0.4 * chance - 0.2 * (1 - chance))
    (expected,) = torch.autograd.grad(total / len(observed), logits)

    place = torch.tensor([user * SHAPE[1] + item for user, item in observed])
    labels, on_pairs = torch.tensor(list(observed.values())), logits.flatten()
    loss = error(labels, on_pairs[place] + OF.log_odds_ratio).mean()
    loss = loss + exposure_loss(on_pairs[place], on_pairs, len(observed) / logits.numel(), OF)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_equal_label_propensities_have_no_gradient(logits: Tensor) -> None:
    loss = exposure_loss(logits.flatten()[:3], logits.flatten(), 0.15, LabelPropensities(0.3, 0.3))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient, torch.zeros(SHAPE), atol=1e-7)


def test_the_log_odds_ratio_is_shrunken_by_its_error(dataset: Dataset) -> None:
    learner = init(dataset, "mnar")
    assert dataset.probe is not None
    rate = (dataset.probe.labels.sum() + 1) / (len(dataset.probe) + 2)
    log_rate, rows = float(dataset.train.labels.mean()), len(dataset.probe)
    ratio = math.log(log_rate / (1 - log_rate)) - math.log(rate / (1 - rate))
    assert learner.imputation.offset == pytest.approx(shrink_by_error(ratio, 1 / (rows * rate * (1 - rate))), rel=1e-5)


def test_without_a_probe_the_missingness_model_is_inactive(dataset: Dataset) -> None:
    learner = init(dataset, "mnar", probe=False)
    assert learner.imputation.offset == 0
    assert not learner.uses_pairs
    batch = learner.log.whole()
    assert learner.imputation.extra_loss(batch, torch.zeros(3), torch.zeros(9)) is None
    mnar, mf = (cp.make(name, epochs=4).fit(dataset.train) for name in ("mnar", "mf"))
    assert np.array_equal(mnar.predict_log(dataset.test), mf.predict_log(dataset.test))


def test_a_given_rate_needs_no_probe(dataset: Dataset) -> None:
    learner = init(dataset, "mnar", probe=False, rate=0.25)
    log_rate = float(dataset.train.labels.mean())
    assert learner.imputation.offset == pytest.approx(math.log(log_rate / (1 - log_rate)) - math.log(0.25 / 0.75))


def test_the_missingness_model_lowers_unobserved_predictions(dataset: Dataset) -> None:
    """The mean prediction over all pairs falls from the log's label rate towards the probe's."""
    mf, mnar = (cp.make(name, epochs=60).fit(dataset.train, probe=dataset.probe) for name in ("mf", "mnar"))
    rates = [float(torch.sigmoid(model.scorer_.grid()).mean()) for model in (mf, mnar)]
    assert dataset.probe is not None
    assert rates[1] < rates[0] - 0.05
    assert abs(rates[1] - dataset.probe.labels.mean()) < abs(rates[0] - dataset.probe.labels.mean())


def test_the_exposure_loss_does_not_move_exposure_coefficients(dataset: Dataset) -> None:
    learner = init(dataset)
    batches = FitContext(
        dataset.train, None, cp.MatrixFactorization(), Training(), torch.device("cpu"), torch.Generator()
    ).batches(pairs=True)
    batch = batches.whole()
    logits = learner._logits(batch)
    loss = learner.imputation.extra_loss(batch, logits.base_rows, logits.base_pairs)
    assert loss is not None
    exposure_coefficients, factors = (
        learner.scorer.get_parameter("exposure_coefficients"),
        learner.scorer.get_parameter("inner.user_factors.weight"),
    )
    gradients = torch.autograd.grad(loss, [exposure_coefficients, factors], allow_unused=True)
    assert gradients[0] is None
    assert gradients[1].abs().max() > 0


def test_the_logit_with_exposure_is_that_of_a_loop(dataset: Dataset) -> None:
    scorer = pretrained(ExposureCovariate(exposure_dim=2), dataset.train)
    with torch.no_grad():
        scorer.get_parameter("exposure_coefficients").copy_(torch.tensor([0.5, -1.0, 2.0]))
        grid, base = scorer.grid(), scorer.base().grid()
        users, items = scorer.get_buffer("user_exposure"), scorer.get_buffer("item_exposure")
        for user, item in ((0, 0), (7, 11), (59, 49)):
            inner = float(users[user, 1:] @ items[item, 1:])
            exposure = 0.5 * users[user, 0] - items[item, 0] + 2 * inner
            assert float(grid[user, item]) == pytest.approx(float(base[user, item] + exposure), abs=1e-4)
            assert float(scorer(torch.tensor([user]), torch.tensor([item]))) == pytest.approx(
                float(grid[user, item]), abs=1e-4
            )


def test_the_parts_of_exposure_vary_by_one_over_all_pairs() -> None:
    log = cp.simulate(80, 70, density=0.3, seed=0).dataset.train
    scorer = pretrained(ExposureCovariate(), log)
    users, items = scorer.get_buffer("user_exposure"), scorer.get_buffer("item_exposure")
    for part in (users[:, 0], items[:, 0], users[:, 1:] @ items[:, 1:].T):
        assert float(part.std(correction=0)) == pytest.approx(1, abs=1e-3)


def test_equally_active_users_have_no_exposure_effect() -> None:
    users, items = np.repeat(np.arange(20), 5), np.arange(100) % 10
    log = cp.FeedbackLog.from_arrays(users, items, np.arange(100) % 3 == 0)
    scorer = pretrained(ExposureCovariate(), log)
    assert float(scorer.get_buffer("user_exposure")[:, 0].std()) < 0.5


def test_zero_exposure_coefficients_leave_the_backbone_alone(dataset: Dataset) -> None:
    exposed = pretrained(ExposureCovariate(), dataset.train)
    base = cp.MatrixFactorization().build(dataset.train, torch.Generator().manual_seed(0))
    assert torch.equal(exposed.grid(), base.grid())


def test_labels_decide_the_exposure_coefficients() -> None:
    """Users who rate what they like give the pair's own part a positive coefficient; where chance decides, none."""
    exposure_coefficients = {}
    for selection in ("mixed", "popularity"):
        data = cp.simulate(150, 120, density=0.15, selection=selection).dataset
        exposure_coefficients[selection] = fitted_coefficients(data)
    assert exposure_coefficients["mixed"][2] > 0.3
    assert np.abs(exposure_coefficients["popularity"]).max() < 0.25


def fitted_coefficients(data: Dataset) -> np.ndarray:
    model = cp.make("counterpoise", side_features=False, epochs=60, device="cpu").fit(data.train, probe=data.probe)
    return model.scorer_.exposure_coefficients.numpy()


def test_every_parameter_moves(dataset: Dataset) -> None:
    learner = init(dataset)
    before = [tensor.clone() for tensor in learner.state()]
    context = FitContext(
        dataset.train, None, cp.MatrixFactorization(), Training(epochs=3), torch.device("cpu"), torch.Generator()
    )
    train(learner, context.batches(learner.uses_pairs), None, context.training)
    for old, new in zip(before, learner.state(), strict=True):
        assert not (old == new).all()


def test_drawn_pairs_give_the_exposure_loss_on_average(dataset: Dataset) -> None:
    learner, device = init(dataset), torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    exact, drawn = (
        FitContext(dataset.train, None, cp.MatrixFactorization(), Training(pairs=pairs), device, generator).batches(
            True
        )
        for pairs in ("all", 8)
    )
    with torch.no_grad():
        learner.scorer.base().get_parameter("user_bias.weight").normal_(generator=generator)
        logits = [learner._logits(batches.whole()) for batches in (exact, *[drawn] * 200)]
        batch = exact.whole()
        whole, *losses = (learner.imputation.extra_loss(batch, each.base_rows, each.base_pairs) for each in logits)
        losses = torch.stack(losses)
    assert float(losses.mean()) == pytest.approx(float(whole), abs=4 * float(losses.std()) / 200**0.5)


def test_the_backbone_inside_can_be_any(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("counterpoise", epochs=3, backbone=ExposureCovariate("ncf"), device="cpu")
    model.fit(dataset.train, probe=dataset.probe)
    model.save(tmp_path / "run")
    assert np.array_equal(cp.load_model(tmp_path / "run").predict_log(dataset.test), model.predict_log(dataset.test))


def test_an_exposure_covariate_replaces_the_one_of_the_method() -> None:
    given = cp.make("counterpoise", backbone=ExposureCovariate(cp.MatrixFactorization(dim=8), exposure_dim=2))
    assert given.to_config() == cp.make("counterpoise", dim=8, side_features=False, exposure_dim=2).to_config()


def test_an_exposure_covariate_inside_another_is_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`backbone` of ExposureCovariate must not be one itself"):
        cp.make("mf", backbone=ExposureCovariate(ExposureCovariate())).fit(dataset.train)


@pytest.mark.parametrize(
    "settings", [{"rate": 0.0}, {"imputation__strength": -1.0}, {"exposure_dim": 0}, {"l2_exposure": -1.0}]
)
def test_settings_out_of_range_are_named(settings: dict[str, float], dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(settings)).rpartition('__')[2]}` must be"):
        cp.make("counterpoise", **settings).fit(dataset.train, probe=dataset.probe)


def test_one_label_alone_is_refused(dataset: Dataset) -> None:
    liked = dataset.train.take(dataset.train.labels == 1)
    with pytest.raises(ConfigError, match="positive and negative labels"):
        cp.DebiasedRecommender(imputation=MNARLikelihood()).fit(liked, probe=dataset.probe)


def test_direct_risk_refuses_the_mnar_likelihood(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`imputation` must impute errors for risk='direct'"):
        cp.make("mnar", risk="direct").fit(dataset.train, probe=dataset.probe)


@pytest.mark.parametrize("method", ["dr-jl", "ips-v2", "asips"])
def test_other_methods_take_an_exposure_covariate(method: str, dataset: Dataset) -> None:
    model = cp.make(method, backbone=ExposureCovariate(), epochs=4).fit(dataset.train, probe=dataset.probe)
    assert model.scorer_.get_parameter("exposure_coefficients").abs().min() > 0
