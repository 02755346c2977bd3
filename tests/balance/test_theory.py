"""The generalization bound against arithmetic, the norm against known functions, and both on simulated logs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.special import expit

import counterpoise as cp
from counterpoise.balance.features import observed_pairs
from counterpoise.balance.functions import KernelFunctions
from counterpoise.balance.kernels import Exponential, Gaussian
from counterpoise.balance.population import Pairs
from counterpoise.balance.theory import GeneralizationBound, predictor_bound, predictor_norm
from counterpoise.errors import ConfigError, DataError

ETA = 4 / math.exp(2)  # log(4 / eta) = 2, so that sqrt(log(4 / eta) / (2 |D|)) = 1 / sqrt(|D|)
RESIDUALS = ("residual", "weighted_residual")
CONSTANTS = {"risk": 0.5, "bias": 0.1, "largest_weight": 3.0, "norm": 2.0, "n_pairs": 10_000, "eta": ETA}


def tables(users=12, items=9, seed=0):
    rng = np.random.default_rng(seed)
    return Pairs(torch.tensor(rng.normal(size=(users, 2))), torch.tensor(rng.normal(size=(items, 1))))


def everything(pairs):
    users, items = len(pairs.users), len(pairs.items)
    return pairs.at(torch.arange(users).repeat_interleave(items), torch.arange(items).repeat(users))


def world(seed, shape=(30, 20)):
    """A simulated log, its features, a fixed predictor, the errors on all pairs."""
    found = cp.simulate(*shape, density=0.3, seed=seed)
    pairs = Pairs(torch.from_numpy(found.user_features), torch.from_numpy(found.item_features))
    logits = 0.8 * found.user_features @ found.item_features.T / np.sqrt(3)
    errors = np.logaddexp(0, logits) - np.asarray(found.labels) * logits
    return found, pairs, observed_pairs(found.dataset.train, pairs), logits, errors


def test_ips_bound_by_hand():
    bound = GeneralizationBound(**CONSTANTS, kernel_bound=1.5, lipschitz=2.0, error_at_zero=4.0)
    # L M B = 2 * 2 * 1.5 = 6, sqrt(|D|) = 100
    assert bound.complexity == pytest.approx(2 * 3 * 6 / 100)  # 2 C L M B / sqrt(|D|) = 0.36
    assert bound.confidence == pytest.approx(5 * 3 * (4 + 6) / 100)  # 5 C (E0 + L M B) / sqrt(|D|) = 1.5
    assert bound.approximation == 0
    assert bound.value == pytest.approx(0.5 + 0.1 + 0.36 + 1.5)
    assert not bound.vacuous  # 2.46 < E0 + L M B = 10


def test_doubly_robust_bound_by_hand():
    bound = GeneralizationBound(
        **CONSTANTS, kernel_bound=1.5, lipschitz=2.0, error_at_zero=4.0, doubly_robust=True, residual=0.01,
        weighted_residual=0.02,
    )  # fmt: skip
    # 1 + 2 C = 7
    assert bound.complexity == pytest.approx(7 * 2 * 6 / 100)  # 0.84
    assert bound.confidence == pytest.approx(7 * 5 * 10 / 100)  # 3.5
    assert bound.approximation == pytest.approx(2 * 2 * (0.01 + 0.02))  # 0.12
    assert bound.value == pytest.approx(0.5 + 0.1 + 0.84 + 3.5 + 0.12)


def test_defaults_are_those_of_the_log_loss():
    bound = GeneralizationBound(**CONSTANTS)
    logits, labels = np.linspace(-8, 8, 1001), np.array([[0.0], [1.0]])
    errors = np.logaddexp(0, logits) - labels * logits
    assert bound.error_at_zero == pytest.approx(errors[:, 500].max())
    assert abs(np.diff(errors) / np.diff(logits)).max() <= bound.lipschitz
    assert abs(np.diff(errors) / np.diff(logits)).max() == pytest.approx(bound.lipschitz, abs=1e-3)


@pytest.mark.parametrize("doubly_robust", [False, True])
@pytest.mark.parametrize(
    "name",
    ["risk", "bias", "largest_weight", "norm", "kernel_bound", "lipschitz", "error_at_zero", *RESIDUALS],
)
def test_bound_grows_with_every_constant(name, doubly_robust):
    base = {**CONSTANTS, "kernel_bound": 1.0, "lipschitz": 1.0, "error_at_zero": 0.7, "residual": 0.1}
    base |= {"weighted_residual": 0.1, "doubly_robust": doubly_robust}
    assert GeneralizationBound(**{**base, name: 2 * base[name]}).value > GeneralizationBound(**base).value


@pytest.mark.parametrize("change", [{"n_pairs": 20_000}, {"eta": 0.9}])
def test_bound_falls_with_pairs_and_failure_probability(change):
    assert GeneralizationBound(**{**CONSTANTS, **change}).value < GeneralizationBound(**CONSTANTS).value


def test_sign_of_the_bias_does_not_matter():
    assert GeneralizationBound(**{**CONSTANTS, "bias": -0.1}).value == GeneralizationBound(**CONSTANTS).value


def test_every_term_is_shown():
    bound = GeneralizationBound(**CONSTANTS)
    shown = json.loads(json.dumps(bound.to_dict()))
    assert sum(shown["terms"].values()) == pytest.approx(shown["value"])
    assert str(bound) == bound.summary()
    for name, term in bound.terms.items():
        assert name in str(bound)
        assert f"{term:.4f}" in str(bound)
    assert f"{bound.value:.4f}" in str(bound)
    assert "weak" in str(bound)
    assert "vacuous" in str(GeneralizationBound(**{**CONSTANTS, "n_pairs": 10}))
    assert "below" in str(GeneralizationBound(**{**CONSTANTS, "n_pairs": 10**9}))
    assert "(1 + 2 C)" in str(GeneralizationBound(**CONSTANTS, doubly_robust=True))


@pytest.mark.parametrize("kernel", [Gaussian(2.0), Exponential(1.0)])
def test_norm_of_a_known_combination_of_kernels(kernel):
    pairs = tables()
    rows = everything(pairs).features(slice(None))
    centres, alpha = rows[[3, 50, 77]], torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    logits = (kernel(rows, centres) @ alpha).reshape(12, 9)
    found = predictor_norm(logits, pairs, kernel)
    assert found.interpolated
    assert found.n_centres == found.n_measured == found.n_pairs == 12 * 9
    assert found.norm == pytest.approx(math.sqrt(alpha @ kernel(centres, centres) @ alpha), rel=1e-4)
    assert found.residual_max < 1e-5


def test_interpolant_has_the_smallest_norm():
    """f'K^-1 f is the least norm: of k at a point outside D it leaves out what D cannot see."""
    pairs, kernel = tables(), Gaussian(2.0)
    rows, outside = everything(pairs).features(slice(None)), torch.tensor([[3.0, 3.0, 3.0]], dtype=torch.float64)
    found = predictor_norm(kernel(rows, outside).reshape(12, 9), pairs, kernel)
    assert 0 < found.norm < 1  # the norm of k(., outside) is 1


def test_regression_nears_the_interpolant_as_ridge_falls():
    pairs, kernel = tables(), Exponential(1.0)
    logits = np.sin(pairs.users[:, :1].numpy()) * np.cos(pairs.items[:, 0].numpy())
    exact = predictor_norm(logits, pairs, kernel)
    found = [
        predictor_norm(logits, pairs, kernel, n_centres=108, ridge=ridge, interpolate_up_to=0)
        for ridge in (1e-1, 1e-4, 1e-9)
    ]
    assert not found[0].interpolated
    norms, residuals = [one.norm for one in found], [one.residual_rms for one in found]
    assert norms == sorted(norms)
    assert residuals == sorted(residuals, reverse=True)
    assert norms[-1] == pytest.approx(exact.norm, rel=0.02)
    for one in found:
        assert one.residual_mean <= one.residual_rms <= one.residual_max


def test_logits_may_be_a_table_or_a_function():
    pairs, kernel = tables(), Gaussian(2.0)
    table = np.random.default_rng(0).normal(size=(12, 9))
    first = predictor_norm(table, pairs, kernel, interpolate_up_to=0)
    assert predictor_norm(lambda users, items: table[users, items], pairs, kernel, interpolate_up_to=0) == first
    single = predictor_norm(table, Pairs(pairs.users.float(), pairs.items.float()), kernel, interpolate_up_to=0)
    assert single.residual_rms == pytest.approx(first.residual_rms, rel=1e-2)


def test_unexplained_predictor_leaves_a_residual():
    pairs = Pairs(torch.zeros(6, 1), torch.tensor([[0.0], [1.0]]))  # users have the same features
    logits = np.repeat([[1.0], [-1.0]], 3, axis=0) * np.ones(2)
    found = predictor_norm(logits, pairs, Gaussian(1.0), observed=pairs.at(torch.tensor([0, 5]), torch.tensor([0, 1])))
    assert found.norm == pytest.approx(0, abs=1e-6)
    assert found.residual_mean == pytest.approx(1)
    assert found.residual_weighted == pytest.approx(1)


def test_weighted_residual_over_all_pairs_is_the_mean():
    pairs = tables()
    everywhere, logits = everything(pairs), np.random.default_rng(0).normal(size=(12, 9))
    found = predictor_norm(logits, pairs, Gaussian(2.0), observed=everywhere, n_centres=20, interpolate_up_to=0)
    assert found.residual_mean > 0.1
    assert found.residual_weighted == pytest.approx(found.residual_mean)
    first = np.zeros(108)
    first[:9] = 2.0  # any scale, and some may be 0
    of_one_user = pairs.at(torch.zeros(9, dtype=torch.long), torch.arange(9))
    options = {"n_centres": 20, "interpolate_up_to": 0}
    some = predictor_norm(logits, pairs, Gaussian(2.0), observed=everywhere, weights=first, **options)
    alone = predictor_norm(logits, pairs, Gaussian(2.0), observed=of_one_user, **options)
    assert some.residual_weighted == pytest.approx(alone.residual_weighted)


def test_bound_is_vacuous_from_the_largest_loss_of_such_a_predictor_on():
    known = {"bias": 0.0, "largest_weight": 1.0, "norm": 1.0, "n_pairs": 10**12, "residual": 0.5}
    rest = GeneralizationBound(risk=0.0, **known)
    largest = rest.error_at_zero + rest.lipschitz * (1.0 + 0.5)
    assert rest.largest_error == pytest.approx(rest.error_at_zero + rest.lipschitz)
    for excess, words in ((-0.01, "The bound is weak"), (0.01, f"no loss of such a predictor exceeds {largest:.4g}")):
        bound = GeneralizationBound(risk=largest - rest.value + excess, **known)
        assert bound.vacuous == (excess > 0)
        assert words in bound.summary()


def test_measured_constants_are_those_of_the_log():
    found, _, observed, logits, errors = world(0)
    log = found.dataset.train
    weights = np.random.default_rng(0).random(len(log))
    bound = predictor_bound(logits, log.labels, observed, weights, ideal_loss=errors.mean(), kernel=Gaussian(3.0))
    paper = 30 * 20 * weights / weights.sum()  # the w of (1/|D|) sum o w e
    assert bound.risk == pytest.approx((paper * errors[log.users, log.items]).sum() / (30 * 20))
    assert bound.largest_weight == pytest.approx(paper.max())
    assert bound.bias == pytest.approx(abs(bound.risk - errors.mean()))
    assert bound.predictor is not None
    assert bound.norm == bound.predictor.norm
    assert bound.residual == bound.predictor.residual_mean
    assert bound.weighted_residual == bound.predictor.residual_weighted
    assert bound.weighted_residual > 0
    assert json.dumps(bound.to_dict())


def test_doubly_robust_risk_adds_imputed_errors():
    found, _, observed, logits, errors = world(0)
    log = found.dataset.train
    imputed = np.random.default_rng(0).random((30, 20))
    bound = predictor_bound(logits, log.labels, observed, None, ideal_loss=errors.mean(), imputed_errors=imputed)
    seen = (errors - imputed)[log.users, log.items]
    assert bound.doubly_robust
    assert bound.risk == pytest.approx(imputed.mean() + seen.mean())


@pytest.mark.parametrize("seed", range(4))
def test_bound_exceeds_the_ideal_loss_of_a_simulated_log(seed):
    found, pairs, observed, logits, errors = world(seed)
    weights = KernelFunctions(Gaussian(3.0), 10, candidates=100).fit(pairs).balance(observed).weights
    labels, ideal = found.dataset.train.labels, float(errors.mean())
    for imputed in (None, np.full((30, 20), math.log(2))):
        bound = predictor_bound(logits, labels, observed, weights, ideal_loss=ideal, imputed_errors=imputed)
        assert bound.value >= ideal
        assert bound.risk + bound.bias >= ideal - 1e-12  # true of any numbers: the bias of the sample says it all


def test_terms_without_bias_cover_the_draw_of_the_log():
    """With the inverse of the true propensity the expected risk has no bias: the rest must bound the ideal loss."""
    found, pairs, _, logits, errors = world(0)
    chance, rng = np.asarray(found.propensity), np.random.default_rng(0)
    norm = predictor_norm(logits, pairs, Gaussian(3.0)).norm
    covered = []
    for _ in range(200):
        risk = float(((rng.random(chance.shape) < chance) / chance * errors).mean())
        bound = GeneralizationBound(
            risk=risk, bias=0.0, largest_weight=1 / chance.min(), norm=norm, n_pairs=chance.size, eta=0.05
        )
        covered.append(bound.value >= errors.mean())
    assert np.mean(covered) >= 0.95


def test_approximation_term_covers_replacing_the_predictor():
    """Ideal loss, risk and bias of g = f - residual differ from those of f by at most what the term counts."""
    rng = np.random.default_rng(0)
    logits, other, labels = rng.normal(size=500), rng.normal(size=500), rng.integers(0, 2, 500)
    shares = rng.random(500) * (rng.random(500) < 0.3)
    shares /= shares.sum()

    def parts(f):
        error = np.logaddexp(0, f) - labels * f
        return error.mean(), shares @ error, abs(shares @ error - error.mean())

    mean, weighted = abs(logits - other).mean(), shares @ abs(logits - other)
    (ideal, risk, bias), (ideal_other, risk_other, bias_other) = parts(logits), parts(other)
    assert abs(ideal - ideal_other) <= mean
    assert abs(risk - risk_other) <= weighted
    assert abs(bias - bias_other) <= mean + weighted
    bound = GeneralizationBound(**CONSTANTS, residual=mean, weighted_residual=weighted)
    assert (ideal - ideal_other) + (risk_other - risk) + (bias_other - bias) <= bound.approximation


def test_fitted_model_has_a_bound():
    found, _, observed, _, _ = world(1)
    log = found.dataset.train
    model = cp.make("mf", seed=0).fit(log)
    chance = model.predict_log(log)
    table = np.array([model.predict(np.full(20, user), np.arange(20)) for user in range(30)], dtype=np.float64)
    logits = np.log(table) - np.log1p(-table)
    assert np.allclose(expit(logits[log.users, log.items]), chance, atol=1e-6)
    ideal = found.ideal_risk(table)
    bound = predictor_bound(logits, log.labels, observed, None, ideal_loss=ideal)
    assert bound.value >= ideal
    assert bound.norm > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"largest_weight": 0.01}, ["largest_weight", ">= 1", "0.01"]),
        ({"norm": -1.0}, ["norm", ">= 0", "-1"]),
        ({"risk": math.nan}, ["risk", "nan"]),
        ({"bias": "much"}, ["bias", "a number", "much"]),
        ({"n_pairs": 2.5}, ["n_pairs", "an integer", "2.5"]),
        ({"n_pairs": 0}, ["n_pairs", ">= 1", "0"]),
        ({"eta": 0}, ["eta", "> 0", "0"]),
        ({"eta": 1.5}, ["eta", "<= 1", "1.5"]),
        ({"kernel_bound": 0}, ["kernel_bound", "> 0"]),
        ({"lipschitz": -1}, ["lipschitz", "> 0", "-1"]),
        ({"error_at_zero": -1}, ["error_at_zero", ">= 0", "-1"]),
        ({"residual": -1}, ["residual", ">= 0", "-1"]),
        ({"doubly_robust": "yes"}, ["doubly_robust", "true or false", "yes"]),
    ],
)
def test_errors_name_bad_constants(change, words):
    with pytest.raises(ConfigError) as caught:
        GeneralizationBound(**{**CONSTANTS, **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n_centres": 0}, ConfigError, ["n_centres", ">= 1"]),
        ({"ridge": 0.0}, ConfigError, ["ridge", "> 0"]),
        ({"interpolate_up_to": -1}, ConfigError, ["interpolate_up_to", ">= 0"]),
        ({"weights": [1.0]}, ConfigError, ["observed", "weights"]),
        ({"logits": np.zeros((3, 3))}, DataError, ["logits", "(12, 9)", "(3, 3)"]),
        ({"logits": np.full((12, 9), np.inf)}, DataError, ["logits", "finite", "inf"]),
        ({"logits": lambda users, items: [0.0]}, DataError, ["logits", "108 pairs", "(1,)"]),
    ],
)
def test_errors_name_bad_predictors(change, error, words):
    with pytest.raises(error) as caught:
        predictor_norm(**{"logits": np.zeros((12, 9)), "pairs": tables(), **change})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"ideal_loss": -1.0}, "ideal_loss"),
        ({"labels": [2.0, 0.0]}, "labels"),
        ({"labels": [1.0]}, "labels"),
        ({"weights": [1.0, -1.0]}, "weights"),
        ({"weights": [0.0, 0.0]}, "weights"),
        ({"imputed_errors": np.full((12, 9), 9.0)}, "imputed_errors"),
        ({"imputed_errors": np.full((12, 9), -1.0)}, "imputed_errors"),
    ],
)
def test_errors_name_bad_logs(change, word):
    pairs = tables()
    given = {"logits": np.zeros((12, 9)), "labels": [1.0, 0.0], "weights": [1.0, 1.0], "ideal_loss": 0.6}
    given["observed"] = pairs.at(torch.tensor([0, 1]), torch.tensor([0, 1]))
    with pytest.raises((ConfigError, DataError), match=f"`{word}`"):
        predictor_bound(**{**given, **change})
