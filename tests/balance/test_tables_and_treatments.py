"""Balancers on frames with text and gaps, inside scikit-learn's tools, and for treated and controls."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from counterpoise.balance.covariate_balance import imbalances
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.estimators import (
    KernelBalancer,
    MomentBalancer,
    TreatmentBalancer,
    balance_frontier,
    balance_samples,
)
from counterpoise.balance.functions import Moments
from counterpoise.balance.solver import entropy_balance
from counterpoise.errors import ConfigError, DataError, ReadingWarning


def people(rows=2000, seed=0):
    """(a sample that older people and bakers are in more often, with an outcome; the population)."""
    rng = np.random.default_rng(seed)
    job = rng.choice(["cook", "smith", "baker"], rows, p=[0.6, 0.3, 0.1]).astype(object)
    age = rng.normal(40, 10, rows)
    chance = 1 / (1 + np.exp(1 - (age - 40) / 10 - (job == "baker")))
    age[rng.random(rows) < 0.1], job[rng.random(rows) < 0.1] = np.nan, None
    population = pd.DataFrame({"id": np.arange(rows), "age": age, "job": job})
    sample = population[rng.random(rows) < chance].reset_index(drop=True)
    return sample.assign(outcome=np.arange(len(sample)) % 7), population


def test_text_and_gaps_are_balanced_exactly():
    sample, population = people()
    with pytest.warns(ReadingWarning, match=r"Not balanced: id \(an id\), outcome \(not in the population\)"):
        balancer = MomentBalancer().fit(sample, population)
    assert balancer.left_out_ == {"id": "an id", "outcome": "not in the population"}
    for name in ("cook", "smith", "baker"):
        share = balancer.weights_ @ (sample["job"] == name).to_numpy()
        assert share == pytest.approx((population["job"] == name).mean(), abs=1e-6)
    assert balancer.weights_ @ sample["age"].isna() == pytest.approx(population["age"].isna().mean(), abs=1e-6)
    table = balancer.balance_table()
    assert list(table["name"]) == ["age", "age (missing)", "job=cook", "job=smith", "job=baker", "job (missing)"]
    assert imbalances(balancer)[0].name == "age"
    assert np.allclose(balancer.predict_weights(sample[["job", "age"]]), balancer.weights_, rtol=1e-6)


def test_frames_of_two_libraries_and_arrays_of_objects_agree():
    sample, population = (frame[["age", "job"]] for frame in people())
    expected = MomentBalancer().fit(sample, population).weights_
    mixed = MomentBalancer().fit(pl.from_pandas(sample), population).weights_
    arrays = MomentBalancer().fit(sample.to_numpy(dtype=object), population.to_numpy(dtype=object))
    assert np.allclose(mixed, expected)
    assert np.allclose(arrays.weights_, expected)
    assert arrays.feature_names_[:3] == ["x0", "x0 (missing)", "x1=cook"]


def test_columns_that_are_named_decide_what_is_balanced():
    sample, population = people()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ReadingWarning)
        assert MomentBalancer(columns=["age"], missing="mean").fit(sample, population).feature_names_ == ["age"]
    assert MomentBalancer(columns=["id"]).fit(sample, population).feature_names_ == ["id"]
    codes = {"code": [1, 2, 3, 1] * 5}
    assert MomentBalancer(categorical=["code"]).fit(pd.DataFrame(codes), pd.DataFrame(codes)).feature_names_ == [
        "code=1",
        "code=2",
        "code=3",
    ]


def test_report_of_two_frames_names_functions_and_columns_left_out():
    sample, population = people()
    report = balance_samples(sample, population, Moments(2))
    assert report.function_names[:3] == ["age", "age (missing)", "job=cook"]
    assert "age^2" in report.function_names
    assert "Not balanced: id (an id), outcome (not in the population)." in report.summary()
    assert report.to_dict()["left_out"] == {"id": "an id", "outcome": "not in the population"}


def test_known_shares_of_levels_are_matched_by_name():
    sample, population = (frame[["age", "job"]].dropna() for frame in people())
    shares = {f"job={name}": float((population["job"] == name).mean()) for name in ("cook", "smith", "baker")}
    balancer = MomentBalancer().fit(sample, target_means=shares | {"age": 41.0})
    assert balancer.weights_ @ sample["age"] == pytest.approx(41, abs=1e-6)
    assert balancer.weights_ @ (sample["job"] == "cook") == pytest.approx(shares["job=cook"], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"columns": ["agee"]}, {}, r"`columns` names 'agee'; .* Did you mean 'age'"),
        ({"categorical": ["jobs"]}, {}, r"`categorical` names 'jobs'; .* Did you mean 'job'"),
        ({"missing": "error"}, {}, r"column 'age', row [0-9]+: the value is missing\. .* \(`X`\)"),
        ({}, {"age": np.inf}, r"column 'age', row 0: expected a finite number, got inf\. .* \(`population`\)"),
        ({"missing": "drop"}, {}, "`missing` must be one of 'indicator', 'mean', 'error'"),
        ({"columns": ["outcome"]}, {}, "column 'outcome' cannot be encoded: not in the population"),
    ],
)
def test_errors_of_tables_name_column_and_way_out(settings, change, words):
    sample, population = people()
    with pytest.raises((DataError, ConfigError), match=words):
        MomentBalancer(**settings).fit(sample, population.assign(**change))


def test_frames_without_names_are_balanced_as_their_arrays():
    population = np.random.default_rng(0).normal([0, 4, 8], size=(200, 3))
    sample = population[population[:, 0] > -0.5]
    expected = MomentBalancer().fit(sample, population)
    frames = pd.DataFrame(sample), pd.DataFrame(population)
    assert np.allclose(MomentBalancer().fit(*frames).weights_, expected.weights_, atol=1e-9)
    some = MomentBalancer(columns=[0, 2]).fit(*frames)
    assert some.balance_table()["name"].tolist() == ["0", "2"]
    assert some.weights_ @ sample[:, 2] == pytest.approx(population[:, 2].mean(), abs=1e-6)
    assert np.allclose(some.predict_weights(frames[0]), some.weights_, rtol=1e-6)


def test_features_that_cannot_move_are_named():
    everybody = pd.DataFrame({"age": np.arange(300.0) % 40, "job": ["cook", "smith", "baker"] * 100})
    cooks = everybody[everybody["job"] == "cook"]
    with pytest.raises(DataError, match=r"^functions \[job=cook, job=baker, job=smith\] are constant"):
        MomentBalancer().fit(cooks, everybody)
    assert MomentBalancer(strength=1.0).fit(cooks, everybody).result_.relaxed.sum() == 3
    with pytest.raises(DataError, match=r"functions \[0, 1, .* and 5 more\] are constant"):
        entropy_balance(np.ones((4, 15)), np.zeros(15))


@pytest.mark.parametrize(
    ("population", "words"),
    [
        (np.zeros((5, 2)), "`X` and `population` must have the same features, got 3 and 2 columns"),
        ([0, 1, 1], "`population` must have two dimensions"),
        ("people.csv", "`population`"),
        (np.empty((0, 3)), "`population` must have at least one row"),
        (np.full((5, 3), np.inf), "finite number in `population`"),
    ],
    ids=str,
)
def test_wrong_populations_are_called_so(population, words):
    with pytest.raises(DataError, match=words):
        MomentBalancer().fit(np.random.default_rng(0).normal(size=(20, 3)), population)


def test_balancers_work_in_a_pipeline_and_a_grid_search():
    rng = np.random.default_rng(0)
    population = pd.DataFrame(rng.normal(size=(700, 2)), columns=["a", "b"])
    sample = population[rng.random(700) < 1 / (1 + np.exp(-population["a"]))]
    piped = Pipeline([("balance", KernelBalancer(20, random_state=0))]).fit(sample, balance__population=population)
    alone = KernelBalancer(20, random_state=0).fit(sample, population)
    assert np.array_equal(piped[-1].weights_, alone.weights_)
    assert piped.score(sample) == alone.score(sample)
    scaler = StandardScaler().fit(population)
    scaled = Pipeline([("scale", scaler), ("balance", MomentBalancer())])
    scaled.fit(sample, balance__population=scaler.transform(population))
    assert scaled[-1].result_.status == "solved"
    search = GridSearchCV(KernelBalancer(random_state=0), {"n_functions": [1, 5], "strength": [1e-6, 100.0]}, cv=3)
    search.fit(sample, population=population)
    assert search.best_params_ == {"n_functions": 5, "strength": 100.0}
    assert clone(search.best_estimator_).get_params()["n_functions"] == 5


def test_score_is_minus_the_held_out_imbalance():
    rng = np.random.default_rng(1)
    population, sample, held_out = rng.normal(size=(600, 2)), rng.normal(0.7, 1, (300, 2)), rng.normal(0.7, 1, (300, 2))
    balanced = KernelBalancer(20, random_state=0).fit(sample, population)
    free = KernelBalancer(20, tolerance=10.0, random_state=0).fit(sample, population)
    assert free.score(held_out) < balanced.score(held_out) < 0
    known = MomentBalancer().fit(sample, target_means=population.mean(0))
    weights = known.predict_weights(held_out).clip(max=known.weights_.max())
    off = (weights @ held_out / weights.sum() - population.mean(0)) / sample.std(0)
    assert known.score(held_out) == pytest.approx(-np.sqrt((off**2).mean()))


# Treated and controls


def trial(rows=4000, seed=1):
    """Covariates, who was treated, outcomes, and the effect on each row, which is larger for those likely treated."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3))
    treated = rng.random(rows) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 1]))
    effect = 1 + x[:, 0]
    outcome = x @ [1, 2, 0.5] + treated * effect + rng.normal(0, 0.1, rows)
    return pd.DataFrame(x, columns=["a", "b", "c"]), treated, outcome, effect


@pytest.mark.parametrize("target", ["ate", "att", "atc"])
def test_weighted_means_recover_the_effect_on_the_target(target):
    x, treated, outcome, effect = trial()
    rows = {"ate": np.ones(len(x), bool), "att": treated, "atc": ~treated}[target]
    found = TreatmentBalancer(target=target).fit(x, treated)
    naive = outcome[treated].mean() - outcome[~treated].mean()
    assert abs(naive - effect[rows].mean()) > 1
    assert found.effect(outcome) == pytest.approx(effect[rows].mean(), abs=0.03)
    for group in (treated, ~treated):
        assert found.weights_[group].sum() == pytest.approx(1)
        assert np.allclose(found.weights_[group] @ x[group], x[rows].mean(), atol=1e-6)


def test_weights_of_controls_equal_those_of_a_direct_solve():
    """ATT: the weights nearest to uniform in Kullback-Leibler divergence with the means of the treated."""
    x, treated, _, _ = trial(120, seed=4)
    controls, means = x[~treated].to_numpy(), x[treated].mean().to_numpy()
    n = len(controls)
    solved = minimize(
        lambda w: float(w @ np.log(n * w)),
        np.full(n, 1 / n),
        jac=lambda w: np.log(n * w) + 1,
        bounds=[(1e-9, 1)] * n,
        constraints=[
            {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(n)},
            {"type": "eq", "fun": lambda w: w @ controls - means, "jac": lambda w: controls.T},
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert solved.success
    found = TreatmentBalancer(target="att").fit(x, treated)
    assert np.allclose(found.weights_[~treated], solved.x, atol=1e-5)
    assert np.allclose(found.weights_[treated], 1 / treated.sum())


def test_sampling_weights_count_in_both_groups_and_in_the_target():
    x, treated, _, _ = trial(600)
    drawn = np.random.default_rng(0).uniform(0.5, 2, len(x))
    for target, rows in (("ate", np.ones(len(x), bool)), ("att", treated)):
        found = TreatmentBalancer(target=target).fit(x, treated, sample_weight=drawn)
        wanted = np.average(x[rows], axis=0, weights=drawn[rows])
        for group in (treated, ~treated):
            assert np.allclose(found.weights_[group] @ x[group], wanted, atol=1e-6)
    assert np.allclose(found.weights_[treated], drawn[treated] / drawn[treated].sum())
    whole = np.r_[np.arange(len(x)), np.arange(50)]  # a row drawn twice counts as one of weight 2
    twice = TreatmentBalancer().fit(x.iloc[whole], treated[whole])
    once = TreatmentBalancer().fit(x, treated, sample_weight=1.0 + (np.arange(len(x)) < 50))
    assert np.allclose(once.weights_[:50], twice.weights_[:50] + twice.weights_[len(x) :], atol=1e-9)


def test_treatments_are_tuned_predicted_and_shown_by_group():
    x, treated, _, _ = trial(900)
    x = x.assign(sex=np.where(np.arange(900) % 3 == 0, "f", "m"), id=np.arange(900))
    balancer = TreatmentBalancer(KernelBalancer(10, random_state=0, columns=["a", "b", "sex"]))
    search = GridSearchCV(balancer, {"balancer__strength": [1e-6, 100.0]}, cv=3).fit(x, treated)
    assert search.best_params_ == {"balancer__strength": 100.0}
    found = search.best_estimator_
    assert np.allclose(found.predict_weights(x, treated), found.weights_, rtol=1e-6)
    table = found.balance_table()
    assert isinstance(table, pd.DataFrame)
    assert set(table["group"]) == {"treated", "controls"}
    assert list(table["name"][:3]) == ["a", "b", "sex=f"]
    assert found.feature_balances()[0].name == "treated: a"
    assert "controls: " in found.summary()
    sizes = [effective_sample_size(found.weights_[rows]) for rows in (treated, ~treated)]
    assert all(f"count as {size:,.0f}" in found.summary() for size in sizes)
    with pytest.warns(ReadingWarning, match=r"Not balanced: id \(an id\)"):
        TreatmentBalancer().fit(x, treated)


@pytest.mark.parametrize("target", ["att", "atc"])
def test_predicted_weights_of_the_target_are_those_of_the_fit(target):
    x, treated, _, _ = trial(300)
    found = TreatmentBalancer(target=target).fit(x, treated)
    assert np.allclose(found.predict_weights(x, treated), found.weights_, rtol=1e-6)
    alone = x[:5], np.full(5, target == "att")  # new rows need not have both groups
    size = treated.sum() if target == "att" else (~treated).sum()
    assert np.allclose(found.predict_weights(*alone), 1 / size)
    for ask in (lambda b: b.predict_weights(*alone), lambda b: b.score(x, treated), lambda b: b.balance_table()):
        with pytest.raises(NotFittedError):
            ask(TreatmentBalancer())


def test_summary_of_groups_has_standard_deviations():
    x, treated, _, _ = trial(300)
    found = TreatmentBalancer(KernelBalancer(10, random_state=0)).fit(x, treated)
    for group, balancer in found.balancers_.items():
        result = balancer.result_
        assert abs(result.scale - 1).max() > 0.01
        before, after = (abs(tau / result.scale).max() for tau in (result.imbalance_before, result.imbalance))
        line = next(line for line in found.summary().splitlines() if line.startswith(group))
        assert f"imbalance {before:.3f} SD before, {after:.2g} SD after" in line


def test_frontier_of_kernels_is_in_standard_deviations():
    x, treated, _, _ = trial(300)
    balancer = KernelBalancer(10, random_state=0).fit(x[treated], x)
    for point in balance_frontier(balancer, [0.05, 0.2]):
        again = KernelBalancer(10, random_state=0, tolerance=point.tolerance).fit(x[treated], x).result_
        sizes = abs(again.imbalance / again.scale)
        assert point.max_imbalance == pytest.approx(sizes.max(), rel=1e-6)
        assert point.rms_imbalance == pytest.approx((sizes**2).mean() ** 0.5, rel=1e-6)
        assert (point.rows, point.relaxed) == (treated.sum(), again.relaxed.sum())
    with pytest.raises(ConfigError, match="`tolerances` must be a number >= 0"):
        balance_frontier(balancer, [-1.0])
    with pytest.raises(NotFittedError):
        balance_frontier(KernelBalancer())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"treatment": None}, "as 1 and 0 or true and false, got None"),
        ({"treatment": [1, 0, 2] * 20}, "got 2 in row 2"),
        ({"treatment": ["yes", "no", "no"] * 20}, "got 'yes' in row 0"),
        ({"treatment": [1, 0]}, r"got shape \(2,\)"),
        ({"treatment": [True] * 60}, "all are treated, and there is nothing to compare"),
        ({"X": pd.DataFrame({"a": np.arange(60) % 7, "t": [1, 0, 0] * 20})}, "column 't' separates the treated from"),
        ({"sample_weight": [-1.0] * 60}, "`sample_weight` must be finite, >= 0"),
    ],
)
def test_errors_of_treatments_name_the_argument(change, words):
    given = {"X": pd.DataFrame({"a": np.arange(60) % 7}), "treatment": [1, 0, 0] * 20} | change
    with pytest.raises(DataError, match=words):
        TreatmentBalancer().fit(given.pop("X"), given.pop("treatment"), **given)


def test_settings_of_treatments_are_checked():
    x, treated, outcome, _ = trial(60)
    with pytest.raises(
        ConfigError, match=r"`target` must be one of 'ate', 'att', 'atc', got 'atx'. Did you mean 'att'"
    ):
        TreatmentBalancer(target="atx").fit(x, treated)
    with pytest.raises(ConfigError, match="`balancer` must be a KernelBalancer or a MomentBalancer, got int"):
        TreatmentBalancer(balancer=3).fit(x, treated)
    with pytest.raises(DataError, match="`outcome` must have a finite number for each of the 60 rows"):
        TreatmentBalancer().fit(x, treated).effect(outcome[:3])
