"""The debiased validation risk against a slow oracle, and against the ideal loss of simulated data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from counterpoise import (
    Balancing,
    ConfigError,
    DataError,
    Dataset,
    FeedbackLog,
    KernelFunctions,
    Uniform,
    evaluate_ranking,
    make,
    simulate,
)
from counterpoise.evaluation.estimates import (
    RANKED,
    Errors,
    Estimate,
    Validation,
    auc_errors,
    debiased_risk,
    pooled,
    solve_ratio,
)


def some_errors(rows: int = 30, probe_rows: int = 12, seed: int = 0) -> Errors:
    rng = np.random.default_rng(seed)
    users = rng.integers(8, size=rows + probe_rows)
    return Errors(rng.exponential(size=rows), rng.uniform(0.2, 3, rows), rng.exponential(size=probe_rows), users)


def slow_risk(errors: Errors) -> Estimate:
    """The formula of `debiased_risk`, row by row and user by user."""
    total = sum(errors.weights)
    effective, n = total**2 / sum(w * w for w in errors.weights), len(errors.on_probe)
    share = effective / (effective + n)
    log_mean = sum(w * e for w, e in zip(errors.weights, errors.on_log, strict=True)) / total
    probe_mean = sum(errors.on_probe) / n if n else 0.0
    moved: dict[int, float] = {}
    for row, (w, e) in enumerate(zip(errors.weights, errors.on_log, strict=True)):
        user = int(errors.users[row])
        moved[user] = moved.get(user, 0.0) + share * w / total * (e - log_mean)
    for row, e in enumerate(errors.on_probe):
        user = int(errors.users[len(errors.on_log) + row])
        moved[user] = moved.get(user, 0.0) + (1 - share) / n * (e - probe_mean)
    return Estimate(share * log_mean + (1 - share) * probe_mean, sum(x * x for x in moved.values()) ** 0.5)


@pytest.mark.parametrize("probe_rows", [0, 1, 12])
def test_risk_is_its_formula(probe_rows: int) -> None:
    errors = some_errors(probe_rows=probe_rows)
    assert debiased_risk(errors) == pytest.approx(slow_risk(errors))


def test_equal_weights_and_independent_rows_give_mean_and_standard_error() -> None:
    errors = np.random.default_rng(0).exponential(size=50)
    risk = debiased_risk(Errors(errors, np.ones(50), np.empty(0), np.arange(50)))
    assert risk == pytest.approx((errors.mean(), errors.std() / 50**0.5))


def test_scale_of_the_weights_does_not_matter() -> None:
    errors = some_errors()
    assert debiased_risk(errors._replace(weights=7 * errors.weights)) == pytest.approx(debiased_risk(errors))


def test_risk_of_a_difference_is_the_difference_of_the_risks() -> None:
    one, other = some_errors(seed=0), some_errors(seed=1)
    other = other._replace(weights=one.weights, users=one.users)
    difference = debiased_risk(one.minus(other)).value
    assert difference == pytest.approx(debiased_risk(one).value - debiased_risk(other).value)


def test_standard_error_matches_repeated_draws_of_users() -> None:
    rng, values = np.random.default_rng(0), []
    for _ in range(600):  # 40 users of 5 rows of the log and one of the probe; what is common to a user counts
        common, users = rng.normal(size=40), np.repeat(np.arange(40), 5)
        on_log = common[users] + 0.5 * rng.normal(size=200)
        on_probe = common + 0.5 * rng.normal(size=40)
        values.append(debiased_risk(Errors(on_log, np.ones(200), on_probe, np.r_[users, np.arange(40)])))
    found = np.array(values)
    assert np.sqrt((found[:, 1] ** 2).mean()) == pytest.approx(found[:, 0].std(), rel=0.1)


def test_pooling_keeps_every_row_with_its_user() -> None:
    errors = some_errors(rows=20, probe_rows=10)
    parts = [
        Errors(
            errors.on_log[a:b],
            errors.weights[a:b],
            errors.on_probe[c:d],
            np.r_[errors.users[:20][a:b], errors.users[20:][c:d]],
        )
        for a, b, c, d in ((0, 7, 0, 4), (7, 20, 4, 10))
    ]
    assert debiased_risk(pooled(parts)) == pytest.approx(debiased_risk(errors))


def test_every_row_is_held_out_once_and_not_fitted(dataset: Dataset) -> None:
    assert dataset.probe is not None
    log = dataset.train
    overlapping = log.take(np.arange(10))  # rows of the probe whose label fits have seen
    columns = {
        name: np.concatenate([getattr(dataset.probe, name), getattr(overlapping, name)])
        for name in ("users", "items", "ratings")
    }
    probe = replace(dataset.probe, **columns)
    validation = Validation.of(log, probe, folds=4, weights=Uniform())
    judging = np.concatenate([fold.held_out.pairs for fold in validation.folds])
    assert sorted(judging) == sorted(log.pairs)
    on_probe = np.concatenate([fold.held_out_probe.pairs for fold in validation.folds])
    assert sorted(on_probe) == sorted(set(probe.pairs) - set(log.pairs))
    for fold in validation.folds:
        assert fold.probe is not None
        seen = {*fold.log.pairs, *fold.probe.take(~np.isin(fold.probe.pairs, log.pairs)).pairs}
        assert not seen & {*fold.held_out.pairs, *fold.held_out_probe.pairs}
        assert len(fold.log) + len(fold.held_out) == len(log)


def test_one_of_five_folds_holds_out_a_fifth(dataset: Dataset) -> None:
    facts = Validation.of(dataset, eval_folds=1, weights=Uniform()).facts()
    assert facts["held_out_rows"] == pytest.approx(len(dataset.train) / 5, abs=1)
    assert (facts["folds"], facts["eval_folds"]) == (5, 1)


def test_validation_weights_do_not_depend_on_labels(dataset: Dataset) -> None:
    log = dataset.train
    turned = replace(log, ratings=1 - log.ratings)
    weights = [solve_ratio(one, None, Balancing(), 0) for one in (log, turned)]
    np.testing.assert_array_equal(*weights)
    assert weights[0].mean() == pytest.approx(1, abs=1e-4)


def test_weights_that_follow_a_predictor_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="must be ready before training"):
        Validation.of(dataset, weights=Balancing(KernelFunctions(select="adaptive")))


@pytest.mark.parametrize(("settings", "message"), [({"folds": 1}, "folds"), ({"eval_folds": 6}, "eval_folds")])
def test_impossible_number_of_folds_is_an_error(dataset: Dataset, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Validation.of(dataset, **settings)


def test_log_of_too_few_rows_is_an_error(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="two rows for each of the 5 folds"):
        Validation.of(dataset.train.take(np.arange(9)))


def test_global_generator_is_not_advanced(dataset: Dataset) -> None:
    before = torch.get_rng_state()
    Validation.of(dataset, weights=Uniform()).risk(partial(make, "mf", dim=2, epochs=2))
    assert torch.equal(before, torch.get_rng_state())


CONFIGURATIONS = [{"l2": l2, "l2_biases": biases} for l2 in (0.5, 32.0) for biases in (0.5, 16.0)]


def test_debiased_risk_orders_configurations_better_than_unweighted_loss() -> None:
    squares = {"balanced": 0.0, "unweighted": 0.0}
    for seed in range(2):
        world = simulate(n_users=100, n_items=80, density=0.12, strength=1.5, seed=seed)
        validation = Validation.of(world.dataset, folds=3, seed=seed)
        makers = [partial(make, "mf", dim=4, epochs=50, **settings) for settings in CONFIGURATIONS]
        errors = [pooled(list(validation.errors_by_fold(maker))) for maker in makers]
        found = {
            "balanced": [debiased_risk(each).value for each in errors],
            "unweighted": [each.on_log.mean() for each in errors],
            "ideal": [world.ideal_risk(maker().fit(world.dataset.train)) for maker in makers],
        }
        centred = {name: np.array(values) - np.mean(values) for name, values in found.items()}
        for name in squares:
            squares[name] += float(((centred[name] - centred["ideal"]) ** 2).mean())
        assert np.argmax(centred["balanced"]) == np.argmax(centred["ideal"])  # the worst is found to be the worst
        assert np.corrcoef(centred["balanced"], centred["ideal"])[0, 1] > 0.9
    assert squares["balanced"] < 0.5 * squares["unweighted"]


def test_trials_of_clicks_are_judged_by_weighted_ranks_of_held_out_ones() -> None:
    log = simulate(n_users=60, n_items=40, density=0.3, selection="popularity", seed=1).dataset.train
    log = FeedbackLog.from_arrays(log.users[log.labels > 0], log.items[log.labels > 0])
    validation = Validation.of(log, folds=3, eval_folds=2, seed=4)
    assert validation.weights == pytest.approx(
        1 / np.sqrt(np.bincount(log.items)[log.items]) / np.mean(1 / np.sqrt(np.bincount(log.items)[log.items]))
    )
    risk = validation.risk(lambda: make("popularity", feedback="clicks"))
    gains = []
    for fold in validation.folds:
        model = make("popularity", feedback="clicks").fit(fold.log)
        found = evaluate_ranking(model, fold.held_out, RANKED, weights=fold.weights, train=fold.log)
        gains.append((found.dcg, fold.weights.sum()))
    values, totals = zip(*gains, strict=True)
    assert risk.value == pytest.approx(1 - np.average(values, weights=totals))
    assert validation.facts()["measure"] == "1 - DCG@10"


def slow_auc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
    """Pair by pair."""
    right = total = 0.0
    for a in np.flatnonzero(labels == 1):
        for b in np.flatnonzero(labels == 0):
            right += weights[a] * weights[b] * ((scores[a] > scores[b]) + 0.5 * (scores[a] == scores[b]))
            total += weights[a] * weights[b]
    return right / total


def test_errors_of_an_auc_have_its_mean_and_its_derivatives() -> None:
    rng = np.random.default_rng(0)
    labels, scores = (rng.random(40) < 0.4).astype(float), np.round(rng.random(40), 1)
    weights = rng.uniform(0.2, 3, 40)
    errors = auc_errors(labels, scores, weights)
    assert np.average(errors, weights=weights) == pytest.approx(1 - slow_auc(labels, scores, weights), abs=1e-12)
    for row in (0, 7, 31):  # d AUC = d w / (sum of w) x (its mean - the row's error)
        more = weights.copy()
        more[row] += 1e-5
        slope = (slow_auc(labels, scores, more) - slow_auc(labels, scores, weights)) / 1e-5
        gap = np.average(errors, weights=weights) - errors[row]
        assert slope == pytest.approx(gap / weights.sum(), abs=1e-7)


def test_the_risk_by_auc_is_one_minus_its_mean_over_folds(dataset: Dataset) -> None:
    validation = Validation.of(dataset.train, folds=3, measure="1 - AUC")
    assert validation.facts()["measure"] == "1 - AUC"
    found, total = 0.0, 0.0
    for fold in validation.folds:
        p = make("mf", epochs=3, dim=2).fit(fold.log, fold.probe).predict_log(fold.held_out)
        found += fold.weights.sum() * (1 - slow_auc(fold.held_out.labels, p, fold.weights))
        total += fold.weights.sum()
    risk = validation.risk(lambda: make("mf", epochs=3, dim=2))
    assert risk.value == pytest.approx(found / total, abs=1e-9)
    assert 0 < risk.standard_error < 0.2


def test_selection_by_the_label_alone_moves_the_log_loss_and_no_auc(dataset: Dataset) -> None:
    """Which is why a search without a probe goes by the AUC."""
    factor, values = np.where(dataset.train.labels == 1, 0.3, 1.0), {}
    for measure in ("log loss", "1 - AUC"):
        own = Validation.of(dataset.train, folds=3, measure=measure)
        other = replace(own, weights=own.weights * factor)
        values[measure] = [
            [debiased_risk(errors).value for errors in one.errors_by_fold(lambda: make("mf", epochs=3, dim=2))]
            for one in (own, other)
        ]
    assert np.abs(np.subtract(*values["log loss"])).min() > 0.01
    assert values["1 - AUC"][1] == pytest.approx(values["1 - AUC"][0], abs=1e-12)


def test_what_has_no_auc_is_said(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="`measure` must be one of 'log loss', '1 - AUC', got 'auc'"):
        Validation.of(dataset.train, measure="auc")
    with pytest.raises(DataError, match="the 3 rows that are held out have one label only, and no AUC"):
        auc_errors(np.ones(3), np.arange(3.0), np.ones(3))
    assert np.isnan(auc_errors(np.array([0.0, 1.0]), np.array([0.5, np.nan]), np.ones(2))).all()
    assert not len(auc_errors(np.empty(0), np.empty(0), np.empty(0)))
