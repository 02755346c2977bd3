"""Filtered imputations (CDR): moments against dropout itself, the two ends, and g on both occurrences of e^."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm
from small_world import Known, Observed, SmallWorld, log_loss

import counterpoise as cp
from counterpoise import ConfigError, Dataset, Filtered, MatrixFactorization
from counterpoise.imputation.filtered import dropout_variance, is_reliable, label_moments
from counterpoise.risks import dr, error
from counterpoise.training.contracts import FittedImputation

WORLD = SmallWorld()


def filtered(seen: Observed, max_variation: float, scale: float = 1.0) -> FittedImputation:
    """With a model of the label whose parameters are random, the same on every draw."""
    fitted = Filtered(max_variation=max_variation).init(seen.context, Known(WORLD.propensity).init(seen.context))
    generator = torch.Generator().manual_seed(3)
    for parameter in fitted.scorer.requires_grad_(False).parameters():
        parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return fitted


# ---- moments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logit", [-3.0, -0.5, 0.0, 2.0])
@pytest.mark.parametrize("deviation", [0.0, 0.3, 1.0, 2.0])
def test_moments_of_the_label_are_integrals(logit: float, deviation: float) -> None:
    found = label_moments(torch.tensor([logit], dtype=torch.float64), torch.tensor([deviation**2], dtype=torch.float64))
    first, second = (quad(lambda x, k=k: norm.pdf(x) * expit(logit + deviation * x) ** k, -9, 9)[0] for k in (1, 2))
    expected = first, max(0.0, second - first**2) ** 0.5
    assert [float(value) for value in found] == pytest.approx(expected, abs=0.005 if deviation else 1e-6)


@pytest.mark.parametrize(
    "settings", [{}, {"side_features": True}, {"biases": False}], ids=["mf", "features", "factors"]
)
def test_the_variance_is_that_of_dropout(settings: dict[str, bool], dataset: Dataset) -> None:
    """Over all masks of what was learned of a user and of an item, 2 factors and a bias each: 64 of equal chance."""
    share = 0.5
    generator = torch.Generator().manual_seed(1)
    scorer = MatrixFactorization(dim=2, **settings).build(dataset.train, generator).requires_grad_(False)
    for parameter in scorer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    users, items = dropout_variance(scorer, share)
    tables = [scorer.get_parameter(name) for side in ("user", "item") for name in scorer.row_columns(side)]
    rows = [3] * (len(tables) // 2) + [7] * (len(tables) // 2)  # of user 3 and item 7
    own, pair = (
        [table[row].clone() for table, row in zip(tables, rows, strict=True)],
        (torch.tensor([3]), torch.tensor([7])),
    )
    logits = []
    for mask in itertools.product((0.0, 1 / (1 - share)), repeat=sum(map(len, own))):
        left = iter(mask)
        for table, row, values in zip(tables, rows, own, strict=True):
            table[row] = values * torch.tensor([next(left) for _ in values])
        logits.append(float(scorer(*pair)))
    for table, row, values in zip(tables, rows, own, strict=True):
        table[row] = values
    assert len(logits) == 64 if settings != {"biases": False} else 16
    assert np.mean(logits) == pytest.approx(float(scorer(*pair)), rel=1e-4)
    assert float(users[3] @ items[7]) == pytest.approx(np.var(logits), rel=1e-4)


def test_moments_of_the_error_are_those_of_its_draws() -> None:
    rng = np.random.default_rng(0)
    for s in (-2.0, 0.3, 3.0):
        labels = rng.beta(2, 3, 4000)
        errors = log_loss(labels, np.full(4000, s))
        variation = errors.std() / errors.mean()
        moments = (torch.tensor([value], dtype=torch.float64) for value in (labels.mean(), labels.std()))
        mean, deviation = moments
        for factor, kept in ((0.99, False), (1.01, True)):
            assert bool(is_reliable(torch.tensor([s]).double(), mean, deviation, factor * variation)) == kept


def test_a_prediction_of_one_half_keeps_its_error() -> None:
    """Whatever the label, its error is log 2."""
    half, mean, deviation = torch.zeros(1), torch.tensor([0.5]), torch.tensor([0.5])
    assert bool(is_reliable(half, mean, deviation, 0.01))
    assert not bool(is_reliable(torch.tensor([4.0]), mean, deviation, 0.01))


# ---- the risk --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_variation", [0.0, 0.2, 0.5, 1e9])
def test_errors_count_on_rows_and_pairs_where_they_are_reliable(max_variation: float) -> None:
    """The risk of CDR, pair by pair: mean over D of o e / p + g e^ (1 - o / p)."""
    seen = WORLD.observe()
    fitted = filtered(seen, max_variation, 0.5)
    _, errors, imputed, on_pairs = (found.detach() for found in seen.ask(fitted))
    found = float(dr(errors, seen.ratio(WORLD.propensity), imputed, on_pairs))
    own = expit(fitted.scorer.grid().double().numpy())
    users, items = dropout_variance(fitted.scorer, 0.5)
    deviations, total, kept = (users @ items.T).double().sqrt().numpy(), 0.0, 0
    for u, i in np.ndindex(WORLD.shape):
        s, z, d = WORLD.logits[u, i], np.log(own[u, i] / (1 - own[u, i])), deviations[u, i]
        nodes = norm.ppf((np.arange(400) + 0.5) / 400)  # equal chances
        labels = expit(z + d * nodes)
        draws = log_loss(labels, np.full(400, s))
        g = draws.std() < max_variation * draws.mean()
        imputed_error = log_loss(own[u, i], s)
        weight = seen.mask[u, i] / WORLD.propensity[u, i]
        total += weight * WORLD.errors[u, i] + g * imputed_error * (1 - weight)
        kept += g
    assert found == pytest.approx(total / WORLD.pairs, abs=0.003)
    assert float(fitted.kept) == pytest.approx(kept / WORLD.pairs, abs=0.01)


def test_bias_and_variance_with_fixed_imputation_are_their_formulas() -> None:
    """Bias mean_D (p / p^ - 1)(e - g e^), variance 1 / N^2 sum p (1 - p) / p^^2 (e - g e^)^2; unbiased with p^ = p."""
    for assumed in (WORLD.propensity, WORLD.wrong_propensity):
        values, p, n = [], WORLD.propensity, WORLD.pairs
        for seed in range(150):
            seen = WORLD.observe(seed)
            if not seed:
                fitted = filtered(seen, 0.3)
                _, _, _, everywhere = seen.ask(fitted)
                table = everywhere.detach().double().numpy().reshape(WORLD.shape)  # g e^
            at = torch.from_numpy(table[seen.mask])
            values.append(float(dr(seen.at(WORLD.errors), seen.ratio(assumed), at, torch.from_numpy(table).flatten())))
        gap = WORLD.errors - table
        bias = ((p / assumed - 1) * gap).mean()
        deviation = np.sqrt((p * (1 - p) / assumed**2 * gap**2).sum()) / n
        assert abs(np.mean(values) - WORLD.ideal - bias) < 3 * deviation / np.sqrt(len(values))
        assert np.std(values, ddof=1) == pytest.approx(deviation, rel=0.2)
        assert (table == 0).mean() > 0.1


def test_pairs_one_by_one_are_those_of_all() -> None:
    seen = WORLD.observe()
    fitted = filtered(seen, 0.3)
    _, errors, imputed, everywhere = seen.ask(fitted)
    users, items = (torch.from_numpy(codes.ravel()) for codes in np.indices(WORLD.shape))
    batch = seen.context.batches(pairs=True).whole()
    listed = type(batch)(batch.rows, batch.users, batch.items, batch.labels, users, items)
    logits = torch.from_numpy(WORLD.logits)
    rows, pairs = fitted.errors(listed, logits[seen.users, seen.items], logits.flatten(), errors)
    assert torch.allclose(rows, imputed.detach(), atol=1e-5)
    assert torch.allclose(pairs, everywhere.detach(), atol=1e-5)


def test_more_is_kept_with_a_larger_limit() -> None:
    shares = []
    for limit in (0.0, 0.05, 0.1, 0.3, 1.0, 10.0):
        fitted = filtered(seen := WORLD.observe(), limit)
        seen.ask(fitted)
        shares.append(float(fitted.kept))
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == 1


# ---- a fit -----------------------------------------------------------------------------------------------------------


def test_the_ends_are_ips_and_dr(dataset: Dataset) -> None:
    settings = {"dim": 4, "epochs": 20, "l2_biases": 2.0}  # which `ips` would estimate
    fits = {
        (name, *own.items()): cp.make(name, **own, **settings)
        .fit(dataset.train, dataset.probe)
        .predict_log(dataset.test)
        for name, own in (("cdr", {"max_variation": 0.0}), ("cdr", {"max_variation": 1e9}), ("ips", {}), ("dr-jl", {}))
    }
    nothing, everything, ips, doubly = fits.values()
    assert nothing == pytest.approx(ips, abs=1e-5)
    assert everything == pytest.approx(doubly, abs=1e-6)
    assert np.abs(ips - doubly).max() > 0.01


def test_the_filter_acts_at_its_default(dataset: Dataset) -> None:
    """A filter that drops nothing is DR-JL."""
    model = cp.make("cdr").fit(dataset.train, dataset.probe)
    assert 0.3 < model.facts_["imputation"]["kept_share"] < 0.99


def test_the_imputation_goes_on_as_without_the_filter(dataset: Dataset) -> None:
    model = cp.make("cdr", dim=4, epochs=3)
    learner = model._learner(model._context(dataset.train, dataset.probe))
    plain = cp.make("dr-jl", dim=4, epochs=3)
    other = plain._learner(plain._context(dataset.train, dataset.probe))
    for one in (learner, other):
        one.start_epoch(1)
        one.step(one.batches(model._context(dataset.train, dataset.probe)).whole(), 1.0)
    for own, same in zip(learner.imputation.state(), other.imputation.state(), strict=True):
        assert torch.equal(own, same)


def test_errors_have_the_gradient_of_what_is_kept() -> None:
    seen = WORLD.observe()
    fitted = filtered(seen, 0.3)
    table, _, _, everywhere = seen.ask(fitted)
    (found,) = torch.autograd.grad(everywhere.sum(), table)
    plain = error(torch.sigmoid(fitted.scorer.grid().detach()), table)
    (full,) = torch.autograd.grad(plain.sum(), table)
    kept = (everywhere != 0).view_as(full)
    assert torch.allclose(found, full * kept, atol=1e-6)


def test_a_base_without_vectors_is_refused(dataset: Dataset) -> None:
    for part in (Filtered(cp.Constant()), Filtered(cp.Learned(backbone="ncf"))):
        with pytest.raises(ConfigError, match=r"`base` of Filtered .* Set imputation__base__backbone=mf"):
            cp.DebiasedRecommender(cp.NaiveBayes(), "dr", part).fit(dataset.train, dataset.probe)
    for part, words in (
        (Filtered(max_variation=-1), "`max_variation` must be a number >= 0, got -1. 0 drops every imputed error"),
        (Filtered(dropout=1), "`dropout` must be a number > 0 and <= 0.95, got 1"),
        (Filtered(base="learned"), "`base` must hold Imputation parts"),
    ):
        with pytest.raises(ConfigError, match=words):
            cp.DebiasedRecommender(cp.NaiveBayes(), "dr", part).fit(dataset.train, dataset.probe)
