"""The estimator: weights x risk x imputation on a backbone, trained by one loop; predictions in your ids."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import counterpoise
from counterpoise import __version__
from counterpoise.config import Configurable, Unknown, from_config
from counterpoise.data.ids import Codes, Vocabulary, as_column, gather
from counterpoise.data.log import Dataset, FeedbackLog, check_log, table
from counterpoise.data.splits import ColdRows
from counterpoise.errors import ConfigError, DataError, NotFittedError, check_choice, check_number
from counterpoise.imputation.base import NoImputation
from counterpoise.models.base import Backbone, as_backbone, factor_facts
from counterpoise.models.matrix_factorization import MatrixFactorization
from counterpoise.ranking import Seen, nearest, shrunken_label_rates, top_items
from counterpoise.risks import NEED_IMPUTATION, RISKS
from counterpoise.storage import read_folder, write_folder
from counterpoise.threads import one_blas_thread, one_thread
from counterpoise.training.contracts import FitContext, Imputation, Weights
from counterpoise.training.learner import Learner
from counterpoise.training.loop import (
    MIN_ROWS_FOR_THREADS,
    DivergenceError,
    History,
    Interrupted,
    Progress,
    Training,
    train,
)
from counterpoise.training.summary import correction_sentences, is_corrected
from counterpoise.weights.base import Uniform

if TYPE_CHECKING:
    from counterpoise.training.checkpoint import Checkpoint
    from counterpoise.training.ensemble import Ensemble, EnsembleLearner
    from counterpoise.training.ordinal import OrdinalLoss
    from counterpoise.training.probe import ProbeLabels

OPTIONAL_PARTS = {"ensemble": "Ensemble", "ordinal": "OrdinalLoss", "probe_labels": "ProbeLabels"}
BLOCK_SCORES = 1 << 22  # scores held in memory at a time
UNKNOWN_ADVICE = {
    "user": 'Use unknown_users="popular" to score new users by the items alone.',
    "item": 'Use unknown_items="popular" to score new items by the user alone.',
}


@dataclass
class DebiasedRecommender(Configurable):
    """A recommender trained on an estimate of its ideal loss.

    `weights`: how much each observed pair counts. `imputation`: the error of unobserved pairs. `risk`: how the ideal
    loss is estimated from both. `backbone`: what predicts. `training`: how it learns. `ensemble`: average with a second
    predictor that learns without the imputation. `ordinal`: also learn from how far ratings are from the threshold.
    `probe_labels`: also learn from the labels of the probe.
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

    def fit(
        self,
        log: FeedbackLog,
        probe: FeedbackLog | None = None,
        *,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Self:
        """Learn from a log; `probe` is a small unbiased sample for methods that use one.

        `progress` is called after each epoch with (epochs done, epochs planned, loss). `checkpoint`: where to save
        what was learned on the way, and maybe to resume from. Ctrl-C and a divergence are raised, and leave the last
        good epoch in the model.
        """
        self.check(log, probe)
        fitted_log, held_out = log, log.take([])
        if self.training.patience is not None:
            rows = self.held_out_rows(len(log))
            fitted_log, held_out = log.take(~rows), log.take(rows)
        context = self._context(fitted_log, probe)
        with one_thread(self.training.rows_per_step(len(fitted_log)) < MIN_ROWS_FOR_THREADS), one_blas_thread():
            learner = self._learner(context)
            validation = context.on(held_out).batches(learner.uses_pairs).whole() if len(held_out) else None
            batches = context.batches(learner.uses_pairs)
            wrapped = context.wrap(learner, self.training)
            wrapped = wrapped if checkpoint is None else checkpoint.of(wrapped)
            try:
                history = train(wrapped, batches, validation, self.training, progress)
            except (DivergenceError, Interrupted) as stop:
                if stop.history is not None:
                    self._keep(learner, stop.history, learner.facts(batches.final()), log, probe)
                raise
            facts = learner.facts(batches.final())
            self._keep(learner, history, facts, log, probe)  # a whole model, should the last step be stopped
            found = learner.finish()
            if "probe" in found:  # whose labels were learned at last
                facts = learner.facts(batches.final())
            return self._keep(learner, history, facts | found, log, probe)

    def _context(self, log: FeedbackLog, probe: FeedbackLog | None) -> FitContext:
        """The fit of this model to a log, with fresh random numbers."""
        backbone = deepcopy(as_backbone(self.backbone))  # a later change of the settings must not change this model
        generator = torch.Generator().manual_seed(int(self.training.seed))
        context = FitContext(log, probe, backbone, self.training, self.training.resolve_device(), generator)
        if context.device.type != "cuda":
            return context
        from counterpoise.accelerate import with_cuda_graphs

        return replace(context, wrap=with_cuda_graphs)

    def _learner(self, context: FitContext, weights: Weights | None = None) -> Learner | EnsembleLearner:
        """What the loop trains; `weights` take the place of the model's."""
        parts = (weights or self.weights, self.risk, self.imputation, self.ordinal, self.probe_labels)
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
        }
        if probe is not None and len(probe):
            rows = learner.imputation.learns_from_probe or learner.weights.learns_from_probe
            more["probe"] = {"rows": len(probe), "learned": "probe" in facts or rows} | facts.get("probe", {})
        self.history_, self.facts_ = history, facts | {name: found for name, found in more.items() if found}
        self.scorer_, self.ratio_ = learner.scorer.requires_grad_(False), learner.weights.ratio.cpu().numpy()
        self.scorer_.clear_caches()
        self.user_ids_, self.item_ids_ = log.user_ids, log.item_ids
        self.seen_ = Seen.of(log)
        self.item_rates_ = shrunken_label_rates(log).to(self.training.resolve_device())
        self.probed_ = Seen.of(log.take([]) if probe is None else probe)
        self.log_facts_, self.configuration_ = _log_facts(log), self.to_config()
        return self

    def summary(self) -> str:
        """What the fit corrected and what it did not, in a plain paragraph."""
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
        check_log("log", log)
        _check_labels("labels", log)
        if probe is not None:
            check_log("probe", probe)
            _check_labels("the probe's labels", probe)
            if probe.sample == "biased":
                raise DataError(
                    '`probe` must be a uniform sample of all pairs, got a log with sample="biased", which would teach '
                    'its bias. Leave the probe out, or say so if its pairs were drawn at random: sample="uniform".'
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
        self, users: Any, items: Any, *, unknown_users: Unknown = "error", unknown_items: Unknown = "error"
    ) -> NDArray[np.float32]:
        """The probability of a positive label for each (user, item), in original ids.

        `unknown_users`: a user the log does not have is an "error", or gets the item's rate of positive labels
        ("popular"). `unknown_items`: an item the log does not have is an "error", or gets the user's mean probability
        over all items of the log ("popular"): as good as an item that nothing is known of.
        """
        user_codes, item_codes = self._user_codes(users, unknown_users), self._item_codes(items, unknown_items)
        if len(user_codes) != len(item_codes):
            raise DataError(
                f"`users` and `items` must have equal lengths, got {len(user_codes)} and {len(item_codes)}."
            )
        return self._probabilities(user_codes, item_codes)

    def predict_log(
        self, log: FeedbackLog, *, unknown_users: Unknown = "error", unknown_items: Unknown = "error"
    ) -> NDArray[np.float32]:
        """The probability of a positive label for each row of a log; unknown users and items as in `predict`."""
        self._check_fitted()
        if (log.user_ids, log.item_ids) == (self.user_ids_, self.item_ids_):
            return self._probabilities(log.users, log.items)
        users, items = log.user_ids.decode(log.users), log.item_ids.decode(log.items)
        return self.predict(users, items, unknown_users=unknown_users, unknown_items=unknown_items)

    def cold_rows(self, log: FeedbackLog) -> ColdRows:
        """For each row of a log: whether its user, and its item, is unknown or has no row in the training log."""
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
        """For each row of a log: whether its pair stood in the training log or in the probe."""
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
        unknown_users: Unknown = "error",
    ) -> Any:
        """The k best items of each user as a frame `user_id, item_id, score, rank`, best first.

        `users`: ids, None for all. `filter_seen` leaves out what the user rated in the log. `candidates`: item ids to
        choose from, None for all. A user with fewer than k items left gets fewer rows. Equal scores are ranked in the
        order of the vocabulary. `unknown_users` as in `predict`.
        """
        check_number("k", k, at_least=1, integer=True)
        codes = torch.from_numpy(self._user_codes(users, unknown_users)).long()
        ids = self.user_ids_.column if users is None or len(codes) == 0 else as_column(users)
        columns = self._candidate_columns(candidates)
        size = max(1, BLOCK_SCORES // len(self.item_ids_))
        with one_thread():
            blocks = [self._top(block, k, filter_seen, columns) for block in torch.split(codes, size)]
        rows = torch.cat([number * size + block[0] for number, block in enumerate(blocks)])
        items, scores, ranks = (torch.cat(parts).numpy() for parts in list(zip(*blocks, strict=True))[1:])
        return table(
            user_id=gather(ids, rows.numpy()),
            item_id=self.item_ids_.decode(items),
            score=scores,
            rank=ranks.astype(np.int32),
        )

    def similar_items(self, items: Any = None, k: int = 10) -> Any:
        """The k items whose vectors are nearest by cosine, as a frame `item_id, similar_id, score, rank`."""
        check_number("k", k, at_least=1, integer=True)
        self._check_fitted()
        codes = np.arange(len(self.item_ids_)) if items is None else self.item_ids_.require(items, "item")
        own, vectors = torch.from_numpy(codes).long(), self.scorer_.embeddings()[1].cpu()
        if not vectors.shape[1]:
            raise ConfigError("`dim` must be at least 1 for similar items, got 0: a model of biases has no vectors.")
        scores, similar = nearest(vectors, own, k, BLOCK_SCORES)
        width = scores.shape[1]
        return table(
            item_id=self.item_ids_.decode(own.repeat_interleave(width).numpy()),
            similar_id=self.item_ids_.decode(similar.flatten().numpy()),
            score=scores.flatten().numpy(),
            rank=torch.arange(1, width + 1).repeat(len(own)).int().numpy(),
        )

    def embeddings(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What was learned of each user and each item, in the order of their codes: features for balancing."""
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
        tensors |= {"item_rates": self.item_rates_.cpu(), "ratio": torch.from_numpy(self.ratio_)}
        own_facts = {
            "version": __version__,
            "configuration": self.configuration_,
            "log": self.log_facts_,
            "history": self.history_.to_dict(),
            "parts": self.facts_,
        }
        files = {
            "tensors.safetensors": save(tensors),
            "users.parquet": self.user_ids_.to_parquet(),
            "items.parquet": self.item_ids_.to_parquet(),
        }
        write_folder(folder, own_facts, files, facts)

    def _check_fitted(self) -> None:
        if not hasattr(self, "scorer_"):
            raise NotFittedError("this recommender is not fitted. Call fit(log) first.")

    def _user_codes(self, users: Any, unknown: Unknown) -> Codes:
        """Codes of user ids, None for all users; -1 for an unknown user where that is allowed."""
        self._check_fitted()
        check_choice("unknown_users", unknown, get_args(Unknown))
        if users is None:
            return np.arange(len(self.user_ids_), dtype=np.int32)
        if unknown != "error":
            return self.user_ids_.encode(users)
        return self.user_ids_.require(users, "user", UNKNOWN_ADVICE["user"])

    def _item_codes(self, items: Any, unknown: Unknown) -> Codes:
        """Codes of item ids; -1 for an unknown item where that is allowed."""
        check_choice("unknown_items", unknown, get_args(Unknown))
        if unknown != "error":
            return self.item_ids_.encode(items)
        return self.item_ids_.require(items, "item", UNKNOWN_ADVICE["item"])

    def _candidate_columns(self, candidates: Any) -> Tensor | None:
        if candidates is None:
            return None
        codes = np.unique(self.item_ids_.require(candidates, "item"))
        if codes.size == 0:
            raise ConfigError("`candidates` must name at least one item, got none. Use None for all items.")
        return torch.from_numpy(codes).long()

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

    def _top(self, users: Tensor, k: int, filter_seen: bool, columns: Tensor | None) -> tuple[Tensor, ...]:
        """(row, item, score, rank) of each recommendation for a block of users (-1: unknown)."""
        scores = self.scorer_.grid(users.clamp(min=0).to(self.item_rates_.device)).cpu()
        scores[users < 0] = torch.logit(self.item_rates_.cpu(), eps=1e-6)
        if filter_seen:
            self.seen_.hide(scores, users)
        values, items = top_items(scores if columns is None else scores[:, columns], k)
        items = items if columns is None else columns[items]
        row, place = torch.nonzero(values > -torch.inf, as_tuple=True)
        return row, items[row, place], torch.sigmoid(values[row, place]), place + 1


def load_model(folder: str | Path, device: str = "cpu") -> DebiasedRecommender:
    """The recommender that `save` wrote. Nothing in the folder is executed."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    place = Training(device=device).resolve_device()
    manifest, files = read_folder(folder)
    try:
        model = from_config(manifest["configuration"])
        if not isinstance(model, DebiasedRecommender):
            raise DataError(f"{folder} holds a {type(model).__name__}, not a recommender.")
        tensors = load(files["tensors.safetensors"])
        model.user_ids_ = Vocabulary.from_parquet(files["users.parquet"])
        model.item_ids_ = Vocabulary.from_parquet(files["items.parquet"])
        model.check_settings()
        model.log_facts_, model.history_ = _check_log_facts(manifest["log"]), _check_history(manifest["history"])
        shape, n_columns = (len(model.user_ids_), len(model.item_ids_)), tuple(model.log_facts_["feature_columns"])
        with torch.device("meta"):  # no memory until the saved tensors are seen to have the right shapes
            scorer = as_backbone(model.backbone).empty(*shape, n_columns=n_columns)
            members = {name.split(".")[2] for name in tensors if name.startswith("scorer.members.")}
            if members:
                if model.ensemble is None or len(members) > 2:
                    raise DataError(f"{folder} holds {len(members)} predictors, and its configuration has one.")
                scorer = model.ensemble.empty_scorer(scorer, len(members))
        state = {name.removeprefix("scorer."): t for name, t in tensors.items() if name.startswith("scorer.")}
        scorer.load_state_dict(state, assign=True)
        model.scorer_ = scorer.requires_grad_(False).to(place)
        for name, values in state.items():
            _check_numbers(name, values)
        model.item_rates_ = _check_numbers("item_rates", tensors["item_rates"], shape[1:]).to(place)
        model.ratio_ = _check_numbers("ratio", tensors["ratio"], (len(tensors["ratio"]),)).numpy()
        model.facts_ = _check_facts(manifest["parts"])
        model.seen_ = _check_seen("seen", tensors["seen.starts"], tensors["seen.items"], shape)
        model.probed_ = _check_seen("probed", tensors["probed.starts"], tensors["probed.items"], shape)
        model.configuration_ = manifest["configuration"]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder} cannot be loaded, its parts do not fit together: {reason}") from error
    return model


def _check_numbers(name: str, values: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Finite floats, of this shape where it is known."""
    if not values.is_floating_point() or not bool(values.isfinite().all()):
        raise DataError(f"{name!r} must hold finite numbers.")
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
        "feature_columns": log.feature_columns,
    }


def _check_log_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What later steps ask of the log: its threshold, its rows, the columns of its features."""
    threshold, rows, columns = facts["threshold"], facts["rows"], facts["feature_columns"]
    if not isinstance(threshold, float | int | None) or not isinstance(rows, int):
        raise DataError("'log' must hold the threshold and the rows as numbers.")
    if len(columns) != 2 or not all(isinstance(count, int) and 0 <= count < 2**31 for count in columns):
        raise DataError("'log' must hold how many features users and items have.")
    return dict(facts)


def _check_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of weights and imputation."""
    tables, numbers = (facts["weights"], facts["imputation"]), (facts["risk"], facts["error_on_log"])
    if not all(isinstance(table, dict) for table in tables):
        raise DataError("'parts' must have tables of weights and imputation.")
    if not all(isinstance(number, float | int) for number in numbers):
        raise DataError("'parts' must hold the risk as a number.")
    return dict(facts)


def _check_labels(what: str, log: FeedbackLog) -> None:
    """Raise `DataError` unless they are probabilities."""
    values = log.ratings if log.threshold is None else log.labels
    low, high = float(values.min()), float(values.max())
    if low < 0 or high > 1:
        raise DataError(
            f"{what} must lie in [0, 1], got values from {low:g} to {high:g}. "
            "Give the log a `threshold` (--threshold): ratings at or above it become 1, others 0."
        )
