"""The estimator: weights x risk x imputation on a backbone, trained by one loop; predictions in your ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack, get_args

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

import counterpoise
from counterpoise import __version__
from counterpoise.config import Configurable, Error, Feedback, Unknown, from_config, takes_options
from counterpoise.data.columns import DEFAULT_NAMES, feature_rows, names_in, pair_columns, rating_columns
from counterpoise.data.frames import POLARS, as_frame, column_of, is_frame, kind_of_frame, score_column, to_kind
from counterpoise.data.ids import Codes, Column, Vocabulary, as_column, gather
from counterpoise.data.item_names import ItemNames
from counterpoise.data.log import DEFAULTS, Dataset, FeedbackLog, LogOptions, as_log, as_logs, table
from counterpoise.data.notebook import notebook_html
from counterpoise.data.side_tables import TableEncoder
from counterpoise.data.splits import ColdRows
from counterpoise.errors import ConfigError, DataError, NotFittedError, check_choice, check_number, short_repr
from counterpoise.imputation.base import NoImputation
from counterpoise.models.base import Backbone, Scorer, as_backbone, factor_facts
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.ranking import Seen, nearest, shrunken_directions, shrunken_label_rates, top_items
from counterpoise.risks import ERRORS, FOR_CLICKS, NEED_IMPUTATION, RISKS
from counterpoise.storage import read_folder, write_folder, write_table
from counterpoise.threads import one_blas_thread, one_thread
from counterpoise.training.contracts import FitContext, Imputation, Weights
from counterpoise.training.events import Callback, end_event, start_event
from counterpoise.training.learner import Learner
from counterpoise.training.loop import (
    MIN_ROWS_FOR_THREADS,
    DivergenceError,
    History,
    Interrupted,
    Training,
    train,
)
from counterpoise.training.rows import (
    Earlier,
    Ratings,
    RowLoss,
    check_linear,
    fold_in,
    label_ratios,
    learn_rows,
)
from counterpoise.training.summary import correction_sentences, is_corrected
from counterpoise.weights.base import Uniform

if TYPE_CHECKING:
    from counterpoise.training.checkpoint import Checkpoint
    from counterpoise.training.closed_form import ClosedForm
    from counterpoise.training.ensemble import Ensemble, EnsembleLearner
    from counterpoise.training.ordinal import OrdinalLoss
    from counterpoise.training.probe import ProbeLabels

OPTIONAL_PARTS = {
    "ensemble": "Ensemble",
    "ordinal": "OrdinalLoss",
    "probe_labels": "ProbeLabels",
    "closed_form": "ClosedForm",
}
ONLY_LOG_LOSS = ("ensemble", "ordinal", "probe_labels")  # parts that know no other error
BLOCK_SCORES = 1 << 22  # scores held in memory at a time
UNKNOWN_ADVICE = {
    "user": 'Use unknown_users="popular" to score new users by the items alone.',
    "item": 'Use unknown_items="popular" to score new items by the user alone.',
}
SCORED_BY = ("model", "features", "fold-in", "popularity")  # what a score rests on
MODEL, FEATURES, FOLD_IN, POPULARITY = range(4)
MAX_SWEEPS = 20  # of `update`, over users and then items
SMALLEST_CHANGE = 1e-4  # of a number of a row, that ends them
MAX_CONFIGURATION = 1000  # settings of a saved run, with the parts in it


class NewRows(NamedTuple):
    """The users (or items) of a model and, behind them, new ones whose features are known."""

    ids: Vocabulary
    vectors: Tensor  # (new ones, d), as in `Scorer.vectors`


@dataclass(frozen=True)
class RankedUsers:
    """The users whose items are ranked, with their codes and vectors."""

    ids: Column
    codes: Tensor  # (users,) -1: not in the log
    vectors: Tensor  # (vectors, d) of users who are not in the log
    place: Tensor  # (users,) the position of their vector; -1: none
    scored_by: Tensor  # (users,) positions in SCORED_BY
    hidden: tuple[tuple[Seen, Tensor], ...] = ()  # pairs to leave out, and the user of each row among those


@dataclass
class DebiasedRecommender(Configurable):
    """A recommender trained on an estimate of its ideal loss.

    `weights`: how much each observed pair counts. `imputation`: the error of unobserved pairs. `risk`: how the ideal
    loss is estimated from both. `backbone`: what predicts. `training`: how it learns. `ensemble`: average with a second
    predictor that learns without the imputation. `ordinal`: also learn from how far ratings are from the threshold.
    `probe_labels`: also learn from the labels of the probe. `feedback`: the logs that it learns from: "ratings", which
    impressions are too, or "clicks". Its predictions are then probabilities of a positive label, or of relevance.
    `error`: of a pair, see `risks.ERRORS`. `closed_form`: what minimises the risk in closed form, in the place of Adam.
    `fit` starts over when called again. The fitted ratios are in `ratio_`, facts on all parts in `facts_`.
    """

    weights: Weights = field(default_factory=Uniform)
    risk: str = "ips"
    imputation: Imputation = field(default_factory=NoImputation)
    backbone: Backbone | str = field(default_factory=MatrixFactorization)
    training: Training = field(default_factory=Training)
    ensemble: Ensemble | None = None
    ordinal: OrdinalLoss | None = None
    probe_labels: ProbeLabels | None = None
    feedback: Feedback = "ratings"
    error: Error = "log"
    closed_form: ClosedForm | None = None

    @takes_options(LogOptions, DEFAULTS)
    def fit(
        self,
        log: Any,
        probe: Any = None,
        *,
        item_names: Any = None,
        callback: Callback | None = None,
        checkpoint: Checkpoint | None = None,
        **options: Unpack[LogOptions],
    ) -> Self:
        """Learn from a log; `probe` is a small unbiased sample for methods that use one.

        Both may be frames of pandas, polars or pyarrow, with `options` as in `FeedbackLog.from_frame`; the model
        remembers the names of the columns and the threshold. `item_names`: a frame with a column of item ids, named as
        in the log or `item_id`, and one of names (`name` or `title`), which lists show.
        `callback` is called with a `FitEvent` at the start, after each epoch and at the end: what progress bars and
        experiment trackers need. `checkpoint`: where to save what was learned on the way, and maybe to resume from.
        Ctrl-C and a divergence are raised, and leave the last good epoch in the model.
        """
        log, probe = as_logs({"log": log, "probe": probe}, **options)
        self.item_names_ = name_items(item_names, log)
        self.check(log, probe)
        if callback is not None and not callable(callback):
            raise ConfigError(f"`callback` must be a function of one event, got {short_repr(callback)}.")
        if callback is not None:
            callback(start_event(self, self.training.planned_epochs(len(log)), len(log), log.shape))
        fitted_log, held_out = log, log.take([])
        if self.training.patience is not None:
            rows = self.held_out_rows(len(log))
            fitted_log, held_out = log.take(~rows), log.take(rows)
        context = self._context(fitted_log, probe)
        with one_thread(self.training.rows_per_step(len(fitted_log)) < MIN_ROWS_FOR_THREADS), one_blas_thread():
            learner = self._learner(context)
            validation = learner.batches(context.on(held_out)).whole() if len(held_out) else None
            batches = learner.batches(context)
            wrapped = context.wrap(learner, self.training)
            wrapped = wrapped if checkpoint is None else checkpoint.of(wrapped)
            try:
                history = train(wrapped, batches, validation, self.training, callback)
            except (DivergenceError, Interrupted) as stop:
                if stop.history is not None:
                    self._keep(learner, stop.history, learner.facts(batches.final()), log, probe)
                raise
            facts = learner.facts(batches.final())
            self._keep(learner, history, facts, log, probe)  # a whole model, should the last step be stopped
            found = learner.finish()
            if "probe" in found:  # whose labels were learned at last
                facts = learner.facts(batches.final())
            self._keep(learner, history, facts | found, log, probe)
        if callback is not None:
            callback(end_event(len(history.loss), self.training.planned_epochs(len(log)), self.facts_))
        return self

    def _context(self, log: FeedbackLog, probe: FeedbackLog | None) -> FitContext:
        """The fit of this model to a log, with fresh random numbers."""
        backbone = deepcopy(as_backbone(self.backbone))  # a later change of the settings must not change this model
        generator = torch.Generator().manual_seed(int(self.training.seed))
        device, error = self.training.resolve_device(), ERRORS[self.error]
        context = FitContext(log, probe, backbone, self.training, device, generator, error=error)
        if context.device.type != "cuda":
            return context
        from counterpoise.accelerate import with_cuda_graphs

        return replace(context, wrap=with_cuda_graphs)

    def _learner(self, context: FitContext, weights: Weights | None = None) -> Learner | EnsembleLearner:
        """The learner that the loop trains; `weights` take the place of the model's."""
        parts = (weights or self.weights, self.risk, self.imputation, self.ordinal, self.probe_labels)
        if self.closed_form is not None:
            return self.closed_form.init(context, *parts[:3])
        learner = Learner.init(context, *parts)
        return learner if self.ensemble is None else self.ensemble.init(learner, context)

    def _keep(
        self,
        learner: Learner | EnsembleLearner,
        history: History,
        facts: dict[str, Any],
        log: FeedbackLog,
        probe: FeedbackLog | None,
    ) -> Self:
        """Take over what a learner has learned."""
        inactive = {
            "ensemble": None if self.ensemble is None else self.ensemble.why_inactive(learner),
            "ordinal": None if self.ordinal is None or learner.ordinal else self.ordinal.why_inactive(log),
        }
        inactive = {name: why for name, why in inactive.items() if why is not None}
        exposure = getattr(learner.scorer, "exposure_coefficients", None)
        more = {
            "factors": factor_facts(learner.scorer),
            "exposure": {} if exposure is None else {"coefficients": exposure.tolist()},
            "inactive": inactive,
            "imputed": self.imputation.imputes_errors and self.risk in NEED_IMPUTATION,
            "feedback": log.feedback if log.feedback != "ratings" else None,
            "exposed": self.risk == "exposed",  # weights cancel: every pair counts by its exposure
        }
        if probe is not None and len(probe):
            rows = learner.imputation.learns_from_probe or learner.weights.learns_from_probe
            more["probe"] = {"rows": len(probe), "learned": "probe" in facts or rows} | facts.get("probe", {})
        self.history_, self.facts_ = history, facts | {name: found for name, found in more.items() if found}
        self.scorer_, self.ratio_ = learner.scorer.requires_grad_(False), learner.weights.ratio.cpu().numpy()
        self.scorer_.clear_caches()
        self.user_ids_, self.item_ids_ = log.user_ids, log.item_ids
        self.side_encoders_ = {"user": log.user_encoder, "item": log.item_encoder}
        fitted = ~self.held_out_rows(len(log))
        counted = np.zeros(len(log), np.float32)
        counted[fitted] = self.ratio_ / self.ratio_.mean() if self.risk == "snips" else self.ratio_
        members = getattr(learner, "members", [learner])
        ratios = label_ratios(torch.from_numpy(counted[fitted]), torch.from_numpy(log.labels[fitted]))
        self.row_losses_ = [RowLoss.of(member, ratios) for member in members]
        self.seen_ = Seen.of(log, counted)
        self.item_rates_ = shrunken_label_rates(log).to(self.training.resolve_device())
        self.probed_ = Seen.of(log.take([]) if probe is None else probe)
        self.log_facts_, self.configuration_ = _log_facts(log), self.to_config()
        self.frame_kind_ = log.frame_kind
        return self

    def _repr_html_(self) -> str:
        """For notebooks: what the fit did, and the settings."""
        parts = {name: part for name, part in self.get_params(deep=False).items() if part is not None}
        if not hasattr(self, "scorer_"):
            return notebook_html("DebiasedRecommender, not fitted", {name: str(part) for name, part in parts.items()})
        settings = {name: type(p).__name__ if isinstance(p, Configurable) else p for name, p in parts.items()}
        facts = {name: self.log_facts_[name] for name in ("rows", "users", "items", "threshold")}
        facts |= {"epochs": self.history_.best_epoch, "seconds": round(self.history_.seconds, 1)}
        return notebook_html("DebiasedRecommender, fitted", self.summary(), facts, settings)

    def summary(self) -> str:
        """A paragraph on what the fit corrected and what it did not."""
        self._check_fitted()
        return " ".join(correction_sentences(self.facts_, len(self.ratio_)))

    @property
    def is_corrected(self) -> bool:
        """Whether the fit did anything about selection."""
        self._check_fitted()
        return is_corrected(self.facts_)

    def held_out_rows(self, rows: int) -> NDArray[np.bool_]:
        """A mask of the rows of a log that early stopping holds out, which have no ratio; none without patience."""
        held_out = np.zeros(rows, dtype=bool)
        if self.training.patience is not None:
            size = min(max(1, round(self.training.validation * rows)), rows - 1)
            held_out[np.random.default_rng(self.training.seed).choice(rows, size, replace=False)] = True
        return held_out

    def check(self, log: FeedbackLog, probe: FeedbackLog | None) -> None:
        """Raise the first error of the settings or the data, before anything takes time."""
        self.check_settings()
        as_logs({"log": log, "probe": probe})
        _check_feedback(self.feedback, log)
        check_labels("labels", log)
        if probe is not None:
            check_labels("the probe's labels", probe)
            if probe.sample == "biased":
                raise DataError(
                    '`probe` must be a uniform sample of all pairs, got a log with sample="biased", which would teach '
                    'its bias. Leave the probe out, or, if its pairs were drawn at random, give sample="uniform".'
                )
            Dataset(log, probe)

    def check_settings(self) -> None:
        """Raise the first error of the settings."""
        for name, kind in (("weights", Weights), ("imputation", Imputation), ("training", Training)):
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"`{name}` must be a {kind.__name__} part, got {getattr(self, name)!r}.")
        for name, public_name in OPTIONAL_PARTS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, getattr(counterpoise, public_name)):
                raise ConfigError(f"`{name}` must be of the part {public_name}, or None, got {part!r}.")
        self.training.check()
        check_choice("risk", self.risk, RISKS)
        check_choice("feedback", self.feedback, ("ratings", "clicks"))
        check_choice("error", self.error, ERRORS)
        if self.error != "log" and not self.imputation.any_error:
            part = type(self.imputation).__name__
            raise ConfigError(f"`error` must be 'log' for the imputation {part}, got {self.error!r}.")
        for name in ONLY_LOG_LOSS:
            if (self.error != "log" or self.closed_form is not None) and getattr(self, name) is not None:
                raise ConfigError(f"`{name}` must be None for another error than log loss, and in a `closed_form`.")
        if self.risk in ("exposed", "pairwise") and self.feedback != "clicks":
            raise ConfigError(f"`feedback` must be 'clicks' for risk={self.risk!r}, got {self.feedback!r}.")
        if self.feedback == "clicks" and self.risk in NEED_IMPUTATION and not self.imputation.imputes_errors:
            raise ConfigError("`imputation` must impute errors for clicks, such as Constant(0).")
        if self.feedback == "clicks" and self.risk not in FOR_CLICKS:
            raise ConfigError(
                f'`risk` must be one of {", ".join(map(repr, FOR_CLICKS))} for feedback="clicks", got {self.risk!r}: '
                "the others learn from labels of both kinds."
            )
        if self.risk == "direct" and not self.imputation.imputes_errors:
            raise ConfigError("`imputation` must impute errors for risk='direct': nothing else is learned from.")
        if self.risk == "probe" and (self.ensemble is not None or self.training.patience is not None):
            name = "patience" if self.ensemble is None else "ensemble"
            raise ConfigError(f"`{name}` must be None for risk='probe': there is nothing of the log to judge by.")
        if self.risk == "direct" and self.ensemble is not None:
            raise ConfigError(
                "`ensemble` must be None for risk='direct': without imputation there is nothing to learn."
            )

    def predict(
        self,
        users: Any,
        items: Any = None,
        *,
        unknown_users: Unknown = "error",
        unknown_items: Unknown = "error",
        new_users: Any = None,
        new_items: Any = None,
    ) -> Any:
        """The probability of a positive label for each (user, item), in original ids, as an array.

        Or for each row of a frame of pairs, with columns named as in the training frame or `user_id` and `item_id`: as
        a column of that frame's kind, called score, that can be put beside the others.
        `unknown_users`: a user the log does not have is an "error", or gets the item's rate of positive labels
        ("popular"). `unknown_items`: an item the log does not have is an "error", or gets the user's mean probability
        over all items of the log ("popular"): as good as an item that nothing is known of.
        `new_users`, `new_items`: the side features of such users and items, by which they are scored: (ids, array), or
        a frame with the column user_id or item_id and one for each feature, in the order of the log's.
        """
        self._check_fitted()
        if items is None:
            if not is_frame(users):
                raise DataError("`items` must be given beside `users`, unless `users` is a frame with both columns.")
            pairs = as_frame(users, "users")
            users, items = self._ids(users, "user"), self._ids(users, "item")
            scores = self.predict(
                users,
                items,
                unknown_users=unknown_users,
                unknown_items=unknown_items,
                new_users=new_users,
                new_items=new_items,
            )
            return score_column(pairs, scores)
        extra_users, extra_items = self._new_rows("user", new_users), self._new_rows("item", new_items)
        user_codes = self._user_codes(users, unknown_users, extra_users)
        item_codes = self._item_codes(items, unknown_items, extra_items)
        if len(user_codes) != len(item_codes):
            raise DataError(
                f"`users` and `items` must have equal lengths, got {len(user_codes)} and {len(item_codes)}."
            )
        n_users, n_items = len(self.user_ids_), len(self.item_ids_)
        new = (user_codes >= n_users) | (item_codes >= n_items)
        if not new.any():
            return self._probabilities(user_codes, item_codes)
        found = np.empty(len(new), np.float32)
        found[~new] = self._probabilities(user_codes[~new], item_codes[~new])
        found[new] = self._probabilities_of_new(user_codes[new], item_codes[new], extra_users, extra_items)
        return found

    def _probabilities_of_new(
        self, users: Codes, items: Codes, new_users: NewRows, new_items: NewRows
    ) -> NDArray[np.float32]:
        """The probability of each pair with a new user or a new item; -1 as in `predict`."""
        user_table, item_table = self._tables(new_users, new_items)
        blocks = []
        for start in range(0, len(users), BLOCK_SCORES // 16):
            user, item = (
                torch.from_numpy(codes[start : start + BLOCK_SCORES // 16]).long() for codes in (users, items)
            )
            logits = (user_table[user.clamp(min=0)] * item_table[item.clamp(min=0)]).sum(1)
            blocks.append(torch.where(user < 0, self.item_rates_.cpu().mean(), torch.sigmoid(logits)))
        found: NDArray[np.float32] = torch.cat(blocks).numpy()
        alone, place = np.unique(users[items < 0], return_inverse=True)  # users with an item that nothing is known of
        means = [torch.sigmoid(user_table[user] @ item_table[: len(self.item_ids_)].T).mean() for user in alone]
        found[items < 0] = np.array(means, np.float32)[place]
        return found

    def predict_log(
        self, log: FeedbackLog, *, unknown_users: Unknown = "error", unknown_items: Unknown = "error"
    ) -> NDArray[np.float32]:
        """The probability of a positive label for each row of a log; unknown users and items as in `predict`."""
        self._check_fitted()
        if (log.user_ids, log.item_ids) == (self.user_ids_, self.item_ids_):
            return self._probabilities(log.users, log.items)
        users, items = log.user_ids.decode(log.users), log.item_ids.decode(log.items)
        scores: NDArray[np.float32] = self.predict(
            users, items, unknown_users=unknown_users, unknown_items=unknown_items
        )
        return scores

    def cold_rows(self, log: FeedbackLog) -> ColdRows:
        """Masks of the rows of a log whose user, and whose item, is unknown or has no row in the training log."""
        self._check_fitted()
        counts = np.diff(self.seen_.starts.numpy()), np.bincount(self.seen_.items, minlength=len(self.item_ids_))
        codes = self.user_ids_.encode(log.user_ids.column), self.item_ids_.encode(log.item_ids.column)
        users, items = ((code < 0) | (count[code] == 0) for code, count in zip(codes, counts, strict=True))
        return ColdRows(users[log.users], items[log.items])

    def score_items(self, users: NDArray[Any]) -> NDArray[np.float32]:
        """The logits of all items for users given by their codes. (users, |I|)"""
        self._check_fitted()
        codes = torch.from_numpy(users.astype(np.int64)).to(self.item_rates_.device)
        logits: NDArray[np.float32] = self.scorer_.grid(codes).cpu().numpy()
        return logits

    def has_seen(self, log: FeedbackLog) -> NDArray[np.bool_]:
        """A mask of the rows of a log whose pair was in the training log or in the probe."""
        self._check_fitted()
        users = self.user_ids_.encode(log.user_ids.column)[log.users]
        items = self.item_ids_.encode(log.item_ids.column)[log.items]
        known = (users >= 0) & (items >= 0)
        return known & (self.seen_.contains(users, items) | self.probed_.contains(users, items))

    def recommend(
        self,
        users: Any = None,
        k: int = 10,
        filter_seen: bool = True,
        candidates: Any = None,
        *,
        exclude: Any = None,
        unknown_users: Unknown = "error",
        new_users: Any = None,
        new_items: Any = None,
    ) -> Any:
        """The k best items of each user as a frame `user_id, item_id[, item_name], score, rank, scored_by`.

        Best first. The frame is of the kind of `users`, else of the training frame, else of polars (a loaded model).
        `users`: ids, or a frame with a column of them (one list for each), None for all. `filter_seen` leaves out what
        the user rated in the log. `candidates`: item ids to choose from, None for all. `exclude`: item ids to leave
        out, or a frame of pairs `user_id, item_id`; unknown ones are ignored. A user with fewer than k items left gets
        fewer rows. Equal scores are ranked in the order of the vocabulary. `unknown_users`, `new_users`, `new_items` as
        in `predict`; new items are ranked with those of the log. `scored_by`: "model"; "features" of a user or an item
        without ratings; "popularity" where nothing is known of the user.
        """
        given, users = users, self._ids(users, "user", distinct=True)
        extra_users, extra_items = self._new_rows("user", new_users), self._new_rows("item", new_items)
        codes = torch.from_numpy(self._user_codes(users, unknown_users, extra_users)).long()
        place = codes - len(self.user_ids_)
        known = codes.clamp(0, len(self.user_ids_) - 1)
        rated = (known == codes) & (self.seen_.starts[known + 1] > self.seen_.starts[known])
        own = FEATURES if self.scorer_.feature_columns("user") else POPULARITY
        scored_by = torch.where(rated, MODEL, own).masked_fill(codes < 0, POPULARITY)
        ranked = RankedUsers(
            ids=self.user_ids_.column if users is None or len(codes) == 0 else as_column(users),
            codes=torch.where(place < 0, codes, -1),
            vectors=extra_users.vectors,
            place=place.clamp(min=-1),
            scored_by=scored_by,
        )
        if filter_seen:
            ranked = replace(ranked, hidden=((self.seen_, ranked.codes),))
        return self._result(self._ranked(ranked, k, candidates, exclude, extra_items), given, new_items)

    def recommend_for(
        self,
        ratings: Any,
        k: int = 10,
        filter_seen: bool = True,
        candidates: Any = None,
        *,
        exclude: Any = None,
        new_users: Any = None,
        new_items: Any = None,
    ) -> Any:
        """The k best items of users whom the log does not have, from a few of their ratings: a frame as `recommend`.

        `ratings`: {item: rating} or a list of (item, rating) of one user, who is called "new" in the result; or a frame
        `item_id, rating` with a column `user_id` where there are several, or named as the training frame. Ratings are
        compared with the log's threshold; of a pair that is rated twice the last counts. Clicks need no column
        `rating`.
        A user's row is learned from them as it would have been in training, all else fixed (fold-in): by the same loss
        and prior, without a refit. A rating counts what the log's ratings with its label counted on average, and the
        user's exposure is that of the mean user. What pairs without a rating add to the loss of some methods (imputed
        errors, the missingness model) is left out: that somebody new has not rated an item yet says nothing.
        An id that the log has too is a new user all the same. `filter_seen` leaves out the items of `ratings`;
        `new_users` are their side features; other arguments as in `recommend`. `scored_by` is "fold-in", and "features"
        for new items.
        """
        ids, vectors, log = self._folded("recommend_for", ratings, new_users)
        rows = torch.arange(len(vectors))
        learned = any(member.row_columns("user") for member in self._members(self.scorer_))
        ranked = RankedUsers(
            ids, torch.full_like(rows, -1), vectors, rows, torch.full_like(rows, FOLD_IN if learned else POPULARITY)
        )
        if filter_seen:
            ranked = replace(ranked, hidden=((Seen.of(log), rows),))
        lists = self._ranked(ranked, k, candidates, exclude, self._new_rows("item", new_items))
        return self._result(lists, ratings, new_items)

    def predict_for(
        self, ratings: Any, items: Any, users: Any = None, *, new_users: Any = None, new_items: Any = None
    ) -> NDArray[np.float32]:
        """The probability of a positive label of each of `items` for users as in `recommend_for`.

        `users`: whose item each is, where `ratings` are those of several.
        """
        ids, vectors, _ = self._folded("predict_for", ratings, new_users)
        extra = self._new_rows("item", new_items)
        codes = torch.from_numpy(self._item_codes(items, "error", extra)).long()
        if users is None and len(vectors) > 1:
            raise DataError(f"`users` must name the user of each item, as `ratings` are those of {len(vectors)} users.")
        owners = np.zeros(len(codes), int) if users is None else Vocabulary(ids).require(users, "user")
        if len(owners) != len(codes):
            raise DataError(f"`users` and `items` must have equal lengths, got {len(owners)} and {len(codes)}.")
        table = torch.cat([self._vectors()[1], extra.vectors])
        found: NDArray[np.float32] = torch.sigmoid(
            (vectors[torch.from_numpy(owners).long()] * table[codes]).sum(1)
        ).numpy()
        return found

    def _folded(self, what: str, ratings: Any, new_users: Any) -> tuple[Column, Tensor, FeedbackLog]:
        """(ids, vectors, ratings as a log) of new users."""
        self._check_fitted()
        check_linear(self.scorer_, what)
        own = self.log_facts_["columns"]
        users, items, values = rating_columns(ratings, own, self.feedback == "clicks")
        present = as_frame(ratings, "ratings").columns if is_frame(ratings) else ()
        names = names_in(present, own if present else {}, ("user", "item", "rating"))
        threshold = self.log_facts_["threshold"]
        self.item_ids_.require(items, "item", "Leave out ratings of items that the model does not know.")
        log = FeedbackLog.from_arrays(
            users, items, values, item_ids=self.item_ids_, threshold=threshold, names=names, duplicates="last"
        )
        if threshold is None:
            check_labels("ratings", log, "The log's ratings were labels from 0 to 1, so these must be too.")
        features = self._features_of("user", log.user_ids, new_users)
        count, parts = len(log.user_ids), []
        for member, loss in zip(self._members(self.scorer_), self.row_losses_, strict=True):
            given = Ratings.of(log.users, log.items, log.labels, log.ratings, loss)
            parts.append(fold_in(member, loss, given, count, features).float())
        return log.user_ids.column, self._joined("user", parts), log

    def _ranked(self, ranked: RankedUsers, k: int, candidates: Any, exclude: Any, new_items: NewRows) -> pl.DataFrame:
        """The lists of some users as a frame."""
        check_number("k", k, at_least=1, integer=True)
        columns, excluded, hidden = self._choice(ranked, self._ids(candidates, "item"), exclude, new_items.ids)
        ranked = replace(ranked, hidden=(*ranked.hidden, *hidden))
        linear = len(ranked.vectors) > 0 or len(new_items.vectors) > 0
        tables = self._vectors() if linear else None
        size = max(1, BLOCK_SCORES // len(new_items.ids))
        with one_thread():
            blocks = []
            for rows in torch.split(torch.arange(len(ranked.codes)), size):
                scores = self._scores(ranked, rows, new_items, tables)
                for pairs, users in ranked.hidden:
                    pairs.hide(scores, users[rows])
                scores[:, excluded] = -torch.inf
                blocks.append(_top(scores, rows, k, columns))
        if not blocks:
            blocks = [_top(torch.zeros(0, len(new_items.ids)), torch.arange(0), k, columns)]
        rows, items, scores, ranks = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return table(
            user_id=gather(ranked.ids, rows.numpy()),
            item_id=new_items.ids.decode(items.numpy()),
            score=scores.numpy(),
            rank=ranks.int().numpy(),
            scored_by=pl.Series(SCORED_BY).gather(self._scored_by(ranked.scored_by[rows], items).numpy()),
        )

    def _scored_by(self, of_users: Tensor, items: Tensor) -> Tensor:
        """The basis of each pair's score (positions in SCORED_BY), from what is known of its user."""
        new = items >= len(self.item_ids_)
        if self.scorer_.feature_columns("item"):
            counts = self.seen_.item_counts(len(self.item_ids_))
            new = new | (counts[items.clamp(max=len(counts) - 1)] == 0)
        return torch.where(new & (of_users != POPULARITY), FEATURES, of_users)

    def _scores(self, ranked: RankedUsers, rows: Tensor, new: NewRows, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        """The logits of all items, new ones behind those of the log, for a block of users."""
        codes, place = ranked.codes[rows], ranked.place[rows]
        scores = self.scorer_.grid(codes.clamp(min=0).to(self.item_rates_.device)).cpu()
        rates, unknown = self.item_rates_.cpu(), (codes < 0) & (place < 0)
        scores[unknown] = torch.logit(rates, eps=1e-6)
        if tables is None:
            return scores
        user_table, item_table = tables
        folded = place >= 0
        if folded.any():
            scores[folded] = ranked.vectors[place[folded]] @ item_table.T
        if not len(new.vectors):
            return scores
        vectors = user_table[codes.clamp(min=0)]
        vectors[folded] = ranked.vectors[place[folded]] if folded.any() else vectors[folded]
        of_new = vectors @ new.vectors.T
        of_new[unknown] = torch.logit(rates.mean(), eps=1e-6)
        return torch.cat([scores, of_new], 1)

    def _choice(
        self, ranked: RankedUsers, candidates: Any, exclude: Any, ids: Vocabulary
    ) -> tuple[Tensor | None, Tensor, list[tuple[Seen, Tensor]]]:
        """(columns of candidates, columns to leave out for all, pairs to leave out)."""
        columns, excluded, hidden = None, torch.arange(0), []
        if candidates is not None:
            codes = np.unique(ids.require(candidates, "item"))
            if codes.size == 0:
                raise ConfigError("`candidates` must name at least one item, got none. Use None for all items.")
            columns = torch.from_numpy(codes).long()
        pairs = pair_columns(exclude, self.log_facts_["columns"])
        if pairs is not None:
            users = Vocabulary.of(ranked.ids)
            owners, items = users.encode(pairs[0]), ids.encode(pairs[1])
            known = (owners >= 0) & (items >= 0)
            seen = Seen.of_pairs(owners[known], items[known], len(users))
            hidden.append((seen, torch.from_numpy(users.encode(ranked.ids)).long()))
        elif exclude is not None:
            codes = ids.encode(exclude)
            excluded = torch.from_numpy(codes[codes >= 0]).long()
        return columns, excluded, hidden

    def similar_items(self, items: Any = None, k: int = 10) -> Any:
        """The k items whose vectors are most alike, as a frame `item_id, similar_id, score, rank`.

        The score of two items with vectors q and q' is <q, q'> / sqrt((|q|^2 + v) (|q'|^2 + v')), the cosine that is to
        be expected of the true vectors (`shrunken_directions`): v is the variance that an item's ratings leave of its
        vector (`item_directions`), so that items with few ratings do not win by chance.

        With names, `item_name` and `similar_name` stand beside the ids. Frames as in `recommend`.
        """
        check_number("k", k, at_least=1, integer=True)
        self._check_fitted()
        given, items = items, self._ids(items, "item", distinct=True)
        codes = np.arange(len(self.item_ids_)) if items is None else self.item_ids_.require(items, "item")
        own, directions = torch.from_numpy(codes).long(), self.item_directions()
        if not directions.shape[1]:
            raise ConfigError("`dim` must be at least 1 for similar items, got 0: a model of biases has no vectors.")
        scores, similar = nearest(directions, own, k, BLOCK_SCORES)
        width = scores.shape[1]
        lists = table(
            item_id=self.item_ids_.decode(own.repeat_interleave(width).numpy()),
            similar_id=self.item_ids_.decode(similar.flatten().numpy()),
            score=scores.flatten().numpy(),
            rank=torch.arange(1, width + 1).repeat(len(own)).int().numpy(),
        )
        return self._result(lists, given)

    def _ids(self, given: Any, role: str, *, distinct: bool = False) -> Any:
        """The column of users or items of a frame, called as in the training frame or `user_id`; ids as they came."""
        if not is_frame(given):
            return given
        self._check_fitted()
        frame = as_frame(given, f"{role}s")
        name = names_in(frame.columns, self.log_facts_["columns"], (role,))[role]
        column = column_of(frame, name, f"It must hold the ids of {role}s.")
        return Vocabulary.distinct(column) if distinct else column

    def _result(self, lists: pl.DataFrame, given: Any, new_items: Any = None) -> Any:
        """Lists with the names of items where there are some, in the kind of frame that was given, else fitted to."""
        names, encoder = self.item_names_, self.side_encoders_["item"]
        if names is not None and is_frame(new_items):
            names = names.with_new(new_items, (encoder and encoder.id_col_) or DEFAULT_NAMES["item"])
        for ids, name in (("item_id", "item_name"), ("similar_id", "similar_name")):
            if names is not None and ids in lists.columns:
                lists.insert_column(lists.get_column_index(ids) + 1, names.of(lists[ids]).alias(name))
        return to_kind(lists, kind_of_frame(given) or self.frame_kind_)

    def item_directions(self) -> Tensor:
        """The vectors of items whose inner products are their similarities. (|I|, d)

        A vector q of d numbers that were learned with a prior of precision `l2` from n ratings has a variance of about
        v = d / (l2 + n r (1 - r) s) beyond them, with r the log's mean label and s the mean square of a number in a
        user's vector: the information of a rating on each number. Those of an ensemble add up over its members.
        """
        self._check_fitted()
        counts, rate = self.seen_.item_counts(len(self.item_ids_)), self.log_facts_["mean_label"]
        variance = torch.zeros(len(counts))
        for member, loss in zip(self._members(self.scorer_), self.row_losses_, strict=True):
            users, items = (table.cpu() for table in member.embeddings())
            sizes = {name: value.shape for name, value in member.named_parameters()}
            prior = [loss.precisions[name] for name in loss.precisions if sizes[name] == items.shape and "item" in name]
            information = counts * rate * (1 - rate) * float(users.square().mean()) if users.numel() else counts
            variance += items.shape[1] / (sum(prior[:1]) + information).clamp(min=1e-12)
        return shrunken_directions(self.scorer_.embeddings()[1].cpu(), variance)

    def export_embeddings(self, folder: str | Path) -> None:
        """Write users.parquet and items.parquet into a folder: `id, vector`, for a vector store.

        The inner product of a user's and an item's vector is the log odds of a positive label: sigmoid of it is
        `predict`, and the largest ones are `recommend` with filter_seen=False. Biases, the intercept, side features,
        exposure and both members of an ensemble are columns of the vectors.
        """
        self._check_fitted()
        check_linear(self.scorer_, "export_embeddings")
        sides = zip(("users", "items"), (self.user_ids_, self.item_ids_), self._vectors(), strict=True)
        frames = {name: ids.to_frame().with_columns(vector=pl.Series(vectors.numpy())) for name, ids, vectors in sides}
        for name, frame in frames.items():
            write_table(frame, Path(folder) / f"{name}.parquet")

    @takes_options(LogOptions, DEFAULTS)
    def update(self, log: Any, **options: Unpack[LogOptions]) -> Self:
        """Learn from further ratings, those of new users and new items too, without the log of the fit.

        The rows of all users and items of `log` are learned anew, users and items in turn, from the new ratings and
        around what the earlier ones left of them: a Gaussian at the fitted row, whose precision is the prior's and the
        information of the earlier ratings at the fitted parameters (a Laplace approximation, as in online Bayesian
        learning). New users and items start from the prior, with the features that `log` has of them. All else stays as
        it was fitted: intercept, weights of features, exposure, cutpoints, priors, the weights of an ensemble, and the
        model of weights: a rating counts as in `recommend_for`. Where how ratings come about has changed, fit again.
        `log` has the threshold of the log of the fit, and none of its rows. It may be repeated with further logs.
        A model of clicks is fitted again to those of both logs: having no labels, they are all known to it.
        """
        self._check_fitted()
        check_linear(self.scorer_, "update")
        log = as_log("log", log, self, **options)
        if log.threshold != self.log_facts_["threshold"]:
            fitted = self.log_facts_["threshold"]
            raise DataError(
                f"`log` must have the threshold {fitted} that the model was fitted with, got {log.threshold}."
            )
        if self.feedback == "clicks":
            return self._fit_to_more_clicks(log)
        check_labels("labels", log)
        self._check_further(log)
        scorer, ids = deepcopy(self.scorer_), []
        for side, own, others in (
            ("user", self.user_ids_, log.user_ids),
            ("item", self.item_ids_, log.item_ids),
        ):
            extended = own.extended(others.column)
            new = Vocabulary(extended.decode(np.arange(len(own), len(extended))))
            values = log.user_features if side == "user" else log.item_features
            features = None if values is None else (others.column, values)
            wanted = self.scorer_.feature_columns(side) > 0
            scorer.append_rows(side, len(new), self._features_of(side, new, features if wanted else None))
            ids.append(extended)
        codes = [
            own.encode(others.column)[column]
            for own, others, column in zip(ids, (log.user_ids, log.item_ids), (log.users, log.items), strict=True)
        ]
        for member, loss in zip(self._members(scorer), self.row_losses_, strict=True):
            self._update_member(member, loss, codes, log)
        ratio = self.row_losses_[0].ratios_of(torch.from_numpy(log.labels)).numpy()
        self._append(log, ids, codes, ratio)
        self.scorer_ = scorer.requires_grad_(False)
        return self

    def _check_further(self, log: FeedbackLog) -> None:
        """Raise `DataError` for a log with pairs that the model was fitted to: they would count twice."""
        users = self.user_ids_.encode(log.user_ids.column)[log.users]
        items = self.item_ids_.encode(log.item_ids.column)[log.items]
        twice = np.flatnonzero((users >= 0) & (items >= 0) & self.seen_.contains(users, items))
        if len(twice):
            user, item = log.user_ids.decode(log.users[twice[:1]])[0], log.item_ids.decode(log.items[twice[:1]])[0]
            raise DataError(
                f"`log` must have further pairs only: {len(twice):,} of its {len(log):,} rows were learned before, "
                f"such as user {short_repr(user)}, item {short_repr(item)}. Leave them out (`has_seen`), or fit again."
            )

    def _fit_to_more_clicks(self, log: FeedbackLog) -> Self:
        """Fit to the clicks of the fit and to those of a further log."""
        _check_feedback("clicks", log)
        if any(self.scorer_.feature_columns(side) for side in ("user", "item")):
            raise ConfigError("`update` needs a model without side features, for clicks. Fit again to all clicks.")
        known, columns = {"user": self.user_ids_, "item": self.item_ids_}, {}
        new, old = {"user": log.users, "item": log.items}, {"user": self.seen_.users, "item": self.seen_.items}
        for side, ids in (("user", log.user_ids), ("item", log.item_ids)):
            known[side] = known[side].extended(ids.column)
            codes = known[side].encode(ids.column)[new[side]]
            columns[side] = known[side].decode(np.concatenate([old[side].numpy(), codes]))
        clicks = FeedbackLog.from_arrays(
            columns["user"], columns["item"], feedback="clicks", user_ids=known["user"], item_ids=known["item"]
        )
        names, updates = self.item_names_, self.log_facts_.get("updates", 0)
        self.fit(replace(clicks, column_names=self.log_facts_["columns"], frame_kind=self.frame_kind_))
        self.item_names_ = names
        self.log_facts_["updates"] = updates + 1
        return self

    def _update_member(self, scorer: Scorer, loss: RowLoss, codes: list[Codes], log: FeedbackLog) -> None:
        """Learn the rows of one predictor from a further log, users and items in turn."""
        sides = ("user", "item")
        tables = scorer.vectors()
        assert tables is not None
        start = [table.double().cpu() for table in tables]
        touched = [np.unique(column, return_inverse=True) for column in codes]
        seen = [self.seen_.users.numpy(), self.seen_.items.numpy()]
        problems = []
        for own, other in ((0, 1), (1, 0)):
            rows, owners = touched[own]
            ratings = Ratings.of(owners, codes[other], log.labels, log.ratings, loss)
            place = np.full(len(start[own]), -1)
            place[rows] = np.arange(len(rows))
            kept = np.flatnonzero(place[seen[own]] >= 0)
            kept = kept[np.argsort(place[seen[own][kept]], kind="stable")]
            assert self.seen_.ratio is not None
            owner, partner = (torch.from_numpy(column) for column in (place[seen[own][kept]], seen[other][kept]))
            earlier = Earlier(owner, partner, self.seen_.ratio[torch.from_numpy(kept)].double(), start[other])
            problems.append((torch.from_numpy(rows), ratings, earlier))
        now = [table.clone() for table in start]
        for _ in range(MAX_SWEEPS):
            change = 0.0
            for own, (places, ratings, earlier) in enumerate(problems):
                found = learn_rows(scorer, sides[own], loss, ratings, start[own][places], now[1 - own], earlier)
                change = max(change, float((found - now[own][places]).abs().max()))
                now[own][places] = found
            if change < SMALLEST_CHANGE:
                break
        for side, before, after in zip(sides, start, now, strict=True):
            for name, columns in scorer.row_columns(side).items():
                parameter = scorer.get_parameter(name)
                parameter.data += (after - before)[:, columns].to(parameter)

    def _append(self, log: FeedbackLog, ids: list[Vocabulary], codes: list[Codes], ratio: NDArray[Any]) -> None:
        """Take over what the rows of a further log change besides the scorer."""
        (n_users, n_items), facts = (len(own) for own in ids), dict(self.log_facts_)
        old = self.seen_
        assert old.ratio is not None
        counts, rates = old.item_counts(len(self.item_ids_)).numpy(), self.item_rates_.cpu().double().numpy()
        prior = facts["rows"] / len(self.item_ids_)
        sums = np.zeros(n_items)
        sums[: len(rates)] = rates * (counts + prior) - prior * facts["mean_label"]  # as in `shrunken_label_rates`
        sums += np.bincount(codes[1], log.labels, minlength=n_items)
        columns = zip((old.users.numpy(), old.items.numpy(), old.ratio.numpy()), (*codes, ratio), strict=True)
        users, items, both = (np.concatenate(parts) for parts in columns)
        rows = facts["rows"] + len(log)
        facts["mean_label"] = (facts["rows"] * facts["mean_label"] + float(log.labels.sum())) / rows
        facts |= {"rows": rows, "users": n_users, "items": n_items, "updates": facts.get("updates", 0) + 1}
        prior, counts = rows / n_items, np.bincount(items, minlength=n_items)
        label_rates = torch.from_numpy((sums + prior * facts["mean_label"]) / (counts + prior)).float()
        probed = self.probed_.users.numpy(), self.probed_.items.numpy(), n_users
        self.log_facts_, self.item_rates_ = facts, label_rates.to(self.item_rates_.device)
        self.seen_, self.probed_ = Seen.of_pairs(users, items, n_users, both), Seen.of_pairs(*probed)
        self.ratio_ = np.concatenate([self.ratio_, ratio.astype(self.ratio_.dtype)])
        self.user_ids_, self.item_ids_ = ids

    def embeddings(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The embeddings of users and of items, in the order of their codes: features for balancing."""
        self._check_fitted()
        users, items = self.scorer_.embeddings()
        return users.cpu().numpy(), items.cpu().numpy()

    def save(self, folder: str | Path, **facts: Any) -> None:
        """Write the fitted model into a folder; an interrupted save leaves the old content whole.

        `facts`: further JSON-able facts for the manifest, such as an evaluation.
        """
        from safetensors.torch import save

        self._check_fitted()
        tensors = {f"scorer.{name}": value.contiguous().cpu() for name, value in self.scorer_.state_dict().items()}
        for name, pairs in (("seen", self.seen_), ("probed", self.probed_)):
            tensors |= {f"{name}.starts": pairs.starts, f"{name}.items": pairs.items}
        assert self.seen_.ratio is not None
        tensors["seen.ratio"] = self.seen_.ratio
        tensors |= {"item_rates": self.item_rates_.cpu(), "ratio": torch.from_numpy(self.ratio_)}
        own_facts = {
            "version": __version__,
            "configuration": self.configuration_,
            "log": self.log_facts_,
            "history": self.history_.to_dict(),
            "parts": self.facts_,
            "side_encoders": {side: found and found.to_dict() for side, found in self.side_encoders_.items()},
            "row_losses": [loss.to_dict() for loss in self.row_losses_],
        }
        files = {
            "tensors.safetensors": save(tensors),
            "users.parquet": self.user_ids_.to_parquet(),
            "items.parquet": self.item_ids_.to_parquet(),
        }
        if self.item_names_ is not None:
            files["item_names.parquet"] = self.item_names_.to_parquet()
        write_folder(folder, own_facts, files, facts)

    def _check_fitted(self) -> None:
        if not hasattr(self, "scorer_"):
            raise NotFittedError("this recommender is not fitted. Call fit(log) first.")

    def _user_codes(self, users: Any, unknown: Unknown, new: NewRows | None = None) -> Codes:
        """Codes of user ids, None for all users of the log; -1 for an unknown user where that is allowed."""
        self._check_fitted()
        check_choice("unknown_users", unknown, get_args(Unknown))
        if users is None:
            return np.arange(len(self.user_ids_), dtype=np.int32)
        ids = self.user_ids_ if new is None else new.ids
        return ids.encode(users) if unknown != "error" else ids.require(users, "user", UNKNOWN_ADVICE["user"])

    def _item_codes(self, items: Any, unknown: Unknown, new: NewRows | None = None) -> Codes:
        """Codes of item ids; -1 for an unknown item where that is allowed."""
        check_choice("unknown_items", unknown, get_args(Unknown))
        ids = self.item_ids_ if new is None else new.ids
        return ids.encode(items) if unknown != "error" else ids.require(items, "item", UNKNOWN_ADVICE["item"])

    def _members(self, scorer: Scorer) -> list[Scorer]:
        """The predictors that a scorer averages; itself, if it is one."""
        return list(getattr(scorer, "members", [scorer]))

    def _joined(self, side: str, vectors: list[Tensor]) -> Tensor:
        """The vectors of the whole model from those that its members have of some users."""
        join = getattr(self.scorer_, "join", None)
        joined: Tensor = (
            vectors[0] if join is None else join(side, [part.to(self.item_rates_.device) for part in vectors])
        )
        return joined.cpu()

    def _vectors(self) -> tuple[Tensor, Tensor]:
        """Two tables whose inner products are the logits of the log's users and items, on the CPU."""
        tables = self.scorer_.vectors()
        assert tables is not None  # see `check_linear`
        return tables[0].cpu(), tables[1].cpu()

    def _tables(self, new_users: NewRows, new_items: NewRows) -> tuple[Tensor, Tensor]:
        """The tables of `_vectors`, with new users and new items behind."""
        users, items = self._vectors()
        return torch.cat([users, new_users.vectors]), torch.cat([items, new_items.vectors])

    def _new_rows(self, side: str, given: Any) -> NewRows:
        """The ids of the log and those whose features are given, with the vectors that follow from these."""
        self._check_fitted()
        own = self.user_ids_ if side == "user" else self.item_ids_
        if given is None:
            return NewRows(own, torch.empty(0))
        check_linear(self.scorer_, f"new_{side}s")
        ids = own.extended(self._feature_rows(side, given)[0])
        new = Vocabulary(ids.decode(np.arange(len(own), len(ids))))
        features = self._features_of(side, new, given)
        return NewRows(ids, self.scorer_.unrated_vectors(side, len(new), features).cpu())

    def _feature_rows(self, side: str, given: Any) -> tuple[Any, NDArray[np.float32]]:
        """(ids, features) of users or items; a frame is encoded as the table of the fit was."""
        encoder = self.side_encoders_[side]
        if encoder is None or not is_frame(given):
            return feature_rows(given, side)
        try:
            ids, features = encoder.transform(given)
        except DataError as error:
            raise DataError(f"`new_{side}s`: {error}") from None
        return ids.column, features.astype(np.float32)

    def _features_of(self, side: str, ids: Vocabulary, given: Any) -> Tensor | None:
        """The features of some users or items, from a table of such features; None where none is given."""
        if given is None:
            return None
        column, values = self._feature_rows(side, given)
        try:
            known = Vocabulary(column)
        except DataError:
            raise DataError(f"`new_{side}s` must have each {side} once, got one twice.") from None
        columns = self.scorer_.feature_columns(side)
        if not columns:
            raise ConfigError(
                f"`new_{side}s` needs a model that has learned weights of {side}s' features, and this one has not. Fit "
                f"with side_features=True (--set side_features=true) on a log with {side}_features."
            )
        if values.shape[1] != columns:
            raise DataError(
                f"`new_{side}s` must have the {columns} features of the log that the model was fitted on, in their "
                f"order, got {values.shape[1]}."
            )
        rows = known.encode(ids.column)
        if (rows < 0).any():
            missing = short_repr(ids.column[int(np.flatnonzero(rows < 0)[0])])
            raise DataError(
                f"`new_{side}s` must have a row for each {side} that is asked about, and {missing} has none."
            )
        return torch.from_numpy(values[rows])

    def _probabilities(self, users: Codes, items: Codes) -> NDArray[np.float32]:
        """The probability of each pair; an unknown user or item (-1) as in `predict`."""
        device, parts = self.item_rates_.device, []
        for start in range(0, len(users), BLOCK_SCORES // 16):
            block = slice(start, start + BLOCK_SCORES // 16)
            user, item = (torch.from_numpy(codes[block]).to(device) for codes in (users, items))
            known = torch.sigmoid(self.scorer_(user.clamp(min=0), item.clamp(min=0)))
            parts.append(torch.where(user >= 0, known, self.item_rates_[item.clamp(min=0).long()]).cpu())
        found = torch.cat(parts).numpy() if parts else np.empty(0, np.float32)
        new = items < 0
        return np.where(new, self._mean_over_items(users, new), found) if new.any() else found

    def _mean_over_items(self, users: Codes, rows: NDArray[np.bool_]) -> NDArray[np.float32]:
        """The mean probability of the user of each of these rows over all items of the log; other rows do not count."""
        distinct, place = np.unique(np.where(rows, users, -1), return_inverse=True)  # -1: unknown, or not asked for
        means = np.empty(len(distinct), np.float32)
        for block in np.array_split(np.arange(len(distinct)), -(-len(distinct) * len(self.item_ids_) // BLOCK_SCORES)):
            codes = torch.from_numpy(distinct[block]).long().to(self.item_rates_.device)
            means[block] = torch.sigmoid(self.scorer_.grid(codes.clamp(min=0))).mean(dim=1).cpu()
        means[distinct < 0] = float(self.item_rates_.mean())
        return means[place]


def _top(scores: Tensor, rows: Tensor, k: int, columns: Tensor | None) -> tuple[Tensor, ...]:
    """(row, item, score, rank) of each recommendation, from logits whose rows are these; minus infinity is left out."""
    values, items = top_items(scores if columns is None else scores[:, columns], k)
    items = items if columns is None else columns[items]
    row, place = torch.nonzero(values > -torch.inf, as_tuple=True)
    return rows[row], items[row, place], torch.sigmoid(values[row, place]), place + 1


def load_model(folder: str | Path, device: str = "cpu") -> DebiasedRecommender:
    """The recommender that `save` wrote. Nothing in the folder is executed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Training(device=device).resolve_device()
    manifest, files = read_folder(folder)
    try:
        _check_size_of([manifest["configuration"], manifest.get("fit")])
        model = from_config(manifest["configuration"])
        if not isinstance(model, DebiasedRecommender):
            raise DataError(f"{folder} holds a {type(model).__name__}, not a recommender.")
        tensors = load(files["tensors.safetensors"])
        model.user_ids_ = Vocabulary.from_parquet(files["users.parquet"])
        model.item_ids_ = Vocabulary.from_parquet(files["items.parquet"])
        model.item_names_ = ItemNames.from_parquet(files.get("item_names.parquet"))
        model.frame_kind_ = POLARS
        model.check_settings()
        model.log_facts_, model.history_ = _check_log_facts(manifest["log"]), _check_history(manifest["history"])
        shape, n_columns = (len(model.user_ids_), len(model.item_ids_)), tuple(model.log_facts_["feature_columns"])
        model.scorer_ = _saved_scorer(folder, model, tensors, n_columns).to(place)
        model.item_rates_ = _check_numbers("item_rates", tensors["item_rates"], shape[1:]).to(place)
        ratio = tensors["ratio"]
        model.ratio_ = _check_numbers("ratio", ratio, (len(ratio),), (torch.float32, torch.float64)).numpy()
        if len(ratio) > model.log_facts_["rows"]:  # fewer where rows were held out to stop early
            raise DataError(f"'ratio' must hold a number for each row, got {len(ratio):,} for fewer rows.")
        model.facts_ = _check_facts(manifest["parts"])
        model.seen_ = _check_seen("seen", tensors["seen.starts"], tensors["seen.items"], shape)
        kept = _check_numbers("seen.ratio", tensors["seen.ratio"], (len(model.seen_.items),))
        model.seen_ = replace(model.seen_, ratio=kept)
        model.row_losses_ = [RowLoss.from_dict(facts) for facts in manifest["row_losses"]]
        if len(model.row_losses_) != len(model._members(model.scorer_)):
            raise DataError(f"{folder} must hold a loss of rows for each of its predictors.")
        model.probed_ = _check_seen("probed", tensors["probed.starts"], tensors["probed.items"], shape)
        model.side_encoders_ = _side_encoders(manifest["side_encoders"], n_columns)
        model.configuration_ = manifest["configuration"]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder} cannot be loaded, its parts do not fit together: {reason}") from error
    return model


def _saved_scorer(
    folder: str | Path, model: DebiasedRecommender, tensors: Mapping[str, Tensor], n_columns: tuple[Any, ...]
) -> Scorer:
    """The scorer of a model with the saved tensors, whose shapes and types are those that it must have."""
    with torch.device("meta"):  # no memory until the saved tensors are seen to have the right shapes
        scorer = as_backbone(model.backbone).empty(len(model.user_ids_), len(model.item_ids_), n_columns=n_columns)
        members = {name.split(".")[2] for name in tensors if name.startswith("scorer.members.")}
        if members:
            if model.ensemble is None or len(members) > 2:
                raise DataError(f"{folder} holds {len(members)} predictors, and its configuration has one.")
            scorer = model.ensemble.empty_scorer(scorer, len(members))
    state = {name.removeprefix("scorer."): t for name, t in tensors.items() if name.startswith("scorer.")}
    for name, expected in scorer.state_dict().items():
        if name in state:  # else the next line raises
            _check_numbers(name, state[name], tuple(expected.shape), (expected.dtype,))
    scorer.load_state_dict(state, assign=True)
    return scorer.requires_grad_(False)


def _check_size_of(configuration: Any) -> None:
    """Raise `DataError` for a configuration of more values than any model has: each layer of a network is built."""
    waiting, count = [configuration], 0
    while waiting:
        value = waiting.pop()
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        waiting, count = [*waiting, *inner], count + len(inner)
        if count > MAX_CONFIGURATION:
            raise DataError(f"the configuration has more than {MAX_CONFIGURATION:,} values.")


def _check_numbers(
    name: str, values: Tensor, shape: tuple[int, ...] | None = None, dtypes: Sequence[torch.dtype] = (torch.float32,)
) -> Tensor:
    """Finite floats, of this shape where it is known."""
    if values.dtype not in dtypes or not bool(values.isfinite().all()):
        raise DataError(f"{name!r} must hold finite numbers of type {dtypes[0]}, got {values.dtype}.")
    if shape is not None and tuple(values.shape) != shape:
        raise DataError(f"{name!r} must have shape {shape}, got {tuple(values.shape)}.")
    return values


def _check_seen(name: str, starts: Tensor, items: Tensor, shape: tuple[int, int]) -> Seen:
    """Compressed rows of item codes, one for each user."""
    if (starts.dtype, items.dtype) != (torch.int64, torch.int64) or (starts.ndim, items.ndim) != (1, 1):
        raise DataError(f"{name!r} must be two columns of integers.")
    ends = len(starts) == shape[0] + 1 and int(starts[0]) == 0 and int(starts[-1]) == len(items)
    if not ends or bool((starts[1:] < starts[:-1]).any()):
        raise DataError(f"{name!r} must have a row for each of {shape[0]} users.")
    if len(items) and not 0 <= int(items.min()) <= int(items.max()) < shape[1]:
        raise DataError(f"{name!r} must name items by codes below {shape[1]}.")
    return Seen(starts, items)


def _side_encoders(facts: Mapping[str, Any], n_columns: tuple[int, int]) -> dict[str, TableEncoder | None]:
    """The encoders of the tables of users and items; None where there was no table."""
    found = {side: facts[side] and TableEncoder.from_dict(facts[side]) for side in ("user", "item")}
    for encoder, columns in zip(found.values(), n_columns, strict=True):
        if encoder is not None and len(encoder.feature_names_) != columns:
            raise DataError(f"'side_encoders' must have {columns} features, got {len(encoder.feature_names_)}.")
    return found


def _check_history(facts: Mapping[str, Any]) -> History:
    """One number an epoch."""
    history = History(**facts)
    numbers = [*history.loss, *history.held_out_risk, history.seconds, history.best_epoch]
    if not all(isinstance(number, float | int) for number in numbers):
        raise DataError("'history' must hold numbers.")
    return history


def _log_facts(log: FeedbackLog) -> dict[str, Any]:
    """JSON-able: what a run keeps of the log that it was fitted on."""
    return {
        "rows": len(log),
        "users": log.shape[0],
        "items": log.shape[1],
        "threshold": log.threshold,
        "mean_label": float(log.labels.mean()),
        "feedback": log.feedback,
        "feature_columns": log.feature_columns,
        "columns": dict(log.column_names or {}),
    }


def _check_log_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of the log that later steps need, checked: its threshold, its rows, the columns of its features."""
    threshold, rows, columns = facts["threshold"], facts["rows"], facts["feature_columns"]
    if not isinstance(threshold, float | int | None) or not isinstance(rows, int):
        raise DataError("'log' must hold the threshold and the rows as numbers.")
    if len(columns) != 2 or not all(isinstance(count, int) and 0 <= count < 2**31 for count in columns):
        raise DataError("'log' must hold how many features users and items have.")
    names = facts.setdefault("columns", {})
    if not isinstance(names, dict) or not set(names) <= set(DEFAULT_NAMES):
        raise DataError("'log' must hold the names of its columns.")
    return dict(facts)


def _check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of weights and imputation."""
    tables, numbers = (facts["weights"], facts["imputation"]), (facts["risk"], facts["error_on_log"])
    if not all(isinstance(table, dict) for table in tables):
        raise DataError("'parts' must have tables of weights and imputation.")
    if not all(isinstance(number, float | int) for number in numbers):
        raise DataError("'parts' must hold the risk as a number.")
    return dict(facts)


def name_items(given: Any, log: FeedbackLog) -> ItemNames | None:
    """The names of items in a frame whose ids are called as in the log, or `item_id`."""
    if given is None:
        return None
    columns = as_frame(given, "item_names").columns
    item_col = names_in(columns, log.column_names or {}, ("item",))["item"]
    try:
        names = ItemNames.from_frame(given, item_col)
        names.count(log.item_ids)
    except DataError as error:
        raise DataError(f"`item_names`: {error}") from None
    return names


def _check_feedback(learns_from: Feedback, log: FeedbackLog) -> None:
    """Raise `DataError` for clicks given to a method of ratings, or ratings to a method of clicks."""
    if (learns_from == "clicks") == (log.feedback == "clicks"):
        return
    kind: Feedback = "clicks" if log.feedback == "clicks" else "ratings"
    named = ", ".join(name for name, method in counterpoise.METHODS.items() if kind in method.feedback)
    if kind == "clicks":
        raise DataError(
            "every label of the log is 1, and this method learns from labels of both kinds. Choose a method for "
            f'clicks: make(name, feedback="clicks") with one of {named}.'
        )
    raise DataError(
        f"this method learns from clicks, and the log has {log.feedback}, with a mean label of "
        f'{float(log.labels.mean()):.2g}. To learn from its positive rows alone read it with feedback="clicks" and a '
        f"`threshold`; or choose a method for ratings, such as {', '.join(named.split(', ')[:4])}."
    )


GIVE_THRESHOLD = "Give the log a `threshold` (--threshold): ratings at or above it become 1, others 0."


def check_labels(what: str, log: FeedbackLog, advice: str = GIVE_THRESHOLD) -> None:
    """Raise `DataError` unless they are probabilities."""
    values = log.ratings if log.threshold is None and log.feedback != "clicks" else log.labels
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise DataError(f"{what} must lie in [0, 1], got values from {low:g} to {high:g}. {advice}")
