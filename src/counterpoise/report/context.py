"""The context of a report: a fitted model, its data where they can still be read, and a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.config import Feedback, UnknownInTest
from counterpoise.data.datasets import PARTS, SOURCES
from counterpoise.data.files import is_many
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.protocols import find_protocol
from counterpoise.errors import ConfigError, CounterpoiseError, DataError, short_repr
from counterpoise.evaluation.baselines import baseline_of, baselines_for
from counterpoise.imputation.base import NoImputation
from counterpoise.models.base import as_backbone
from counterpoise.models.exposure import ExposureCovariate
from counterpoise.out_of_core.engines import ThreadEngine
from counterpoise.out_of_core.fitting import fit_streamed
from counterpoise.out_of_core.log import StreamedLog
from counterpoise.ranking import Seen
from counterpoise.recommender import DebiasedRecommender, load_model
from counterpoise.runs import EvaluationData, FitConfig, cold_sentences, load_data, read_test
from counterpoise.storage import expanded, read_manifest
from counterpoise.weights.base import Uniform

Floats = NDArray[np.float64]
MAX_NAMED_FILE = 1 << 30  # bytes of a file that is read because a run names it


@dataclass(frozen=True, eq=False)
class ReportContext:
    """A fitted model and what is known about its fit; None for what is missing, and `notes` give the reasons."""

    model: DebiasedRecommender
    name: str = "this model"
    manifest: Mapping[str, Any] = field(default_factory=dict)  # the facts that a saved run keeps beside the model
    dataset: Dataset | None = None
    test: FeedbackLog | None = None
    test_name: str | None = None
    unknown_users: UnknownInTest = "error"  # what to do with users of the test whom the model does not know
    unknown_items: UnknownInTest = "error"
    baseline: DebiasedRecommender | None = None  # matrix factorisation of the same log without correction
    notes: tuple[str, ...] = ()

    @property
    def configuration(self) -> Mapping[str, Any]:
        """The options of `counterpoise fit`, where it made the run."""
        return self.manifest.get("fit") or {}

    @property
    def stopped(self) -> dict[str, int] | None:
        """The epoch at which an incomplete fit was stopped, and the epochs it was to have."""
        found = self.manifest.get("stopped")
        return None if found is None else {name: int(found[name]) for name in ("epoch", "epochs")}

    @property
    def feedback(self) -> Feedback:
        """The kind of feedback of the log."""
        found: Feedback = self.model.log_facts_.get("feedback", "ratings")
        return found

    @property
    def k(self) -> int:
        """The length of the evaluated lists."""
        return int(self.configuration.get("k", 5))

    @property
    def train(self) -> FeedbackLog | None:
        """The log that the model was fitted to."""
        return None if self.dataset is None else self.dataset.train

    @property
    def shape(self) -> tuple[int, int]:
        """(|U|, |I|)."""
        return len(self.model.user_ids_), len(self.model.item_ids_)

    def weighted_rows(self) -> WeightedRows:
        """The rows of the log that were trained on; without the log only equal weights can be assigned to rows."""
        ratio = self.model.ratio_.astype(np.float64)
        if self.train is not None:
            log = self.train.take(~self.model.held_out_rows(len(self.train)))
            return WeightedRows(log.users, log.items, ratio, log.labels)
        users, items = seen_pairs(self.model.seen_)
        same = np.ptp(ratio) <= 1e-9 * ratio.max()
        return WeightedRows(users, items, np.full(len(users), ratio.mean()) if same else None, None)


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of the log as user and item codes, with ratios (weight x density) and labels where they are known."""

    users: NDArray[Any]
    items: NDArray[Any]
    ratio: Floats | None
    labels: NDArray[np.float32] | None


def seen_pairs(seen: Seen) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(users, items) of the pairs that a model was trained on, user by user."""
    counts = np.diff(seen.starts.numpy())
    return np.repeat(np.arange(len(counts)), counts), seen.items.numpy()


def load_context(
    run: str | Path,
    data: EvaluationData | None = None,
    unknown_users: UnknownInTest = "error",
    unknown_items: UnknownInTest = "error",
    log: str | Path | None = None,
    cache: str | Path | None = None,
) -> ReportContext:
    """A saved run with its data, if they can be read and have not changed since the fit.

    `data`: other ratings to evaluate it on. `unknown_users`, `unknown_items`: for the test of another run.
    `log`: where the log of the fit is. A run may come from others: of what it names itself, datasets and single files
    are read, but no folder of any depth and no glob. `cache`: where a log that is streamed becomes shards; that of the
    run is not used.
    """
    model, manifest = load_model(run), read_manifest(run)
    fitted = manifest.get("fit") or {}
    dataset, notes = _load_dataset(model, fitted, log, cache)
    rules: dict[str, Any] = {"unknown_users": unknown_users, "unknown_items": unknown_items}
    context = ReportContext(model, Path(run).name, manifest, dataset, notes=notes, **rules)
    if data is None:
        if dataset is None:
            return context
        return with_test(context, dataset.test, name_of_test(dataset), dataset.description)
    test = read_test(model, fitted, data)  # raises before a baseline is fitted
    kept = "kept" if find_protocol(test.protocol).keeps_seen else "left out"
    seen_notes = [f"{test.n_seen:,} pairs of {data.test} were seen in training and are {kept}."] if test.n_seen else []
    return with_test(replace(context, notes=(*notes, *seen_notes)), test.log, data.test, test.facts)


def with_test(
    context: ReportContext, log: FeedbackLog | None, name: str | None, facts: Mapping[str, Any]
) -> ReportContext:
    """The context with the ratings to evaluate on; `facts`: counts of cold users and items, for the notes."""
    return replace(context, test=log, test_name=name, notes=(*context.notes, *cold_sentences(facts)))


def name_of_test(dataset: Dataset) -> str | None:
    """The title of a dataset's test."""
    if dataset.test is None:
        return None
    if "by" in dataset.description:
        return f"a hold-out of {dataset.name} ({dataset.description['by']})"
    return f"the {'unbiased' if dataset.test.sample == 'uniform' else 'biased'} test of {dataset.name}"


def _load_dataset(
    model: DebiasedRecommender, fitted: Mapping[str, Any], log_path: str | Path | None, cache: str | Path | None
) -> tuple[Dataset | None, tuple[str, ...]]:
    """The data that a run's configuration names, or None and the reason.

    A log in shards is read by threads of this process even where Ray read it for the fit: Ray may be gone.
    """
    if not fitted:
        return None, ("The run does not name its data: what needs the log is left out.",)
    own: dict[str, Any] = {"engine": "local", "workers": None, "address": None, "cache": cache and str(cache)}
    own |= {} if log_path is None else {"data": str(log_path)}
    try:
        configuration = FitConfig(**{**fitted, **own})
        many = _many(configuration, log_path is None)
        if many is not None:
            reason = f"The run was fitted on many files, {short_repr(many)}, which a report reads where you name them"
            return None, (f"{reason} (`data`): what needs the log is left out.",)
        dataset = load_data(configuration, reader=ThreadEngine())
    except (CounterpoiseError, OSError, ValueError):  # the error's text could quote a file that is not this log
        named = short_repr(fitted.get("data"))
        return None, (f"The log {named} could not be read again, so what needs it is left out. Is it still there?",)
    log, fitted_pairs = dataset.train, model.seen_
    seen = Seen.of(log)
    same_ids = (log.user_ids, log.item_ids) == (model.user_ids_, model.item_ids_)
    if not (same_ids and torch.equal(seen.starts, fitted_pairs.starts) and torch.equal(seen.items, fitted_pairs.items)):
        return None, (f"{fitted['data']} has changed since the fit, so what needs the log is left out.",)
    if isinstance(log, StreamedLog) and not isinstance(log.engine, ThreadEngine):
        dataset = replace(dataset, train=log.by(ThreadEngine()))
    return dataset, ()


def _many(configuration: FitConfig, with_log: bool) -> str | None:
    """The first path of a configuration that names more than a file, or a file far larger than the log of a run."""
    named = [configuration.test, configuration.probe, configuration.users, configuration.items]
    named += [configuration.item_names, *([configuration.data] if with_log else [])]
    for name in filter(None, named):
        place = expanded(name)
        if name in SOURCES:
            continue
        parts = [file for part in PARTS for file in place.glob(f"{part}.*")] if name == configuration.data else []
        files = [place] if not is_many(place) else parts if place.is_dir() else []
        if not files or any(
            file.is_dir() or (file.exists() and file.stat().st_size > MAX_NAMED_FILE) for file in files
        ):
            return name
    return None


def is_uncorrected(model: DebiasedRecommender) -> bool:
    """Whether a model ignores selection: uniform weights, no imputation, no exposure covariate."""
    if model.feedback == "clicks":
        return not model.is_corrected
    exposed = isinstance(as_backbone(model.backbone), ExposureCovariate)
    return isinstance(model.weights, Uniform) and isinstance(model.imputation, NoImputation) and not exposed


def with_baseline(context: ReportContext, baseline: str | Path | DebiasedRecommender | None = None) -> ReportContext:
    """The context with a baseline: a model, a saved run, or MF fitted now; none for a run that is uncorrected itself.

    A baseline that is fitted now takes the training and the backbone settings of the run. On a large log, where an
    epoch has several steps, it gets `BASELINE_STEPS` steps.
    """
    if is_uncorrected(context.model) and context.feedback != "clicks":
        return context
    if baseline is not None:
        return replace(context, baseline=load_baseline(context.model, baseline))
    log = context.train
    if log is None:
        return context
    name = baselines_for(log)[-1]
    if name == context.configuration.get("method"):
        return context
    model = baseline_of(name, context.model, log, context.configuration.get("settings", {}))
    return replace(context, baseline=fit_streamed(model, log) if isinstance(log, StreamedLog) else model.fit(log))


def load_baseline(model: DebiasedRecommender, baseline: str | Path | DebiasedRecommender) -> DebiasedRecommender:
    """A baseline for a model, given itself or as a saved run: without correction, with the same users and items."""
    name = "the given model" if isinstance(baseline, DebiasedRecommender) else str(baseline)
    found = baseline if isinstance(baseline, DebiasedRecommender) else load_model(baseline)
    if not is_uncorrected(found):
        rule = "must be a run without correction (counterpoise fit --method mf; of clicks wmf)"
        raise ConfigError(f"`baseline` {rule}, and {name} is debiased.")
    if (found.user_ids_, found.item_ids_) != (model.user_ids_, model.item_ids_):
        reason = f"users or items of {name} differ. Use the same files"
        raise DataError(f"`baseline` must be fitted on the same log: {reason}.")
    return found
