"""How strongly training weights balance ("auto"), against which pairs, and where the intercept goes afterwards."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import expit

from counterpoise import ConfigError, Dataset, DebiasedRecommender, FeedbackLog, Training, evaluate, make, simulate
from counterpoise.balance.functions import KernelFunctions, Moments
from counterpoise.balance.path import balance_keeping
from counterpoise.balance.population import Sample
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.probability import shrink_by_error
from counterpoise.training.contracts import FitContext, InterceptShift
from counterpoise.weights.balancing import BalancedWeights, Balancing, share_to_keep, shift_between, weighted_intercept

SIDE = {"features": "side"}


def context_of(log: FeedbackLog) -> FitContext:
    backbone, device = MatrixFactorization(dim=4), torch.device("cpu")
    return FitContext(log, None, backbone, Training(epochs=5), device, torch.Generator().manual_seed(0))


def solved(part: Balancing, log: FeedbackLog) -> BalancedWeights:
    weights = part.init(context_of(log))
    assert isinstance(weights, BalancedWeights)
    weights.refresh(1, lambda: torch.from_numpy(0.5 + 0.3 * log.labels))
    return weights


@pytest.fixture(scope="module")
def mixed() -> Dataset:
    return simulate(300, 200, density=0.08, selection="mixed", seed=0).dataset


def effective_share(ratio: torch.Tensor) -> float:
    return float(ratio.double().sum() ** 2 / ratio.double().square().sum()) / len(ratio)


# ---- the population --------------------------------------------------------------------------------------------------


def targets_of(fold, strength: str) -> tuple[np.ndarray, np.ndarray]:
    """(means of the fold's functions, those over a table of pairs: D, or all items for the user of every row)."""
    n_users, n_items = len(fold.pairs.users), len(fold.pairs.items)
    users = fold.observed.users.tolist() if strength == "auto" else range(n_users)
    table = [(user, item) for user in users for item in range(n_items)]
    features = fold.pairs.features(*(torch.tensor(codes) for codes in zip(*table, strict=True)))
    return fold.fitted.targets.numpy(), fold.fitted.values(features.double()).mean(0).numpy()


@pytest.mark.parametrize("strength", ["auto", "exact", 0.3])
def test_auto_balances_against_the_users_of_the_log_and_others_against_d(
    strength: str | float, dataset: Dataset
) -> None:
    (fold,) = solved(Balancing(Moments(2), strength=strength, **SIDE), dataset.train).folds
    found, expected = targets_of(fold, strength)
    assert np.allclose(found, expected, atol=1e-9)
    other = targets_of(fold, "exact" if strength == "auto" else "auto")[1]
    assert abs(found - other).max() > 0.01
    kernels = Balancing(KernelFunctions(n=4, candidates=20), strength=strength, **SIDE)
    (fold,) = solved(kernels, dataset.train).folds
    assert np.allclose(*targets_of(fold, strength), atol=1e-5)


def test_activity_of_users_alone_needs_no_weights_in_training() -> None:
    """Users that rate more often than others, and items at random: exact weights balance it, those of "auto" do not."""
    rng = np.random.default_rng(0)
    observed = rng.random((80, 60)) < np.linspace(0.05, 0.9, 80)[:, None]
    users, items = np.nonzero(observed)
    log = FeedbackLog.from_arrays(users, items, rng.random(len(users)) < 0.5)
    share = {}
    for strength, kept in (("auto", 0.5), ("exact", None)):
        part = Balancing(Moments(1), strength=strength, features="activity", kept=kept)
        share[strength] = effective_share(solved(part, log).ratio)
    assert share["auto"] > 0.99
    assert share["exact"] < 0.8


# ---- the share that is kept ------------------------------------------------------------------------------------------


def test_the_share_to_keep_costs_half_a_thousandth_of_log_loss() -> None:
    """p / (2 kept n) - p / (2 n) = 0.0005 for p parameters and n rows."""
    for rows, users, items in ((10_000, 300, 200), (7_000, 290, 300), (1_000_000, 6_000, 3_000)):
        kept, p = share_to_keep(rows, users, items), users + items
        assert p / (2 * kept * rows) - p / (2 * rows) == pytest.approx(0.0005)


@pytest.mark.parametrize("kept", [None, 0.8])
@pytest.mark.parametrize("select", ["spectral", "worst_case"])
def test_weights_of_a_fit_keep_their_share(kept: float | None, select: str, mixed: Dataset) -> None:
    part = Balancing(KernelFunctions(n=20, select=select), kept=kept)  # type: ignore[arg-type]
    model = DebiasedRecommender(part, training=Training(epochs=2)).fit(mixed.train)
    facts, wanted = model.facts_["weights"], share_to_keep(len(mixed.train), 300, 200) if kept is None else kept
    share = effective_share(torch.from_numpy(model.ratio_))
    assert wanted - 1e-4 <= share < 1 - 0.8 * (1 - wanted)
    assert facts["path"]["kept"] == wanted
    assert facts["path"]["rule"].startswith("the largest strength whose effective sample size is at least `kept`")
    assert len(facts["path"]["points"]) == 2
    for points in facts["path"]["points"]:
        assert [point["strength"] for point in points] == sorted(point["strength"] for point in points)
        assert min(point["kept"] for point in points) <= wanted + 0.01
    assert facts["path"]["tolerance"] == pytest.approx(2 / np.sqrt(len(mixed.train) / 2), rel=0.01)
    json.dumps(model.facts_, allow_nan=False)


def test_the_weights_are_those_of_the_path(dataset: Dataset) -> None:
    (fold,) = solved(weights := Balancing(Moments(2), tolerance=0.01, kept=0.9, **SIDE), dataset.train).folds
    points = Sample(fold.observed.features(slice(None)))
    path = balance_keeping(fold.fitted, points, 0.9, 0.01)
    ratio = solved(weights, dataset.train).ratio.double()
    assert torch.allclose(ratio, len(ratio) * path.result.weights, atol=1e-4)
    assert fold.path is not None
    assert fold.path.tolerance == 0.01


def test_keeping_everything_is_the_plain_model(dataset: Dataset) -> None:
    model = make("skb-ips", kept=1, epochs=3).fit(dataset.train)
    assert np.allclose(model.ratio_, 1, atol=1e-5)


def test_exact_is_the_strength_of_100_without_a_path(dataset: Dataset) -> None:
    exact, number = (solved(Balancing(Moments(1), strength=s, **SIDE), dataset.train) for s in ("exact", 100.0))
    assert torch.equal(exact.ratio, number.ratio)
    assert exact.folds[0].path is None
    assert "path" not in exact.facts()
    assert exact.folds[0].result.max_violation < 1e-6


# ---- the intercept ---------------------------------------------------------------------------------------------------


def rows_of(seed: int = 0, rows: int = 400) -> tuple[torch.Tensor, ...]:
    """Logits, labels, and two sets of weights that differ by a cause of the labels."""
    rng = np.random.default_rng(seed)
    logits, cause = rng.normal(size=(2, rows))
    labels = (rng.random(rows) < expit(logits + cause)).astype(float)
    exact = np.exp(-cause)
    soft = np.exp(-0.1 * cause)
    return tuple(torch.tensor(values) for values in (logits, labels, soft / soft.mean(), exact / exact.mean()))


def root(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> float:
    """The c with sum w (label - sigmoid(logit + c)) = 0, by bisection."""
    x, y, w = (values.numpy() for values in (logits, labels, weights))
    return float(brentq(lambda c: (w * (y - expit(x + c))).sum(), -30, 30, xtol=1e-12))


@pytest.mark.parametrize("offset", [0.0, 8.0, -8.0])
def test_weighted_intercept_equals_bisection(offset: float) -> None:
    logits, labels, soft, exact = rows_of()
    for weights in (soft, exact, 1e-3 * exact):
        expected = root(logits + offset, labels, weights)
        assert weighted_intercept(logits + offset, labels, weights) == pytest.approx(expected, abs=1e-9)


def test_intercept_goes_from_one_root_to_the_other_shrunken_by_its_error() -> None:
    logits, labels, soft, exact = rows_of(rows=4000)
    found = shift_between(logits, labels, soft, exact)
    distance = root(logits, labels, exact) - root(logits, labels, soft)
    assert found.shift == pytest.approx(shrink_by_error(distance, found.standard_error**2), abs=1e-9)
    assert 0.7 * abs(distance) < abs(found.shift) < abs(distance)


def test_the_error_of_the_intercept_is_that_of_repeated_draws() -> None:
    """Over draws of the rows; it is above, where weights and labels have one cause."""
    distances, errors = [], []
    for seed in range(300):
        logits, labels, soft, exact = rows_of(seed)
        distances.append(root(logits, labels, exact) - root(logits, labels, soft))
        errors.append(shift_between(logits, labels, soft, exact).standard_error)
    assert 0.9 * np.std(distances) < np.mean(errors) < 1.5 * np.std(distances)


def test_equal_weights_move_nothing() -> None:
    logits, labels, soft, _ = rows_of()
    assert shift_between(logits, labels, soft, soft) == InterceptShift(0.0, 0.0)
    assert shift_between(logits, labels, soft, 3 * soft).shift == pytest.approx(0, abs=1e-9)


def test_one_class_does_not_move_the_intercept_to_infinity() -> None:
    logits, _, soft, exact = rows_of()
    for labels in (torch.zeros(400).double(), torch.ones(400).double()):
        assert abs(shift_between(logits, labels, soft, exact).shift) < 1


def test_intercept_compares_with_exact_weights_over_d_by_models_of_the_other_rows(mixed: Dataset) -> None:
    log, backbone = mixed.train, MatrixFactorization(dim=2)
    soft, exact = (solved(Balancing(Moments(2), strength=strength, **SIDE), log) for strength in ("auto", "exact"))
    (fold,) = soft.folds
    ratio = fold.exact_ratio(None, soft.ratio)
    assert torch.allclose(ratio, exact.ratio, atol=1e-5)
    logits = torch.randn(len(log), generator=torch.Generator().manual_seed(0))
    fold.predicted = lambda given: logits if given is backbone else 1 / 0  # type: ignore[method-assign]
    columns = logits, torch.from_numpy(log.labels), soft.ratio, exact.ratio
    expected = shift_between(*(column.double() for column in columns))
    found = soft.intercept_shift(backbone)
    assert found.shift == pytest.approx(expected.shift, abs=1e-4)
    assert found.standard_error == pytest.approx(expected.standard_error, rel=1e-3)
    assert abs(expected.shift) > 0.01


def test_logits_for_the_intercept_come_from_the_other_folds(mixed: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, learned_from, own = solved(Balancing(Moments(1)), mixed.train), [], FitContext.fit_labels
    with monkeypatch.context() as patch:
        patch.setattr(FitContext, "fit_labels", lambda given, b: learned_from.append(given.log) or own(given, b))
        weights.intercept_shift()
    for fold, log in zip(weights.folds, learned_from, strict=True):
        others = np.setdiff1d(np.arange(len(mixed.train)), fold.rows.numpy())
        assert np.array_equal(log.pairs, mixed.train.take(others).pairs)


@pytest.mark.parametrize("settings", [{}, {"backbone": "ncf"}])
def test_intercept_lowers_the_log_loss_and_leaves_the_ranking(settings: dict[str, str], mixed: Dataset) -> None:
    moved_model, plain = (
        make("skb-ips", move_intercept=moved, device="cpu", **settings).fit(mixed.train) for moved in (True, False)
    )
    shift = moved_model.facts_["intercept_shift"]["shift"]
    assert "intercept_shift" not in plain.facts_
    assert shift < -0.1
    assert np.array_equal(moved_model.ratio_, plain.ratio_)
    with torch.no_grad():
        moved = moved_model.scorer_.grid() - plain.scorer_.grid()
    assert torch.allclose(moved, torch.full_like(moved, shift), atol=1e-5)
    with_shift, without = (evaluate(model, mixed.test, bootstrap=0) for model in (moved_model, plain))
    assert with_shift.auc == pytest.approx(without.auc, abs=2e-5)
    assert with_shift.log_loss < without.log_loss - 0.02


def test_only_auto_moves_the_intercept_and_only_scorers_with_an_intercept_move(mixed: Dataset) -> None:
    for settings in ({"strength": 0.3}, {"strength": "exact"}):
        facts = make("skb-ips", epochs=2, **settings).fit(mixed.train).facts_  # type: ignore[arg-type]
        assert "intercept_shift" not in facts
    assert "intercept_shift" not in make("skb-ips", epochs=2, biases=False).fit(mixed.train).facts_


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strength": "atuo"}, r"`strength` must be .*'atuo'.*auto"),
        ({"units": "raw"}, r"`strength` and `tolerance` must be numbers for units='raw'"),
        ({"kept": 0.0}, r"`kept` must be .*got 0\.0\. It is a share of the effective sample"),
        ({"kept": 1.5}, r"`kept` must be .*got 1\.5"),
        ({"kept": float("nan")}, r"`kept` must be"),
        ({"move_intercept": "yes"}, r"`move_intercept` must be"),
        ({"strength": 1.0, "kept": 0.9}, r"`kept` must be left out for strength=1.0"),
        ({"strength": None}, r"`strength` must be a number >= 0, 'auto' or 'exact', got None"),
        ({"solver": "gradient", "strength": "exact"}, r"`solver` must be 'dual' for strength='exact'"),
    ],
)
def test_bad_settings_name_the_setting_and_the_way_out(
    settings: dict[str, object], message: str, dataset: Dataset
) -> None:
    with pytest.raises(ConfigError, match=message):
        DebiasedRecommender(Balancing(**settings)).fit(dataset.train)  # type: ignore[arg-type]


def test_settings_of_auto_can_be_given_by_name(dataset: Dataset) -> None:
    model = make("skb-ips", kept=0.9, move_intercept=False)
    assert (model.weights.strength, model.weights.kept, model.weights.move_intercept) == ("auto", 0.9, False)
    assert make("akb-dr").weights.strength == "auto"
