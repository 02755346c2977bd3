"""Weights of the rows of a biased hold-out, under which it stands for all pairs that were not trained on.

Everything but the weights themselves is learned from the training rows: given these, the hold-out is a sample of the
other pairs, with chances that are not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from numpy.typing import NDArray

import counterpoise
from counterpoise.balance.diagnostics import effective_sample_size
from counterpoise.balance.exponential_family import Blocks, Rows, matrix_rows, second_moments, weighted_sum
from counterpoise.balance.features import Source, observed_pairs, pair_features, side_features
from counterpoise.balance.functions import FittedFunctions, KernelFunctions
from counterpoise.balance.population import Pairs
from counterpoise.balance.solver import entropy_balance
from counterpoise.config import takes_options
from counterpoise.data.log import DEFAULTS, Dataset, FeedbackLog, LogOptions, as_logs
from counterpoise.errors import ConfigError, DataError, check_choice, short_repr
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.threads import one_thread
from counterpoise.training.contracts import PRETRAINING_STEPS, FitContext
from counterpoise.training.loop import MIN_ROWS_FOR_THREADS, Training
from counterpoise.weights.exposure import RelativeExposure

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PROPENSITIES = {  # methods that know the weight of any pair, and their classes in `counterpoise`
    "logistic": "Logistic",
    "propensity": "Propensity",
    "popularity": "Popularity",
    "naive-bayes": "NaiveBayes",
}
NAMES = ("balanced", "known", *PROPENSITIES)
LEAST_EXPOSURE = 1e-6  # nearly no bound: estimates are not clipped
NAMES_FOR_CLICKS = ("popularity", "known")  # the others undo relevance together with exposure
MAX_FUNCTIONS = 100  # of each kind of features: 50 leave an AUC error of 0.0085 where selection follows features, 100
# leave 0.0030, and the true propensities 0.0026 (simulated logs of 80,000 rows, seeds 100 to 105)
ROWS_PER_FUNCTION = 20  # of the hold-out: each function that is balanced takes one degree of freedom from the estimate
MAX_VALUES = 2**27  # rows x functions in memory, half a GB: a larger hold-out gets fewer functions
EXPOSURE_DIM = 4  # of the model of being observed, as in `Balancing`
MAX_EXPOSURE_BATCH = 2**16  # rows of its 60 steps on a log that is not one batch: with 1.7 million training rows, steps
# of 173,000 moved AUCs by at most 0.0006, a third of their standard error (selection by features, seeds 0 to 2)
MAX_TRAINING_ROWS = 2**17  # whose functions are averaged; a draw of as many stands for more, off by 1/362 SD x density


@dataclass(frozen=True, eq=False)
class HoldoutWeights:
    """One weight for each row of a hold-out, and what is known of them."""

    values: Floats  # (rows,) with sum 1
    method: str
    assumption: str  # what estimates with these weights assume, and what would break it
    functions: NDArray[Any] | None = None  # (rows, functions) minus their targets: what the weights balance
    label_error: float = 0.0  # standard error of the target of the last function, the mean label of a probe

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: the fields, without what follows from them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @property
    def effective_sample_size(self) -> float:
        """(sum w)^2 / sum w^2."""
        return effective_sample_size(self.values)

    @property
    def largest_share(self) -> float:
        """The share of all weight that one row holds."""
        return float(self.values.max())

    @cached_property
    def _rows(self) -> Rows | None:
        """The balanced functions h, in blocks; None without any."""
        if self.functions is None or not self.functions.shape[1]:
            return None
        return matrix_rows(torch.from_numpy(self.functions))

    @cached_property
    def _inverse(self) -> torch.Tensor:
        """(sum w h h')^-1."""
        assert self._rows is not None
        weights = torch.from_numpy(self.values)
        total = second_moments(self._rows, lambda part, values: weights[part], None, torch.float64)[1]
        inverse: torch.Tensor = torch.linalg.pinv(total, hermitian=True, rtol=1e-10)
        return inverse

    @cached_property
    def _leverage(self) -> Floats:
        """w_i h_i'(sum w h h')^-1 h_i."""
        assert self._rows is not None
        found, inverse = np.empty(len(self.values)), self._inverse

        def work(blocks: Blocks) -> None:
            for part, values in blocks:
                found[part] = torch.linalg.vecdot(values @ inverse, values).numpy()

        self._rows.each_chunk(work)
        return np.asarray(self.values * found)

    def _coefficients(self, influence: Floats) -> torch.Tensor:
        """B = (sum w h h')^-1 sum w h e of influences e (rows, metrics)."""
        assert self._rows is not None
        weighted = torch.from_numpy(self.values[:, None] * influence)

        def work(blocks: Blocks) -> torch.Tensor:
            return torch.stack([values.T @ weighted[part] for part, values in blocks]).sum(0)

        return self._inverse @ torch.stack(self._rows.each_chunk(work)).sum(0)

    def residuals(self, influence: Floats) -> Floats:
        """What is left of influences (rows, metrics) after the balanced functions h: r = (e - B'h) / (1 - leverage).

        B = (sum w h h')^-1 sum w h e. A metric whose derivative by log w_i is w_i e_i moves by sum w e under other
        draws of the hold-out; weights that are solved anew keep sum w h = 0, so only sum w (e - B'h) is left, as for
        calibration estimators (Deville and Sarndal 1992). Dividing by 1 - w_i h_i'(sum w h h')^-1 h_i, as the
        jackknife does, makes up for the B that was fitted to the same rows. Without functions: e itself.
        """
        if self._rows is None:
            return influence
        left, slopes = np.empty_like(influence), self._coefficients(influence)

        def work(blocks: Blocks) -> None:
            for part, values in blocks:
                left[part] = influence[part] - (values @ slopes).numpy()

        self._rows.each_chunk(work)
        left /= (1 - self._leverage.clip(0, 0.9))[:, None]
        return left

    def standard_errors(self, influence: Floats) -> Floats:
        """sqrt(sum (w r)^2) of influences (rows, metrics): that of other draws of the hold-out from the same pairs.

        The estimates are of these users and items, so rows are draws of their own: a user whose rows differ from those
        of others is no error. With a probe's mean label as a target, its own error counts too, by the coefficient of
        the label in B.
        """
        variance = np.square(self.values[:, None] * self.residuals(influence)).sum(0)
        if self.label_error and self._rows is not None:
            variance = variance + (self.label_error * self._coefficients(influence)[-1].numpy()) ** 2
        return np.asarray(np.sqrt(variance))


@takes_options(LogOptions, DEFAULTS)
def weigh_holdout(
    holdout: Any,
    train: Any,
    weights: Any = "balanced",
    *,
    probe: Any = None,
    n_functions: int | None = None,
    seed: int = 0,
    **options: Unpack[LogOptions],
) -> HoldoutWeights:
    """The weights of a hold-out, to evaluate many models by: "balanced", a propensity method, "known", or an array.

    Of clicks, which stand for the relevant pairs: "popularity" (`inverse_exposure`), "known", or an array.
    "balanced": `balanced_weights`. A propensity method: (1 - p) / p, with the chance p of being in the training log as
    learned from it: a pair that is not there is in the hold-out with a chance in proportion to p / (1 - p). "known":
    one over the hold-out's column of propensities. `train` is needed for all but the last and an array.
    `holdout`, `train` and `probe` are logs, or frames with `options` as in `FeedbackLog.from_frame`.
    """
    holdout, train, probe = as_logs({"holdout": holdout, "train": train, "probe": probe}, **options)
    if train is not None:
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
    if holdout.feedback == "clicks" and weights not in NAMES_FOR_CLICKS:
        raise ConfigError(
            f"`weights` must be one of {', '.join(map(repr, NAMES_FOR_CLICKS))}, an array or None for clicks, got "
            f"{weights!r}: what makes clicks look like all pairs undoes relevance too, not only exposure."
        )
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
    if holdout.feedback == "clicks":
        return HoldoutWeights(
            _given(inverse_exposure(train, holdout), len(holdout)),
            weights,
            "Unbiased if the chance of seeing an item grows with the square root of its clicks, and not otherwise with "
            "relevance; clicks cannot tell. The intervals take these weights as known.",
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


def inverse_exposure(train: FeedbackLog, clicks: FeedbackLog) -> Floats:
    """1 / P(exposed) of each row of `clicks` by `RelativeExposure`: P = (n_i / max n)^0.5, n_i the item's clicks.

    Half of the differences between popularities, in logs, count as exposure, and half as relevance.
    """
    users, items = (torch.from_numpy(codes.astype(np.int64)) for codes in (clicks.users, clicks.items))
    exposure = RelativeExposure(clip=LEAST_EXPOSURE).init(_context(train, None, 0))
    return np.asarray(exposure.at(users, items).double().numpy() / train.density)


def balanced_weights(
    train: FeedbackLog,
    holdout: FeedbackLog,
    probe: FeedbackLog | None,
    n_functions: int | None,
    seed: int,
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
    populations = [pair_features(train, (source,), exposure=tables, dtype=torch.float32) for source in sources]
    fitted = [KernelFunctions(n=n_functions).fit(pairs, generator=generator) for pairs in populations]
    seen = train
    if len(train) > MAX_TRAINING_ROWS:
        drawn = torch.randint(len(train), (MAX_TRAINING_ROWS,), generator=generator)
        seen = train.take(drawn.numpy())
    if probe is not None:
        probe = probe.take(~in_log(train, probe.pairs))
    label = probe is not None and len(probe) > 0
    width = sum(len(functions.targets) for functions in fitted) + label
    h = np.empty((len(holdout), width), np.float32)  # the solver adds up in float64
    tolerance, strength = np.zeros(width), np.full(width, np.inf)
    stop = 0
    for functions, pairs in zip(fitted, populations, strict=True):
        part = slice(stop, stop + len(functions.targets))
        share = train.density
        targets = (functions.targets - share * _mean(functions, pairs, seen)) / (1 - share) if share < 1 else 0.0
        _fill(h[:, part], functions.rows(observed_pairs(holdout, pairs)), targets)
        tolerance[part], strength[part] = (values.numpy() for values in functions.penalties())
        stop = part.stop
    error = 0.0
    if label and probe is not None:
        rate = (float(probe.labels.sum()) + 0.5) / (len(probe) + 1)
        h[:, -1], error = holdout.labels - rate, (rate * (1 - rate) / len(probe)) ** 0.5
        strength[-1] = strength[:-1].max()
    result = entropy_balance(h, np.zeros(width), tolerance, strength)
    balanced = ~result.relaxed
    clicked = {holdout.feedback, train.feedback} != {"ratings"}
    return HoldoutWeights(
        result.weights,
        "balanced",
        _assumption(sources, label, clicked),
        h if balanced.all() else h[:, balanced],
        error if label and balanced[-1] else 0.0,
    )


def _assumption(sources: Sequence[Source], label: bool, clicked: bool) -> str:
    """What estimates under balanced weights assume, and what would break it; `label`: its mean is balanced too."""
    names = " and ".join({"exposure": "what users were exposed to", "side": "the side features"}[s] for s in sources)
    rule = f"Unbiased if, among pairs alike in {names}, being observed does not depend on the label"
    if label:
        return f"{rule} beyond its own constant effect, which the probe shows."
    cause = "Relevance that decides what is shown" if clicked else "A liking that makes people rate"
    return f"{rule}. {cause}, and that these features do not show, would break it; a log cannot tell."


def exposure_features(train: FeedbackLog, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(users, items) tables of a model of being observed, learned from the training rows."""
    context = _context(train, None, seed)
    if context.training.rows_per_step(len(train)) < len(train):
        epochs = math.ceil(PRETRAINING_STEPS * MAX_EXPOSURE_BATCH / len(train))
        context = replace(context, training=replace(context.training, batch_size=MAX_EXPOSURE_BATCH, epochs=epochs))
    with one_thread(context.training.rows_per_step(len(train)) < MIN_ROWS_FOR_THREADS):
        return context.fit_exposure(MatrixFactorization(dim=EXPOSURE_DIM)).features()


def _fill(out: NDArray[np.float32], rows: Rows, targets: torch.Tensor | float) -> None:
    """Write functions minus their targets to `out` (rows, functions)."""

    def work(blocks: Blocks) -> None:
        for part, values in blocks:
            out[part] = values.sub_(targets).numpy()

    rows.each_chunk(work)


def _mean(functions: FittedFunctions, pairs: Pairs, log: FeedbackLog) -> torch.Tensor:
    """The means of the functions over the rows of a log."""
    each = torch.full((len(log),), 1 / len(log), dtype=torch.float64)
    return weighted_sum(functions.rows(observed_pairs(log, pairs)), each)


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
        raise ConfigError(f"`weights` must be one of {known}, an array, or None, got {short_repr(weights)}.") from error
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
    known, order = np.sort(log.pairs), np.argsort(pairs)  # searches in order of the pairs find them in the cache
    ordered, found = pairs[order], np.empty(len(pairs), bool)
    found[order] = known[np.minimum(np.searchsorted(known, ordered), len(known) - 1)] == ordered
    return found


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
    users, items = (
        own.require(
            ids.decode(given),
            kind,
            "Weighted estimates and rankings are of pairs that the model knows: leave such rows out "
            f'(`evaluate` does with unknown_{kind}s="drop").',
        )
        for kind, own, ids, given in (
            ("user", model.user_ids_, log.user_ids, log.users),
            ("item", model.item_ids_, log.item_ids, log.items),
        )
    )
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


class Unseen(NamedTuple):
    """What a hold-out is judged by, all over the users and items of the model."""

    log: FeedbackLog  # its rows that were not trained on
    train: FeedbackLog | None  # where it is known
    probe: FeedbackLog | None
    seen: NDArray[np.bool_]  # which rows were trained on


def unseen_holdout(model: Any, log: FeedbackLog, train: FeedbackLog | None, probe: FeedbackLog | None) -> Unseen:
    """The rows of a hold-out that were not trained on, with the training log and the probe."""
    log = in_codes_of(model, log)
    train = training_log(model, log) if train is None else in_codes_of(model, train)
    probe = None if probe is None else in_codes_of(model, probe)
    if train is not None:
        Dataset(train, probe, log)  # of the same users and items
    seen = model.has_seen(log) if hasattr(model, "has_seen") else np.zeros(len(log), bool)
    if train is not None:
        seen = seen | in_log(train, log.pairs)
    if seen.all():
        raise DataError(
            f"`log`: all {len(seen)} pairs were seen in training or in the probe, so they are no test. Hold rows out "
            "before the fit (`split`, `holdout`)."
        )
    return Unseen(log.take(~seen), train, probe, seen)


def resolve_weights(weights: Any, holdout: Unseen, seed: int) -> HoldoutWeights:
    """The weights of the unseen rows of a hold-out, from what `evaluate` takes for all of its rows."""
    log, train, probe, seen = holdout
    if isinstance(weights, str) and weights == "auto":
        usual, selected = ("popularity", True) if log.feedback == "clicks" else ("balanced", log.sample == "biased")
        weights = usual if selected and train is not None else None
    if weights is None:
        about = "Every row of the hold-out counts alike: right if it was drawn uniformly."
        if log.feedback == "clicks":
            about = "Every click counts alike, so that items which are often shown count more than others."
        return HoldoutWeights(np.full(len(log), 1 / len(log)), "equal", about)
    if isinstance(weights, HoldoutWeights):
        if len(weights.values) != len(log):
            found = f"{len(weights.values)} weights and {len(log)} rows that were not seen in training"
            raise DataError(f"`weights` must be those of the rows of `log`, got {found}.")
        return weights
    if not isinstance(weights, str) and np.shape(weights) == seen.shape:
        weights = np.asarray(weights)[~seen]
    return _weigh(log, train, weights, probe, None, seed)
