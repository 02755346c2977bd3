"""What silence and exposure say, against loops over all pairs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import counterpoise as cp
from counterpoise import ConfigError, Dataset, Exposed, Silence
from counterpoise.learner import Learner
from counterpoise.problems import Problem
from counterpoise.risks import error
from counterpoise.silence import (
    Contrast,
    exposure_loss,
    label_contrast,
    label_given_silence,
    shrunken,
    silent_share,
)
from counterpoise.training import Training, train

CONTRAST = Contrast(1.3, 0.8)
SHAPE = (5, 4)


@pytest.fixture
def exposure() -> Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(0)) * 0.5


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def begin(data: Dataset, method: str = "counterpoise", probe: bool = True, **settings: object) -> Learner:
    model, generator = cp.make(method, **settings), torch.Generator().manual_seed(0)
    problem = Problem(
        data.train, data.probe if probe else None, model.backbone, Training(), torch.device("cpu"), generator
    )
    return Learner.begin(problem, model.weights, model.risk, model.imputation)


def test_bayes_rule_gives_the_two_factors() -> None:
    """Of 1000 pairs 400 are positive; 60 of them and 40 of the others are observed."""
    positive, negative = label_contrast(0.6, 0.4)
    assert positive == pytest.approx((60 / 400) / (100 / 1000))
    assert negative == pytest.approx((40 / 600) / (100 / 1000))
    assert label_contrast(0.6, 0.4).log_odds == pytest.approx(math.log(0.6 / 0.4) - math.log(0.4 / 0.6))


def test_a_contrast_within_its_standard_error_is_none() -> None:
    assert shrunken(0.3, 0.1) == 0.0
    assert shrunken(0.0, 0.1) == 0.0
    assert shrunken(-0.4, 0.04) == pytest.approx(-0.4 * (1 - 0.04 / 0.16))


def test_the_gradient_of_silence_is_that_of_the_log_loss_against_its_label(exposure: Tensor, logits: Tensor) -> None:
    """-log(1 - p m(R)) has the gradient R - r~, r~ = P(label = 1 | not observed) held fixed."""
    mixed = CONTRAST.negative + (CONTRAST.positive - CONTRAST.negative) * torch.sigmoid(logits)
    (gradient,) = torch.autograd.grad(-torch.log(1 - exposure * mixed).sum(), logits)
    label = label_given_silence(torch.sigmoid(logits), exposure, CONTRAST).detach()
    (expected,) = torch.autograd.grad(error(label, logits).sum(), logits)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_the_label_given_silence_is_that_of_counting(exposure: Tensor, logits: Tensor) -> None:
    chance, p = float(torch.sigmoid(logits[2, 1])), float(exposure[2, 1])
    silent_positive, silent_negative = chance * (1 - p * 1.3), (1 - chance) * (1 - p * 0.8)
    label = label_given_silence(torch.sigmoid(logits), exposure, CONTRAST)[2, 1]
    assert float(label) == pytest.approx(silent_positive / (silent_positive + silent_negative))
    assert float(label) < chance


def test_risk_and_exposure_loss_are_the_likelihood_of_the_whole_matrix(exposure: Tensor, logits: Tensor) -> None:
    """Up to a constant: the gradient is that of a loop over all pairs, observed with their labels or silent."""
    observed = {(0, 1): 1.0, (2, 3): 0.0, (4, 0): 1.0, (3, 3): 1.0}
    total = torch.zeros(())
    for user, item in np.ndindex(*SHAPE):
        chance, p = torch.sigmoid(logits[user, item]), exposure[user, item]
        if (user, item) in observed:
            label = observed[user, item]
            total = total - torch.log(chance * p * 1.3 if label else (1 - chance) * p * 0.8)
        else:
            total = total - torch.log(1 - chance * p * 1.3 - (1 - chance) * p * 0.8)
    (expected,) = torch.autograd.grad(total / len(observed), logits)

    place = torch.tensor([user * SHAPE[1] + item for user, item in observed])
    labels, on_pairs, share = torch.tensor(list(observed.values())), logits.flatten(), silent_share(exposure, CONTRAST)
    contrast, density = CONTRAST.log_odds, len(observed) / logits.numel()
    loss = error(labels, on_pairs[place] + contrast).mean()
    loss = loss + exposure_loss(on_pairs[place], share.flatten()[place], on_pairs, share.flatten(), density, contrast)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient, expected, atol=1e-6)


def test_equal_factors_say_nothing(exposure: Tensor, logits: Tensor) -> None:
    on_pairs, share = logits.flatten(), silent_share(exposure, Contrast(1.0, 1.0)).flatten()
    loss = exposure_loss(on_pairs[:3], share[:3], on_pairs, share, 0.15, 0.0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient, torch.zeros(SHAPE), atol=1e-7)


def test_no_pair_is_certain_to_be_observed(logits: Tensor) -> None:
    share = silent_share(torch.ones(SHAPE), CONTRAST)
    assert torch.isfinite(-torch.log(1 - share * torch.sigmoid(30 + logits))).all()


def test_on_a_plain_backbone_exposure_is_even(dataset: Dataset) -> None:
    """Then the contrast is that of the label rates of log and probe, shrunken."""
    learner = begin(dataset, "mnar")
    assert dataset.probe is not None
    rate = (dataset.probe.labels.sum() + 1) / (len(dataset.probe) + 2)
    log_rate, rows = float(dataset.train.labels.mean()), len(dataset.probe)
    contrast = math.log(log_rate / (1 - log_rate)) - math.log(rate / (1 - rate))
    assert learner.imputing.offset == pytest.approx(shrunken(contrast, 1 / (rows * rate * (1 - rate))), rel=1e-5)
    assert learner.scorer.exposure(None, None) is None


def test_without_a_probe_silence_says_nothing(dataset: Dataset) -> None:
    learner = begin(dataset, "mnar", probe=False)
    assert learner.imputing.offset == 0
    assert learner.imputing.extra_loss(learner.scorer, learner.log.whole()) is None
    silent, plain = (cp.make(name, epochs=4).fit(dataset.train) for name in ("mnar", "mf"))
    assert np.array_equal(silent.predict_log(dataset.test), plain.predict_log(dataset.test))


def test_a_given_rate_needs_no_probe(dataset: Dataset) -> None:
    learner = begin(dataset, "mnar", probe=False, rate=0.25)
    log_rate = float(dataset.train.labels.mean())
    assert learner.imputing.offset == pytest.approx(math.log(log_rate / (1 - log_rate)) - math.log(0.25 / 0.75))


def test_silence_lowers_what_was_not_observed(dataset: Dataset) -> None:
    """The mean prediction over all pairs falls from the log's level towards the probe's."""
    plain, silent = (cp.make(name, epochs=60).fit(dataset.train, probe=dataset.probe) for name in ("mf", "mnar"))
    levels = [float(torch.sigmoid(model.scorer_.grid()).mean()) for model in (plain, silent)]
    assert dataset.probe is not None
    assert levels[1] < levels[0] - 0.05
    assert abs(levels[1] - dataset.probe.labels.mean()) < abs(levels[0] - dataset.probe.labels.mean())


def test_the_exposure_loss_moves_the_backbone_and_not_the_voices(dataset: Dataset) -> None:
    learner = begin(dataset)
    batches = Problem(
        dataset.train, None, cp.MatrixFactorization(), Training(), torch.device("cpu"), torch.Generator()
    ).batches(pairs=True)
    loss = learner.imputing.extra_loss(learner.scorer, batches.whole())
    assert loss is not None
    voices, factors = learner.scorer.get_parameter("voices"), learner.scorer.get_parameter("inner.user_factors.weight")
    gradients = torch.autograd.grad(loss, [voices, factors], allow_unused=True)
    assert gradients[0] is None
    assert gradients[1].abs().max() > 0


def test_the_exposed_logit_is_that_of_a_loop(dataset: Dataset) -> None:
    scorer = Exposed(exposure_dim=2).build(dataset.train, torch.Generator().manual_seed(0))
    with torch.no_grad():
        scorer.get_parameter("voices").copy_(torch.tensor([0.5, -1.0, 2.0]))
        grid, own = scorer.grid(), scorer.own().grid()
        users, items = scorer.get_buffer("user_exposure"), scorer.get_buffer("item_exposure")
        for user, item in ((0, 0), (7, 11), (59, 49)):
            inner = float(users[user, 1:] @ items[item, 1:])
            said = 0.5 * users[user, 0] - items[item, 0] + 2 * inner
            assert float(grid[user, item]) == pytest.approx(float(own[user, item] + said), abs=1e-4)
            assert float(scorer(torch.tensor([user]), torch.tensor([item]))) == pytest.approx(
                float(grid[user, item]), abs=1e-4
            )
            chance = torch.sigmoid(users[user, 0] + items[item, 0] + inner)
            assert float(scorer.exposure(None, None)[user * 50 + item]) == pytest.approx(float(chance), abs=1e-5)


def test_exposure_is_known_up_to_the_fit(dataset: Dataset) -> None:
    """The mean over all pairs is about the density, and observed pairs have more of it."""
    scorer = Exposed().build(dataset.train, torch.Generator().manual_seed(0))
    everywhere = scorer.exposure(None, None)
    place = scorer.place(torch.from_numpy(dataset.train.users), torch.from_numpy(dataset.train.items))
    assert float(everywhere.mean()) == pytest.approx(dataset.train.density, rel=0.2)
    assert float(everywhere[place].mean()) > 1.3 * float(everywhere.mean())


def test_with_voices_at_zero_the_backbone_speaks_alone(dataset: Dataset) -> None:
    exposed = Exposed().build(dataset.train, torch.Generator().manual_seed(0))
    plain = cp.MatrixFactorization().build(dataset.train, torch.Generator().manual_seed(0))
    assert torch.equal(exposed.grid(), plain.grid())


def test_labels_decide_whether_exposure_speaks() -> None:
    """Users who rate what they like give the pair's own exposure a positive voice; where chance decides, none."""
    voices = {}
    for selection in ("mixed", "popularity"):
        data = cp.simulate(150, 120, density=0.15, selection=selection).dataset
        voices[selection] = begin_and_train(data)
    assert voices["mixed"][2] > 0.3
    assert np.abs(voices["popularity"]).max() < 0.25


def begin_and_train(data: Dataset) -> np.ndarray:
    model = cp.make("counterpoise", epochs=60).fit(data.train, probe=data.probe)
    return model.scorer_.get_parameter("voices").numpy()


def test_every_parameter_and_voice_moves(dataset: Dataset) -> None:
    learner = begin(dataset)
    before = [tensor.clone() for tensor in learner.state()]
    problem = Problem(
        dataset.train, None, cp.MatrixFactorization(), Training(epochs=3), torch.device("cpu"), torch.Generator()
    )
    train(learner, problem.batches(learner.uses_pairs), None, problem.training)
    for old, new in zip(before, learner.state(), strict=True):
        assert not (old == new).all()


def test_batches_with_drawn_pairs_work_too(dataset: Dataset) -> None:
    model = cp.make("counterpoise", epochs=30, batch_size=200, pairs=8).fit(dataset.train, probe=dataset.probe)
    exact = cp.make("counterpoise", epochs=30).fit(dataset.train, probe=dataset.probe)
    assert np.corrcoef(model.predict_log(dataset.test), exact.predict_log(dataset.test))[0, 1] > 0.8


def test_the_backbone_inside_can_be_any(dataset: Dataset, tmp_path: Path) -> None:
    model = cp.make("counterpoise", epochs=3, backbone=Exposed("ncf")).fit(dataset.train, probe=dataset.probe)
    model.save(tmp_path / "run")
    assert np.array_equal(cp.load_model(tmp_path / "run").predict_log(dataset.test), model.predict_log(dataset.test))


@pytest.mark.parametrize("settings", [{"rate": 0.0}, {"strength": -1.0}, {"exposure_dim": 0}, {"l2_voices": -1.0}])
def test_settings_out_of_range_are_named(settings: dict[str, float], dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(settings))}` must be"):
        cp.make("counterpoise", **settings).fit(dataset.train, probe=dataset.probe)


def test_one_label_alone_is_refused(dataset: Dataset) -> None:
    liked = dataset.train.take(dataset.train.labels == 1)
    with pytest.raises(ConfigError, match="both labels"):
        cp.DebiasedRecommender(imputation=Silence()).fit(liked, probe=dataset.probe)
