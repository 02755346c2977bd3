"""Weights from propensities: estimated from the log alone, or given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from oracles import mean
from scipy.special import expit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import counterpoise as cp
from counterpoise import (
    ConfigError,
    DataError,
    Dataset,
    DebiasedRecommender,
    FeedbackLog,
    MatrixFactorization,
    SimulatedData,
    Training,
    load_model,
    make,
    read_log,
    read_logs,
    simulate,
)
from counterpoise.balance.features import pair_features
from counterpoise.config import from_config
from counterpoise.methods import WEIGHTS
from counterpoise.risks import dr, error, exposure_cross_entropy, ips, negative_log_complement, snips
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext, FittedWeights, Weights
from counterpoise.weights import propensity as module
from counterpoise.weights.base import NaiveBayes, Uniform, inverse_propensity, propensity_facts
from counterpoise.weights.propensity import KnownPropensity, Logistic, Popularity, Propensity, regress

LABEL_FREE = pytest.mark.parametrize(
    "part",
    [Logistic(), Propensity(), Popularity(), Popularity("both"), cp.Calibrated(Logistic()), cp.Capped(Logistic(), 1.5)],
    ids=repr,
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """After a first fit torch shares out even tiny arrays between its threads, which wait longer than they work."""
    with one_thread():
        yield


def context(log: FeedbackLog, **training: object) -> FitContext:
    settings = {"epochs": 20, **training}
    generator = torch.Generator().manual_seed(0)
    return FitContext(log, None, MatrixFactorization(dim=4), Training(**settings), torch.device("cpu"), generator)


def indicator(log: FeedbackLog) -> np.ndarray:
    """o: 1 where a pair of D was observed. (|U|, |I|)"""
    observed = np.zeros(log.shape)
    observed[log.users, log.items] = 1
    return observed


def propensities(fitted_weights: FittedWeights, log: FeedbackLog) -> np.ndarray:
    """The propensities of all pairs, from the ratios."""
    return log.density / fitted_weights.at(None, None).double().numpy().reshape(log.shape)


def rows_of(log: FeedbackLog) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(log.users), torch.from_numpy(log.items)


# ---- formulas --------------------------------------------------------------------------------------------------------


def test_exposure_cross_entropy_is_the_mean_over_all_pairs(dataset: Dataset) -> None:
    log, rng = dataset.train, np.random.default_rng(0)
    logits = rng.normal(size=log.shape)
    slow = [
        -np.log(expit(s)) if o else -np.log(1 - expit(s))
        for s, o in zip(logits.ravel(), indicator(log).ravel(), strict=True)
    ]
    on_pairs, on_rows = torch.from_numpy(logits).flatten(), torch.from_numpy(logits[log.users, log.items])
    assert float(exposure_cross_entropy(on_pairs, on_rows, log.density)) == pytest.approx(mean(slow), abs=1e-12)


def test_the_written_out_gradient_is_that_of_its_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(30, generator=generator, dtype=torch.float64)).requires_grad_()
    share = torch.rand(30, generator=generator, dtype=torch.float64)
    share[:3] = torch.tensor([0.0, 1.0, 1.0])
    slow = [-np.log(1 - a * expit(s)) for a, s in zip(share.tolist(), logits.tolist(), strict=True)]
    assert negative_log_complement(logits, share).item() == pytest.approx(mean(slow), abs=1e-12)
    assert torch.autograd.gradcheck(lambda s: negative_log_complement(s, share), (logits,))


@pytest.mark.parametrize("share", [1.0, 0.4, -3.0])
def test_one_share_for_all_logits_has_the_same_gradient(share: float) -> None:
    logits = torch.randn(4000, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = negative_log_complement(logits, share)
    slow = -torch.log(1 - share * torch.sigmoid(logits.double())).mean()
    assert found.item() == pytest.approx(slow.item(), rel=1e-6)
    gradients = [torch.autograd.grad(2 * loss, logits)[0] for loss in (found, slow)]
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-12)


def test_large_logits_keep_the_cross_entropy_finite() -> None:
    logits = torch.tensor([-80.0, 0.0, 60.0], requires_grad=True)
    loss = negative_log_complement(logits, 1.0)
    assert loss.item() == pytest.approx((np.log(2) + 60) / 3, rel=1e-6)
    assert torch.autograd.grad(loss, logits)[0].tolist() == pytest.approx([0, 1 / 6, 1 / 3], abs=1e-6)


def test_clipping_caps_the_ratio_and_its_facts_count() -> None:
    propensity = torch.tensor([0.001, 0.004, 0.1, 0.4], dtype=torch.float64)
    ratio = inverse_propensity(propensity, density=0.1, clip=0.05)
    assert ratio.tolist() == pytest.approx([20.0, 20.0, 1.0, 0.25])
    facts = propensity_facts(propensity, 0.1, 0.05)
    assert facts == pytest.approx(
        {
            "clipped_rows": 2,
            "clipped_share": 0.5,
            "weight_removed": 1 - 41.25 / 126.25,
            "smallest_propensity": 0.001,
            "largest_propensity": 0.4,
            "mean_ratio": 41.25 / 4,
        }
    )
    assert inverse_propensity(propensity, 0.1, 0.0).max() == 100


# ---- estimators ------------------------------------------------------------------------------------------------------


def test_unregularised_regression_meets_its_moments_on_all_pairs(dataset: Dataset) -> None:
    """sum over D of (o - p) = 0, and of (o - p) x = 0 for every feature x."""
    log = dataset.train
    gap = indicator(log) - propensities(Logistic(l2=0, clip=0).init(context(log)), log)
    pairs = pair_features(log, ("side", "activity"))
    assert abs(gap.sum()) < 1e-3  # ratios are float32
    assert np.abs(gap.sum(1) @ pairs.users.numpy()).max() < 1e-3
    assert np.abs(gap.sum(0) @ pairs.items.numpy()).max() < 1e-3


def test_regression_agrees_with_scikit_learn(dataset: Dataset) -> None:
    log = dataset.train
    pairs = pair_features(log, ("side", "activity"))
    users, items = (codes.ravel() for codes in np.indices(log.shape))
    x = np.hstack([pairs.users.numpy()[users], pairs.items.numpy()[items]])
    expected = LogisticRegression(C=1 / 5.0, tol=1e-10, max_iter=2000).fit(x, indicator(log).ravel())
    found = regress(pairs, *(c.long() for c in rows_of(log)), l2=5.0, generator=torch.Generator())
    assert float(found.intercept) == pytest.approx(expected.intercept_[0], abs=1e-5)
    assert torch.cat([found.users, found.items]).numpy() == pytest.approx(expected.coef_[0], abs=1e-5)


def test_drawn_pairs_stand_for_all_of_them(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    log = dataset.train
    pairs = pair_features(log, ("side", "activity"))
    codes = [c.long() for c in rows_of(log)]
    exact = regress(pairs, *codes, l2=1.0, generator=torch.Generator())
    monkeypatch.setattr(module, "MAX_EXACT_PAIRS", 10)
    monkeypatch.setattr(module, "SAMPLED_PAIRS", 200_000)
    drawn = regress(pairs, *codes, l2=1.0, generator=torch.Generator().manual_seed(0))
    for one, other in zip(exact, drawn, strict=True):
        assert one.numpy() == pytest.approx(other.numpy(), abs=0.05)


def test_regression_copes_with_a_log_of_all_pairs() -> None:
    users, items = (codes.ravel() for codes in np.indices((6, 5)))
    features = np.random.default_rng(0).normal(size=(6, 2))
    log = FeedbackLog.from_arrays(users, items, items % 2, user_features=features)
    assert Logistic(("side",)).init(context(log)).ratio.numpy() == pytest.approx(1, abs=1e-3)


def test_regression_does_without_side_features_and_with_embeddings(dataset: Dataset) -> None:
    log = dataset.train
    bare = replace(log, user_features=None, item_features=None)
    without, activity = (
        part.init(context(one)).ratio for part, one in ((Logistic(), bare), (Logistic(("activity",)), log))
    )
    assert torch.equal(without, activity)
    assert not torch.equal(Logistic(("activity", "embeddings")).init(context(log)).ratio, activity)


@pytest.mark.parametrize("of", ["item", "user", "both"])
def test_popularity_is_counted(of: str, dataset: Dataset) -> None:
    log = dataset.train
    users, items = (np.bincount(codes, minlength=size) for codes, size in zip(rows_of(log), log.shape, strict=True))
    both = np.minimum(users[log.users] * items[log.items], len(log))  # as a propensity over |O|, at most 1
    count = {"user": users[log.users], "item": items[log.items], "both": both}[of]
    ratio = Popularity(of, clip=0).init(context(log)).ratio.numpy()
    assert ratio == pytest.approx((1 / count) / (1 / count).mean(), rel=1e-5)


def test_the_estimates_approach_the_true_propensities() -> None:
    world = simulate(n_users=300, n_items=200, density=0.1, seed=5)
    log, truth = world.dataset.train, np.asarray(world.propensity)

    def loss(part: Weights) -> float:
        p = np.clip(propensities(part.init(context(log, epochs=150)), log), 1e-6, 1 - 1e-6)
        return float(-(truth * np.log(p) + (1 - truth) * np.log1p(-p)).mean())

    best = float(-(truth * np.log(truth) + (1 - truth) * np.log1p(-truth)).mean())
    constant = float(-(truth * np.log(log.density) + (1 - truth) * np.log1p(-log.density)).mean())
    assert loss(Logistic()) < constant - 0.5 * (constant - best)
    assert loss(Propensity()) < constant - 0.75 * (constant - best)
    assert loss(Popularity()) < constant


def test_sampled_pairs_train_nearly_the_same_model(dataset: Dataset) -> None:
    log = dataset.train
    exact = Propensity().init(context(log, epochs=150)).ratio.log()
    sampled = Propensity().init(context(log, epochs=150, batch_size=100)).ratio.log()
    assert np.corrcoef(exact, sampled)[0, 1] > 0.9


@LABEL_FREE
def test_estimates_ignore_labels_and_the_order_of_rows(part: Weights, dataset: Dataset) -> None:
    log, order = dataset.train, np.random.default_rng(0).permutation(len(dataset.train))
    ratio = part.init(context(log)).ratio
    assert torch.equal(part.init(context(replace(log, ratings=1 - log.ratings))).ratio, ratio)
    shuffled = part.init(context(log.take(order))).ratio
    assert shuffled.numpy() == pytest.approx(ratio.numpy()[order], rel=1e-3)


@LABEL_FREE
def test_the_ratio_of_rows_is_that_of_their_pairs(part: Weights, dataset: Dataset) -> None:
    log = dataset.train
    fitted_weights = part.init(context(log))
    grid = fitted_weights.at(None, None).reshape(log.shape)
    assert fitted_weights.ratio.shape == (len(log),)
    assert torch.allclose(fitted_weights.at(*rows_of(log)), fitted_weights.ratio)
    assert torch.allclose(grid[log.users, log.items], fitted_weights.ratio, rtol=1e-5)
    assert float(grid.max()) <= 20 * 1.5
    json.dumps(fitted_weights.facts(), allow_nan=False)


@pytest.mark.parametrize("word", [word for word in WEIGHTS if word != "known"])
@pytest.mark.parametrize("training", [{}, {"batch_size": 70, "patience": 2}], ids=["full", "small"])
def test_all_weights_train_a_model_that_can_be_saved(
    word: str, training: dict[str, int], dataset: Dataset, tmp_path: Path
) -> None:
    settings = Training(epochs=4, **training)
    model = DebiasedRecommender(getattr(cp, WEIGHTS[word])(), training=settings).fit(dataset.train, dataset.probe)
    again = DebiasedRecommender(getattr(cp, WEIGHTS[word])(), training=settings).fit(dataset.train, dataset.probe)
    assert np.array_equal(model.predict_log(dataset.test), again.predict_log(dataset.test))
    assert np.isfinite(model.ratio_).all()
    assert (model.ratio_ > 0).all()
    model.save(tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    assert loaded == model
    assert loaded.facts_ == model.facts_


# ---- what weights promise a risk -------------------------------------------------------------------------------------


def test_with_naive_bayes_weights_ips_is_snips(dataset: Dataset) -> None:
    given = replace(context(dataset.train), probe=dataset.probe)
    ratio = NaiveBayes().init(given).ratio.double()
    assert float(ratio.sum()) / dataset.train.density == pytest.approx(dataset.train.n_pairs, rel=1e-6)
    errors = torch.rand(len(ratio), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(ips(errors, ratio)) == pytest.approx(float(snips(errors, ratio)), rel=1e-6)


def test_a_constant_propensity_is_naive(dataset: Dataset) -> None:
    log = dataset.train
    errors = torch.rand(len(log), generator=torch.Generator().manual_seed(0))
    ratio = KnownPropensity(np.full(log.shape, 0.3)).init(context(log)).ratio
    assert float(snips(errors, ratio)) == pytest.approx(float(errors.mean()), rel=1e-6)
    assert float(ips(errors, ratio)) == pytest.approx(float(errors.mean()) * log.density / 0.3, rel=1e-5)
    naive, same = (
        DebiasedRecommender(part, training=Training(epochs=5)).fit(log).predict_log(dataset.test)
        for part in (Uniform(), KnownPropensity(np.full(log.shape, log.density)))
    )
    assert naive == pytest.approx(same, abs=1e-5)


def test_true_propensities_make_the_risks_unbiased() -> None:
    """The mean over repeated observation is the ideal loss, within three standard errors."""
    rng = np.random.default_rng(0)
    shape = (40, 50)
    truth = expit(rng.normal(size=shape) - 1.5)
    labels, logits = (rng.random(shape) < 0.4).astype(float), rng.normal(size=shape)
    errors = error(torch.from_numpy(labels), torch.from_numpy(logits + 2 * (truth - 0.2))).numpy()
    imputed = rng.random(shape)
    found = []
    for _ in range(400):
        users, items = np.nonzero(rng.random(shape) < truth)
        log = FeedbackLog.from_arrays(
            users, items, labels[users, items], user_ids=np.arange(shape[0]), item_ids=np.arange(shape[1])
        )
        ratio = KnownPropensity(truth, clip=0).init(context(log)).ratio
        observed, own = torch.from_numpy(errors[users, items]), torch.from_numpy(imputed[users, items])
        found.append(
            [
                ips(observed, ratio),
                snips(observed, ratio),
                dr(observed, ratio, own, torch.from_numpy(imputed).flatten()),
            ]
        )
    found = np.array(found)
    deviation = np.abs(found.mean(0) - errors.mean()) / (found.std(0) / np.sqrt(len(found)))
    assert deviation.max() < 3, deviation
    assert found.min(0)[1] >= errors.min()
    assert found.max(0)[1] <= errors.max()


# ---- given -----------------------------------------------------------------------------------------------------------


def test_matrix_function_array_and_column_are_the_same(world: SimulatedData) -> None:
    log, table = world.dataset.train, np.asarray(world.propensity)
    own = table[log.users, log.items]
    expected = log.density / np.maximum(own, 0.05 * log.density)
    for part, given in (
        (KnownPropensity(table), log),
        (KnownPropensity(world.propensity), log),
        (KnownPropensity(own), log),
        (KnownPropensity(), replace(log, propensities=own)),
    ):
        assert part.init(context(given)).ratio.numpy() == pytest.approx(expected, rel=1e-5)
    everywhere = log.density / np.maximum(table.ravel(), 0.05 * log.density)
    for part in (KnownPropensity(table), KnownPropensity(world.propensity)):
        fitted_weights = part.init(context(log))
        assert fitted_weights.at(None, None).numpy() == pytest.approx(everywhere, rel=1e-5)
        assert fitted_weights.at(None, None) is fitted_weights.at(None, None) or isinstance(part.propensity, np.ndarray)


@pytest.mark.parametrize("how", ["matrix", "function", "column"])
def test_given_propensities_follow_the_rows_that_patience_holds_out(how: str, world: SimulatedData) -> None:
    log = world.dataset.train
    own = world.propensity(log.users, log.items)
    propensity = {"matrix": np.asarray(world.propensity), "function": world.propensity, "column": None}[how]
    model = DebiasedRecommender(KnownPropensity(propensity), training=Training(epochs=3, patience=2))
    model.fit(replace(log, propensities=own) if how == "column" else log)
    whole = KnownPropensity(own, clip=0.05).init(context(log)).ratio
    assert model.ratio_.mean() == pytest.approx(float(whole.mean()), rel=0.1)  # 90 % of the rows, the same weights
    assert set(np.round(model.ratio_, 3)) <= set(np.round(whole.numpy() * len(model.ratio_) / len(log) / 0.9, 3))


def test_an_array_cannot_follow_patience(world: SimulatedData) -> None:
    log = world.dataset.train
    model = DebiasedRecommender(KnownPropensity(np.full(len(log), 0.2)), training=Training(epochs=2, patience=1))
    with pytest.raises(DataError, match=r"With patience some rows are held out .* give the log its `propensities`"):
        model.fit(log)


def test_propensities_of_rows_are_unknown_elsewhere(world: SimulatedData) -> None:
    log = world.dataset.train
    fitted_weights = KnownPropensity(np.full(len(log), 0.2)).init(context(log))
    unseen = np.argwhere(indicator(log) == 0)[:1]
    for pairs in ((None, None), (torch.from_numpy(unseen[:, 0]), torch.from_numpy(unseen[:, 1]))):
        with pytest.raises(ConfigError, match="known for the rows of the log alone"):
            fitted_weights.at(*pairs)


def test_a_loaded_model_without_its_propensities_names_them(world: SimulatedData, tmp_path: Path) -> None:
    log = world.dataset.train
    training = Training(epochs=3, device="cpu")
    model = DebiasedRecommender(KnownPropensity(world.propensity, clip=0.1), training=training).fit(log)
    model.save(tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    assert np.array_equal(loaded.predict_log(log), model.predict_log(log))
    assert loaded.weights == KnownPropensity(clip=0.1)
    with pytest.raises(ConfigError, match=r"`propensity` must be given: .*a saved model keeps none"):
        loaded.fit(log)
    assert loaded.set_params(weights__propensity=world.propensity).fit(log).ratio_ == pytest.approx(model.ratio_)


def test_given_weights_are_compared_and_cloned_by_value(world: SimulatedData) -> None:
    table = np.asarray(world.propensity)
    assert KnownPropensity(table) == KnownPropensity(table.copy())
    assert KnownPropensity(table) != KnownPropensity(table / 2)
    assert KnownPropensity(table) != KnownPropensity()
    assert KnownPropensity(world.propensity) == KnownPropensity(world.propensity)
    assert KnownPropensity(world.propensity) != KnownPropensity(table)
    assert KnownPropensity(clip=0.1) != KnownPropensity()
    assert KnownPropensity() != Uniform()
    assert clone(DebiasedRecommender(KnownPropensity(table))) == DebiasedRecommender(KnownPropensity(table))
    json.dumps(DebiasedRecommender(KnownPropensity(table)).to_config())


@pytest.mark.parametrize("value", [0.0, -0.5, 1.5, np.nan])
def test_given_propensities_must_be_probabilities(value: float, world: SimulatedData) -> None:
    log = world.dataset.train
    table, own = np.full(log.shape, 0.5), np.full(len(log), 0.5)
    table[3, 4], own[7] = value, value
    with pytest.raises(DataError, match=rf"\(0, 1\], got {value:g} for user code 3, item code 4"):
        KnownPropensity(table).init(context(log))
    with pytest.raises(DataError, match=rf"\(0, 1\], got {value:g} for row 7"):
        KnownPropensity(own).init(context(log))
    with pytest.raises(DataError, match=rf"\(0, 1\], got {value:g} for user code \d+, item code \d+"):
        KnownPropensity(lambda users, items: np.full(len(users), value)).init(context(log))


def test_given_propensities_must_have_a_shape_that_fits(world: SimulatedData) -> None:
    log = world.dataset.train
    with pytest.raises(DataError, match=r"`propensity` must have the shape \(60, 50\) of all pairs or \(\d+,\)"):
        KnownPropensity(np.full((3, 2), 0.5)).init(context(log))
    with pytest.raises(DataError, match=r"one value for each of the \d+ pairs asked for, got \(\)"):
        KnownPropensity(lambda users, items: 0.5).init(context(log))
    with pytest.raises(DataError, match="`propensity` must hold numbers only"):
        KnownPropensity(["often", "rarely"]).init(context(log))


# ---- the column of a log ---------------------------------------------------------------------------------------------


def test_a_log_keeps_its_propensities(tmp_path: Path) -> None:
    columns = {"user_id": [1, 1, 2, 3], "item_id": [1, 2, 1, 2], "rating": [1, 0, 1, 1], "chance": [0.1, 0.2, 1, 0.4]}
    log = FeedbackLog.from_frame(pl.DataFrame(columns), propensity_col="chance")
    assert log.propensities.tolist() == [0.1, 0.2, 1.0, 0.4]
    assert log.take([2, 0]).propensities.tolist() == [1.0, 0.1]
    drawn, rest = log.split(0.5, np.random.default_rng(0))
    assert sorted([*drawn.propensities, *rest.propensities]) == [0.1, 0.2, 0.4, 1.0]
    assert log.to_frame()["propensity"].to_list() == columns["chance"]
    pl.DataFrame(columns).write_csv(tmp_path / "log.csv")
    assert read_log(tmp_path / "log.csv", propensity_col="chance").propensities.tolist() == columns["chance"]
    pl.DataFrame(columns).drop("chance").write_csv(tmp_path / "test.csv")
    logs = read_logs({"train": tmp_path / "log.csv", "test": tmp_path / "test.csv"}, propensity_col="chance")
    assert logs["test"].propensities is None
    with pytest.raises(DataError, match="no column 'chance'"):
        read_log(tmp_path / "test.csv", propensity_col="chance")


def test_a_repeated_pair_keeps_the_propensity_of_its_last_row() -> None:
    log = FeedbackLog.from_arrays([1, 2, 1], [1, 1, 1], [0, 1, 1], propensities=[0.1, 0.2, 0.3], duplicates="mean")
    assert log.propensities.tolist() == [0.2, 0.3]
    assert log.known_propensities.at(log.pairs).tolist() == [0.2, 0.3]


@pytest.mark.parametrize(("value", "words"), [(0, "got 0"), (1.5, "got 1.5"), ("x", "got 'x'")])
def test_a_wrong_propensity_is_named_with_its_row(value: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"column 'propensity', row 1: expected .*{words}"):
        FeedbackLog.from_arrays([1, 2], [1, 1], [0, 1], propensities=pl.Series([0.5, value], strict=False).to_list())
    (tmp_path / "log.csv").write_text(f"user_id,item_id,rating,chance\n1,1,0,0.5\n2,1,1,{value}\n")
    with pytest.raises(DataError, match=rf"log.csv: column 'chance', row 3: expected .*{words}"):
        read_log(tmp_path / "log.csv", propensity_col="chance")
    with pytest.raises(DataError, match=r"must have equal lengths, got \[1, 2\]"):
        FeedbackLog.from_arrays([1, 2], [1, 1], [0, 1], propensities=[0.5])


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", WEIGHTS)
def test_a_word_builds_weights_that_come_back_from_their_configuration(word: str) -> None:
    part = make("ips", weights=word).weights
    assert type(part).__name__ == WEIGHTS[word]
    assert from_config(json.loads(json.dumps(part.to_config()))) == part


def test_bad_settings_are_named(dataset: Dataset) -> None:
    given = context(dataset.train)
    with pytest.raises(ConfigError, match=r"`weights` must be a Weights or one of 'uniform', .* got 'ipw'"):
        make("ips", weights="ipw")
    for part in (
        Logistic(clip=-1),
        Propensity(clip=2),
        Popularity(clip="no"),
        KnownPropensity(np.full((60, 50), 0.5), clip=-1),
    ):
        with pytest.raises(ConfigError, match="`clip` must be a number >= 0 and <= 1"):
            part.init(given)
    with pytest.raises(ConfigError, match="`l2` must be a number >= 0"):
        Logistic(l2=-1).init(given)
    with pytest.raises(ConfigError, match=r"`sources` must be one of 'side', .* got 'age'"):
        Logistic(("age",)).init(given)
    with pytest.raises(ConfigError, match="`of` must be one of 'item', 'user', 'both', got 'shop'"):
        Popularity("shop").init(given)
