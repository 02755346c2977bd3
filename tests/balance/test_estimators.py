"""Balancing two samples: scikit-learn's conventions, known answers, and the summary in words."""

from __future__ import annotations

import pickle
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.estimators import KernelBalancer, MomentBalancer, balance_samples
from counterpoise.balance.functions import KernelFunctions, Moments
from counterpoise.data.side_tables import TableEncoder
from counterpoise.errors import ConfigError, DataError


class KernelOnSelf(KernelBalancer):
    """scikit-learn's checks call fit(X, y): the sample is balanced against itself."""

    def fit(self, X, y=None):
        return super().fit(X, X)


class MomentOnSelf(MomentBalancer):
    """As above."""

    def fit(self, X, y=None):
        return super().fit(X, X)


# None is left out. scikit-learn itself skips its array API check where SCIPY_ARRAY_API is not set; checks of predict,
# transform and y are not generated for an estimator that has none.
@parametrize_with_checks(
    [KernelOnSelf(n_functions=3, candidates=5), KernelOnSelf(3, "greedy", candidates=5), MomentOnSelf()]
)
def test_scikit_learn_estimator_checks_pass(estimator, check):
    check(estimator)


def samples(seed=0, n=4000, columns=3):
    rng = np.random.default_rng(seed)
    population = rng.normal(size=(n, columns)) * [1, 2, 3] + [0, 5, -5]
    logit = population[:, 0] + 0.5 * (population[:, 1] - 5) - 0.5
    return population[rng.random(n) < 1 / (1 + np.exp(-logit))], population


@pytest.mark.parametrize("select", ["spectral", "random", "worst_case", "greedy"])
@pytest.mark.parametrize("kernel", ["gaussian", "exponential"])
def test_kernel_weights_balance_nonlinear_functions(select, kernel):
    observed, population = samples()
    balancer = KernelBalancer(30, select, kernel=kernel, random_state=0).fit(observed, population)

    def wave(x):
        return np.sin(x[:, 0]) * np.cos((x[:, 1] - 5) / 2) + x[:, 0]

    before, target = wave(observed).mean(), wave(population).mean()
    assert abs(balancer.weights_ @ wave(observed) - target) < 0.15 * abs(before - target)
    assert balancer.weights_.sum() == pytest.approx(1)


def test_moment_weights_match_means_and_variances():
    observed, population = samples()
    weights = MomentBalancer(order=2).fit(observed, population).weights_
    assert np.allclose(weights @ observed, population.mean(0), atol=1e-6)
    assert np.allclose(weights @ observed**2, (population**2).mean(0), atol=1e-4)


@pytest.mark.parametrize("order", [1, 2])
def test_known_means_take_the_place_of_a_population(order):
    observed, population = samples()
    moments = np.stack([(population**power).mean(0) for power in range(1, order + 1)])
    balancer = MomentBalancer(order).fit(observed, target_means=moments)
    expected = MomentBalancer(order).fit(observed, population).weights_
    assert np.allclose(balancer.weights_, expected, atol=1e-8)
    first = balancer.balance_table().row(0, named=True)
    assert first["smd_after"] == pytest.approx(0, abs=1e-6)
    assert first["population_mean"] == pytest.approx(population[:, 0].mean())
    assert first["population_sd"] is None


def test_predicted_weights_equal_fitted_weights():
    observed, population = samples()
    for balancer in (KernelBalancer(20, random_state=0), MomentBalancer(2), MomentBalancer(max_weight=0.003)):
        balancer.fit(observed, population)
        assert np.allclose(balancer.predict_weights(observed[:50]), balancer.weights_[:50], rtol=1e-6)


def test_predicted_weights_keep_to_the_cap():
    observed, population = samples()
    capped = MomentBalancer(max_weight=0.003).fit(observed, population)
    assert capped.predict_weights(np.vstack([observed - 5, observed + 5])).max() == pytest.approx(0.003)
    assert MomentBalancer().fit(observed, population).predict_weights(observed - 5).max() > 0.003


def test_balancer_that_is_not_fitted_says_so():
    observed, _ = samples()
    for ask in ("predict_weights", "score"):
        with pytest.raises(NotFittedError):
            getattr(MomentBalancer(), ask)(observed)
    for ask in ("feature_balances", "balance_table"):
        with pytest.raises(NotFittedError):
            getattr(MomentBalancer(), ask)()


def test_predicted_weights_assume_uniform_base_weights():
    observed, population = samples()
    base = np.random.default_rng(0).random(len(observed)) + 0.5
    balancer = MomentBalancer().fit(observed, population, base_weights=base)
    expected = balancer.predict_weights(observed) * len(base) * base / base.sum()
    assert np.allclose(balancer.weights_, expected, rtol=1e-6)


def test_same_seed_and_pickles_give_the_same_weights():
    observed, population = samples()
    first = KernelBalancer(10, random_state=3).fit(observed, population)
    second = clone(first).fit(observed, population)
    loaded = pickle.loads(pickle.dumps(first))
    assert np.array_equal(first.weights_, second.weights_)
    assert np.array_equal(loaded.predict_weights(observed), first.predict_weights(observed))


def test_balance_table_has_the_names_of_the_frame():
    observed, population = samples()
    frames = [pd.DataFrame(x, columns=["age", "income", "debt"]) for x in (observed, population)]
    table = MomentBalancer().fit(*frames).balance_table()
    assert isinstance(table, pd.DataFrame)
    assert list(table["name"]) == ["age", "income", "debt"]
    assert table["smd_before"][0] > 0.3
    assert (table["smd_after"].abs() < 1e-6).all()
    assert (table["ks_after"] < table["ks_before"])[:2].all()


def test_errors_name_missing_arguments():
    observed, population = samples()
    with pytest.raises(DataError, match="either `population` or `target_means`"):
        MomentBalancer().fit(observed)
    with pytest.raises(DataError, match="give the population once"):
        MomentBalancer().fit(observed, population, population=population)
    with pytest.raises(DataError, match="`population` must have at least 10 rows to score against"):
        MomentBalancer().fit(observed, population[:9]).score(observed)
    with pytest.raises(ConfigError, match="use MomentBalancer"):
        KernelBalancer().fit(observed, target_means=[1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="must hold 3 finite numbers"):
        MomentBalancer().fit(observed, target_means=[1.0, 2.0])
    with pytest.raises(ConfigError, match="`kernel` must be one of"):
        KernelBalancer(kernel="cubic").fit(observed, population)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_two_frames_give_weights_and_a_summary(frame):
    observed, population = samples()
    first = frame({"a": observed[:, 0], "b": observed[:, 1], "c": observed[:, 2]})
    second = frame({"c": population[:, 2], "b": population[:, 1], "a": population[:, 0]})
    report = balance_samples(first, second, KernelFunctions(n=20))
    assert report.weights.sum() == pytest.approx(1)
    assert report.diagnosis.largest_before.name in ("a", "b")
    assert abs(report.diagnosis.largest_after.smd_after) < 0.05
    assert report.diagnosis.effective_sample_size == pytest.approx(effective_sample_size(report.weights))
    words = report.summary()
    for word in ("design effect", "SD before", "SD after", "No function was relaxed", "duality gap"):
        assert word in words
    assert report.to_dict()["solver"]["status"] == "solved"


def test_sample_without_overlap_improves_and_lists_relaxed_functions():
    population = np.random.default_rng(0).normal(size=(300, 2))
    report = balance_samples(population[population[:, 0] > -0.3], population)
    first = report.diagnosis.table[0]
    assert abs(first.smd_after) < 0.6 * first.smd_before
    assert "Relaxed: eigenfunction" in report.summary()
    assert f"and {len(report.relaxed) - 10} more" in report.summary()
    assert "eigenfunction 0" not in report.relaxed
    assert "ROSE" not in report.summary()


def test_summary_names_a_feature_that_got_worse():
    observed, population = samples()
    report = balance_samples(observed, population, Moments())
    rose = replace(report.diagnosis, table=[replace(report.diagnosis.table[0], smd_after=2.0)])
    assert "ROSE" in replace(report, diagnosis=rose).summary()


def test_units_change_only_their_row_of_the_table():
    observed, population = samples()
    units = np.array([1.0, 1.0, 1e4])
    first, second = (balance_samples(observed * by, population * by, seed=1).diagnosis for by in (np.ones(3), units))
    assert first.overlap == second.overlap
    assert first.held_out_after == pytest.approx(second.held_out_after, rel=1e-6, abs=1e-9)
    assert first.held_out_before == pytest.approx(second.held_out_before, rel=1e-6)
    rows = [astuple(diagnosis.table[0])[1:] for diagnosis in (first, second)]
    assert rows[0] == pytest.approx(rows[1], rel=1e-6, abs=1e-9)
    assert first.table[2].population_sd * 1e4 == pytest.approx(second.table[2].population_sd)
    assert first.table[2].smd_after == pytest.approx(second.table[2].smd_after, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("balancer", [KernelBalancer(8, "random"), MomentBalancer(2)])
def test_raw_strength_is_that_of_the_function(balancer):
    """|l_j| <= gamma, not gamma / SD, in the estimators and in `balance_samples`."""
    rng = np.random.default_rng(0)
    observed, population = rng.normal(1.0, 1.0, (200, 2)), rng.normal(0.0, 2.0, (500, 2))
    balancer = clone(balancer).set_params(strength=0.3, tolerance=0.0, random_state=0)
    for units in ("sd", "raw"):
        fitted = balancer.set_params(units=units).fit(observed, population)
        scale = fitted.result_.scale if units == "sd" else np.ones(len(fitted.result_.scale))
        assert np.allclose(fitted.result_.strength, 0.3 / scale)
        assert np.isclose(abs(fitted.result_.dual * scale).max(), 0.3)
    functions = balancer._recipe()
    report = balance_samples(observed, population, functions, strength=0.3, tolerance=0.0, units="raw")
    assert np.allclose(report.result.strength, 0.3)


def test_impossible_feature_is_relaxed_by_name():
    observed, population = samples()
    observed = np.c_[observed, np.zeros(len(observed))]
    population = np.c_[population, np.random.default_rng(0).normal(1, 1, len(population))]
    report = balance_samples(observed, population, Moments())
    assert report.relaxed == ["x3"]
    assert "Relaxed: x3." in report.summary()
    assert report.to_dict()["relaxed"] == ["x3"]


def test_summary_has_the_largest_imbalance_in_standard_deviations():
    observed, population = samples()
    report = balance_samples(observed, population, KernelFunctions(n=10), tolerance=0.05)
    result = report.result
    assert abs(result.scale - 1).max() > 0.01
    before, after = (abs(tau / result.scale).max() for tau in (result.imbalance_before, result.imbalance))
    assert f"largest imbalance {before:.3f} SD before, {after:.2e} SD after" in report.summary()


def test_errors_name_the_first_bad_value():
    observed, population = samples()
    wrong = observed.copy()
    wrong[5, 2], wrong[7, 0] = np.inf, np.inf
    with pytest.raises(DataError, match=r"column 'observed\[:, 2\]', row 5: expected a finite number"):
        balance_samples(wrong, population)
    for tables in ((observed * [1, 1, 1e200], population), (observed, population * [1, 1, 1e200])):
        with pytest.raises(DataError, match=r"feature 2 \(counted from 0\) has values beyond"):
            balance_samples(*tables)


def test_errors_name_bad_tables():
    observed, population = samples()
    with pytest.raises(DataError, match=r"no column to balance. Not balanced: b \(not in the population\)"):
        balance_samples(pd.DataFrame({"b": [2.0]}), pd.DataFrame({"a": [1.0]}))
    encoder = TableEncoder(columns=["a", "b"])
    with pytest.raises(DataError, match="column 'b' cannot be encoded: not in the population"):
        balance_samples(pd.DataFrame({"a": [1.0], "b": [2.0]}), pd.DataFrame({"a": [1.0]}), encoder=encoder)
    with pytest.raises(DataError, match=r"column 'a', row 1: expected a finite number, got inf"):
        balance_samples(pd.DataFrame({"a": [1.0, np.inf]}), pd.DataFrame({"a": [1.0]}))
    encoder = TableEncoder(missing="error")
    with pytest.raises(DataError, match=r"column 'a', row 1: the value is missing"):
        balance_samples(pd.DataFrame({"a": [1.0, np.nan]}), pd.DataFrame({"a": [1.0]}), encoder=encoder)
    with pytest.raises(DataError, match="at least one row"):
        balance_samples(observed[:0], population)
    with pytest.raises(DataError, match="`observed` must have at least one row, got none"):
        balance_samples(pd.DataFrame({"a": []}), pd.DataFrame({"a": [1.0]}))
    with pytest.raises(DataError, match="`population_weights` must have"):
        balance_samples(observed, population, population_weights=np.ones(3))
    with pytest.raises(DataError, match="got 3 and 2 columns"):
        balance_samples(observed, population[:, :2])
    with pytest.raises(DataError, match="`observed` has column names and `population` has none"):
        balance_samples(pd.DataFrame(observed), population)
    with pytest.raises(DataError, match=r"`observed`: .*'a' 2 times"):
        balance_samples(pd.DataFrame(observed, columns=["a", "a", "b"]), pd.DataFrame(population, columns=list("abc")))
    report = balance_samples(pd.DataFrame(observed), pd.DataFrame(population), Moments())
    assert [row.name for row in report.diagnosis.table] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(3), "must have one value for each of the 4000 rows"),
        (np.ones(1), "must have one value for each of the 4000 rows"),
        (-np.ones(4000), "must be finite, >= 0 and not all 0"),
        (np.zeros(4000), "must be finite, >= 0 and not all 0"),
        (np.full(4000, np.nan), "must be finite, >= 0 and not all 0"),
        (["a"] * 4000, "must hold numbers only"),
    ],
)
def test_bad_population_weights_are_refused(weights, words):
    observed, population = samples()
    for fit in (balance_samples, MomentBalancer().fit, KernelBalancer(5).fit):
        with pytest.raises(DataError, match=f"`population_weights` {words}"):
            fit(observed, population, population_weights=weights)
    with pytest.raises(DataError, match="`population_weights` must be None"):
        MomentBalancer().fit(observed, target_means=population.mean(0), population_weights=weights)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strength": -1}, "`strength` must be a number >= 0, got -1"),
        ({"strength": "a"}, "`strength` must be a number >= 0, got 'a'"),
        ({"strength": float("nan")}, "`strength` must be a number >= 0, got nan"),
        ({"tolerance": "a"}, "`tolerance` must be a number >= 0, got 'a'"),
        ({"tolerance": np.ones(2)}, r"`tolerance` must be one number, got shape \(2,\)"),
    ],
)
def test_errors_name_bad_tolerance_and_strength(settings, words):
    observed, population = samples()
    for balancer in (MomentBalancer(**settings), KernelBalancer(5, **settings)):
        with pytest.raises(ConfigError, match=words):
            balancer.fit(observed, population)


def test_known_means_are_matched_by_feature_names():
    observed, population = samples()
    first, second = (pd.DataFrame(x, columns=["a", "b", "c"]) for x in (observed, population))
    expected = MomentBalancer().fit(first, second).weights_
    means = second.mean()[["c", "a", "b"]]
    for given in (means, dict(means), means.to_frame().T):
        balancer = MomentBalancer().fit(first, target_means=given)
        assert np.allclose(balancer.weights_, expected, atol=1e-8)
        assert balancer.balance_table()["population_mean"][2] == pytest.approx(population[:, 2].mean())
    with pytest.raises(DataError, match="`target_means` has no value for 'c'"):
        MomentBalancer().fit(first, target_means=means[["a", "b"]])
    with pytest.raises(DataError, match="has no value for 0"):
        MomentBalancer().fit(observed, target_means=means)
    with pytest.raises(DataError, match="`target_means` must hold numbers only"):
        MomentBalancer().fit(observed, target_means=["a", "b", "c"])
    with pytest.raises(DataError, match="in each of 2 rows"):
        MomentBalancer(2).fit(observed, target_means=np.ones((3, 2)))
