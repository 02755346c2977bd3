"""Weights of the rows of a biased hold-out, under which it stands for all pairs that were not trained on.

Everything but the weights themselves is learned from the training rows: given these, the hold-out is a sample of the
other pairs, with chances that are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import counterpoise
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.features import Source, observed_pairs, pair_features, side_features
from counterpoise.balance.functions import FittedFunctions, KernelFunctions
from counterpoise.balance.population import Pairs
from counterpoise.balance.solver import entropy_balance
from counterpoise.data.log import Dataset, FeedbackLog, check_log
from counterpoise.errors import ConfigError, DataError, check_choice
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.threads import one_thread
from counterpoise.training.contracts import FitContext
from counterpoise.training.loop import MIN_ROWS_FOR_THREADS, Training

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PROPENSITIES = {  # methods that know the weight of any pair, and their classes in `counterpoise`
    "logistic": "Logistic",
    "propensity": "Propensity",
    "popularity": "Popularity",
    "naive-bayes": "NaiveBayes",
}
NAMES = ("balanced", "known", *PROPENSITIES)
MAX_FUNCTIONS = 100  # of each kind of features: 50 leave an AUC error of 0.0085 where selection follows features, 100
# leave 0.0030, and the true propensities 0.0026 (simulated logs of 80,000 rows, seeds 100 to 105)
ROWS_PER_FUNCTION = 20  # of the hold-out: each function that is balanced takes one degree of freedom from the estimate
MAX_VALUES = 2**27  # rows x functions in memory, 1 GB: a larger hold-out gets fewer functions
EXPOSURE_DIM = 4  # of the model of being observed, as in `Balancing`
MAX_TRAINING_ROWS = 2**17  # whose functions are averaged; a draw of as many stands for more, off by 1/362 SD x density


@dataclass(frozen=True, eq=False)
class HoldoutWeights:
    """One weight for each row of a hold-out, and what is known of them."""

    values: Floats  # (rows,) with sum 1
    method: str
    assumption: str  # what estimates with these weights assume, and what would break it
    functions: Floats | None = None  # (rows, functions) minus their targets: what the weights balance
    label_error: float = 0.0  # standard error of the target of the last function, the mean label of a probe

    @property
    def effective_sample_size(self) -> float:
        """(sum w)^2 / sum w^2."""
        return effective_sample_size(self.values)

    @property
    def largest_share(self) -> float:
        """The share of all weight that one row holds."""
        return float(self.values.max())

    def residuals(self, influence: Floats) -> Floats:
        """What is left of influences (rows, metrics) after the balanced functions h: r = (e - B'h) / (1 - leverage).

        B = (sum w h h')^-1 sum w h e. A metric whose derivative by log w_i is w_i e_i moves by sum w e under other
        draws of the hold-out; weights that are solved anew keep sum w h = 0, so only sum w (e - B'h) is left, as for
        calibration estimators (Deville and Sarndal 1992). Dividing by 1 - w_i h_i'(sum w h h')^-1 h_i, as the
        jackknife does, makes up for the B that was fitted to the same rows. Without functions: e itself.
        """
        if self.functions is None or not self.functions.shape[1]:
            return influence
        h, weighted = self.functions, self.functions * self.values[:, None]
        inverse = np.linalg.pinv(weighted.T @ h, hermitian=True, rcond=1e-10)
        leverage = np.einsum("rj,rj->r", weighted @ inverse, h)
        left: Floats = (influence - h @ (inverse @ (weighted.T @ influence))) / (1 - leverage.clip(0, 0.9))[:, None]
        return left

    def standard_errors(self, influence: Floats, users: NDArray[Any] | None = None) -> Floats:
        """sqrt of the sum of (w r)^2 of influences (rows, metrics); summed within `users` first, where these are given.

        With a probe's mean label as a target, its own error counts too, by the coefficient of the label in B.
        """
        moved = self.values[:, None] * self.residuals(influence)
        if users is not None:
            code = np.unique(users, return_inverse=True)[1]
            moved = np.stack([np.bincount(code, column) for column in moved.T], 1)
        variance = (moved**2).sum(0)
        if self.label_error and self.functions is not None:
            h, weighted = self.functions, self.functions * self.values[:, None]
            slope = np.linalg.pinv(weighted.T @ h, hermitian=True, rcond=1e-10)[-1] @ (weighted.T @ influence)
            variance = variance + (self.label_error * slope) ** 2
        return np.asarray(np.sqrt(variance))


def weigh_holdout(
    holdout: FeedbackLog,
    train: FeedbackLog | None,
    weights: Any = "balanced",
    *,
    probe: FeedbackLog | None = None,
    n_functions: int | None = None,
    seed: int = 0,
) -> HoldoutWeights:
    """The weights of a hold-out, to evaluate many models by: "balanced", a propensity method, "known", or an array.

    "balanced": `balanced_weights`. A propensity method: (1 - p) / p, with the chance p of being in the training log as
    learned from it: a pair that is not there is in the hold-out with a chance in proportion to p / (1 - p). "known":
    one over the hold-out's column of propensities. `train` is needed for all but the last and an array.
    """
    check_log("holdout", holdout)
    if train is not None:
        check_log("train", train)
        Dataset(train, probe, holdout)  # of the same users and items
        both = int(in_log(train, holdout.pairs).sum())
        if both:
            raise DataError(f"`holdout` must have no pair of `train`, got {both}. Hold rows out with `cp.split`.")
    return _weigh(holdout, train, weights, probe, n_functions, seed)


def _weigh(
    holdout: FeedbackLog,
    train: FeedbackLog | None,
    weights: Any,
    probe: FeedbackLog | None,
    n_functions: int | None,
    seed: int,
) -> HoldoutWeights:
    """`weigh_holdout` for a hold-out without training pairs."""
    if not isinstance(weights, str):
        return HoldoutWeights(_given(weights, len(holdout)), "given", "Unbiased if the weights given are right.")
    check_choice("weights", weights, NAMES)
    if weights == "known":
        if holdout.propensities is None:
            raise ConfigError('weights="known" needs a column of propensities. Read the log with `propensity_col`.')
        return HoldoutWeights(
            _given(1 / holdout.propensities, len(holdout)), weights, "Unbiased if the log's propensities are right."
        )
    if train is None:
        raise ConfigError(
            f'`train` must be given for weights="{weights}": the training log, from whose pairs they are learned. '
            "Only a fitted recommender knows its own. Or give an array of weights, or None for the naive estimate."
        )
    if weights == "balanced":
        return balanced_weights(train, holdout, probe, n_functions, seed)
    part = getattr(counterpoise, PROPENSITIES[weights])()
    codes = [torch.from_numpy(code.astype(np.int64)) for code in (holdout.users, holdout.items)]
    with one_thread(len(train) < MIN_ROWS_FOR_THREADS):
        ratio = part.init(_context(train, probe, seed)).at(*codes, torch.from_numpy(holdout.labels))
    odds = (ratio.double().numpy() - train.density).clip(min=0)
    what = "label" if weights == "naive-bayes" else "pair's chance of being observed, as this model has it"
    return HoldoutWeights(
        _given(odds, len(holdout)),
        weights,
        f"Unbiased if selection follows the {what}, and nothing else that labels depend on. The intervals take these "
        "weights as known.",
    )


def balanced_weights(
    train: FeedbackLog,
    holdout: FeedbackLog,
    probe: FeedbackLog | None = None,
    n_functions: int | None = None,
    seed: int = 0,
) -> HoldoutWeights:
    """argmin KL(w || equal) such that functions of the pair average as over all pairs that are not in `train`.

    sum_H w h_j(x) = mean over D without `train` of h_j, for the leading eigenfunctions of a Gaussian kernel of the
    features of exposure, which are learned from the training rows, and of the side features where the log has some:
    `n_functions` of each, by default 100 or, if that is fewer, one for each 20 rows of the hold-out in all. What cannot
    be balanced is relaxed, as in `Balancing(strength="exact")`.
    `probe`: a uniform sample with labels. The mean label of its pairs that are not in `train` becomes one more target,
    for selection by the label itself.
    """
    tables, generator = exposure_features(train, seed), torch.Generator().manual_seed(seed)
    sources: list[Source] = ["exposure"]
    if any((table != table[:1]).any() for table in side_features(train)):
        sources.append("side")
    if n_functions is None:
        rows = len(holdout) * len(sources)
        n_functions = max(2, min(MAX_FUNCTIONS, len(holdout) // (ROWS_PER_FUNCTION * len(sources)), MAX_VALUES // rows))
    populations = [pair_features(train, (source,), exposure=tables) for source in sources]
    fitted = [KernelFunctions(n=n_functions).fit(pairs, generator=generator) for pairs in populations]
    seen = train
    if len(train) > MAX_TRAINING_ROWS:
        drawn = torch.randperm(len(train), generator=generator)[:MAX_TRAINING_ROWS]
        seen = train.take(drawn.numpy())
    if probe is not None:
        probe = probe.take(~in_log(train, probe.pairs))
    label = probe is not None and len(probe) > 0
    width = sum(len(functions.targets) for functions in fitted) + label
    h, tolerance, strength = np.empty((len(holdout), width)), np.zeros(width), np.full(width, np.inf)
    stop = 0
    for functions, pairs in zip(fitted, populations, strict=True):
        part = slice(stop, stop + len(functions.targets))
        share = train.density
        targets = (functions.targets - share * _mean(functions, pairs, seen)) / (1 - share) if share < 1 else 0.0
        for block, values in functions.rows(observed_pairs(holdout, pairs)).blocks():
            h[block, part] = values - targets
        tolerance[part], strength[part] = (values.numpy() for values in functions.penalties())
        stop = part.stop
    error = 0.0
    if label and probe is not None:
        rate = (float(probe.labels.sum()) + 0.5) / (len(probe) + 1)
        h[:, -1], error = holdout.labels - rate, (rate * (1 - rate) / len(probe)) ** 0.5
        strength[-1] = strength[:-1].max()
    result = entropy_balance(h, np.zeros(width), tolerance, strength)
    balanced = ~result.relaxed
    names = " and ".join({"exposure": "what users were exposed to", "side": "the side features"}[s] for s in sources)
    return HoldoutWeights(
        result.weights,
        "balanced",
        f"Unbiased if, among pairs alike in {names}, being observed does not depend on the label"
        + (" beyond its own constant effect, which the probe shows." if label else ". A liking that makes people rate")
        + ("" if label else ", and that these features do not show, would break it; a log cannot tell."),
        h if balanced.all() else h[:, balanced],
        error if label and balanced[-1] else 0.0,
    )


def exposure_features(train: FeedbackLog, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(users, items) tables of a model of being observed, learned from the training rows."""
    context = _context(train, None, seed)
    with one_thread(len(train) < MIN_ROWS_FOR_THREADS):
        return context.fit_exposure(MatrixFactorization(dim=EXPOSURE_DIM)).features()


def _mean(functions: FittedFunctions, pairs: Pairs, log: FeedbackLog) -> torch.Tensor:
    """The means of the functions over the rows of a log."""
    total = sum((values.sum(0) for _, values in functions.rows(observed_pairs(log, pairs)).blocks()), torch.zeros(()))
    return torch.as_tensor(total) / len(log)


def _context(train: FeedbackLog, probe: FeedbackLog | None, seed: int) -> FitContext:
    training = Training(seed=seed, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    return FitContext(train, probe, MatrixFactorization(), training, torch.device("cpu"), generator)


def _given(weights: Any, rows: int) -> Floats:
    """(rows,) numbers >= 0 with sum 1."""
    try:
        values = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        known = ", ".join(map(repr, NAMES))
        raise ConfigError(f"`weights` must be one of {known}, an array, or None, got {weights!r}.") from error
    if values.shape != (rows,):
        raise DataError(f"`weights` must have one value for each of the {rows} rows, got shape {values.shape}.")
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if bad.size:
        found = f"{values[bad[0]]} in row {bad[0]} and {bad.size - 1} more"
        raise DataError(f"`weights` must be finite and >= 0, got {found}. Leave rows out by a weight of 0.")
    if not values.any():
        raise DataError("`weights` must not all be 0: no row would count.")
    return np.asarray(values / values.max() / (values / values.max()).sum())


def in_log(log: FeedbackLog, pairs: Integers) -> NDArray[np.bool_]:
    """Whether each pair, as in `FeedbackLog.pairs`, has a row in a log."""
    known = np.sort(log.pairs)  # several times faster than the table of hashes that np.isin makes
    return np.asarray(known[np.minimum(np.searchsorted(known, pairs), len(known) - 1)] == pairs)


def training_log(model: Any, holdout: FeedbackLog) -> FeedbackLog | None:
    """The pairs that a fitted recommender was trained on, with labels of 0, in the codes of the hold-out; None else.

    A recommender keeps the pairs, not their labels.
    """
    if not hasattr(model, "seen_") or (holdout.user_ids, holdout.item_ids) != (model.user_ids_, model.item_ids_):
        return None
    users = np.repeat(np.arange(len(model.user_ids_)), np.diff(model.seen_.starts.numpy())).astype(np.int32)
    items = model.seen_.items.numpy().astype(np.int32)
    ratings = np.zeros(len(users))
    return replace(
        holdout, users=users, items=items, ratings=ratings, timestamps=None, propensities=None, parent_propensities=None
    )


def in_codes_of(model: Any, log: FeedbackLog) -> FeedbackLog:
    """The rows of a log over the users and items of a fitted recommender, whose pairs D they stand for."""
    if not hasattr(model, "user_ids_") or (log.user_ids, log.item_ids) == (model.user_ids_, model.item_ids_):
        return log
    users = model.user_ids_.require(log.user_ids.decode(log.users), "user")
    items = model.item_ids_.require(log.item_ids.decode(log.items), "item")
    tables = []
    for given, own, wanted in (
        (log.user_features, log.user_ids, model.user_ids_),
        (log.item_features, log.item_ids, model.item_ids_),
    ):
        codes = own.encode(wanted.column)
        tables.append(None if given is None or (codes < 0).any() else given[codes])
    return replace(
        log,
        users=users,
        items=items,
        user_ids=model.user_ids_,
        item_ids=model.item_ids_,
        user_features=tables[0],
        item_features=tables[1],
        parent_propensities=None,
    )


def unseen_holdout(
    model: Any, log: FeedbackLog, train: FeedbackLog | None, probe: FeedbackLog | None
) -> tuple[FeedbackLog, FeedbackLog | None, NDArray[np.bool_]]:
    """(the rows of a hold-out that were not trained on, the training log where it is known, which rows were seen)."""
    log = in_codes_of(model, log)
    train = training_log(model, log) if train is None else train
    if train is not None:
        check_log("train", train)
        Dataset(train, probe, log)  # of the same users and items
    seen = model.has_seen(log) if hasattr(model, "has_seen") else np.zeros(len(log), bool)
    if train is not None:
        seen = seen | in_log(train, log.pairs)
    if seen.all():
        raise DataError(
            f"`log`: all {len(seen)} pairs were seen in training or in the probe, so they are no test. Hold rows out "
            "before the fit (`split`, `holdout`)."
        )
    return log.take(~seen), train, seen


def resolve_weights(
    weights: Any,
    log: FeedbackLog,
    train: FeedbackLog | None,
    probe: FeedbackLog | None,
    seen: NDArray[np.bool_],
    seed: int,
) -> HoldoutWeights:
    """The weights of the unseen rows of a hold-out, from what `evaluate` takes for all of its rows."""
    if isinstance(weights, str) and weights == "auto":
        weights = "balanced" if log.sample == "biased" and train is not None else None
    if weights is None:
        about = "Every row of the hold-out counts alike: right if it was drawn uniformly."
        return HoldoutWeights(np.full(len(log), 1 / len(log)), "equal", about)
    if isinstance(weights, HoldoutWeights):
        if len(weights.values) != len(log):
            found = f"{len(weights.values)} weights and {len(log)} rows that were not seen in training"
            raise DataError(f"`weights` must be those of the rows of `log`, got {found}.")
        return weights
    if not isinstance(weights, str) and np.shape(weights) == seen.shape:
        weights = np.asarray(weights)[~seen]
    return _weigh(log, train, weights, probe, None, seed)
