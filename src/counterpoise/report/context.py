"""What a report is made from: a fitted model, and as much of its data as is still there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoise.config import EmptyUsers, Unknown
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.errors import ConfigError, CounterpoiseError, DataError, short_repr
from counterpoise.imputation.base import NoImputation
from counterpoise.methods import configure, make, short_names
from counterpoise.models.exposure import ExposureCovariate
from counterpoise.models.matrix_factorization import as_backbone
from counterpoise.out_of_core.engines import ThreadEngine
from counterpoise.out_of_core.fitting import fit_streamed
from counterpoise.out_of_core.log import StreamedLog
from counterpoise.ranking import Seen
from counterpoise.recommender import DebiasedRecommender, load_model
from counterpoise.runs import FitConfig, load_data, read_test
from counterpoise.storage import read_manifest
from counterpoise.weights.base import Uniform

# Of plain MF on a large log: of a million simulated pairs they did as well as 150 epochs (AUC 0.659 against 0.658).
PLAIN_STEPS = 300
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ReportContext:
    """A fitted model with what is known around it; None for what is not there, and `notes` say why."""

    model: DebiasedRecommender
    name: str = "this model"
    manifest: Mapping[str, Any] = field(default_factory=dict)  # what the run keeps beside the model
    dataset: Dataset | None = None
    test: FeedbackLog | None = None
    test_name: str | None = None
    unknown: Unknown = "error"  # what becomes of users of the test whom the model does not know
    plain: DebiasedRecommender | None = None  # plain matrix factorisation of the same log
    notes: tuple[str, ...] = ()

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Of the fit, where `counterpoise fit` made it."""
        return self.manifest.get("fit") or {}

    @property
    def stopped(self) -> dict[str, int] | None:
        """The epoch that a fit which came to no end has reached, and how many it was asked for."""
        found = self.manifest.get("stopped")
        return None if found is None else {name: int(found[name]) for name in ("epoch", "epochs")}

    @property
    def k(self) -> int:
        """The length of the lists that are evaluated."""
        return int(self.configuration.get("k", 5))

    @property
    def empty_users(self) -> EmptyUsers:
        """What becomes of users without a positive label."""
        rule: EmptyUsers = self.configuration.get("empty_users", "skip")
        return rule

    @property
    def train(self) -> FeedbackLog | None:
        """The log that the model was fitted on."""
        return None if self.dataset is None else self.dataset.train

    @property
    def shape(self) -> tuple[int, int]:
        """(|U|, |I|)."""
        return len(self.model.user_ids_), len(self.model.item_ids_)

    def weighted_rows(self) -> WeightedRows:
        """The pairs of the log that have a weight; without the log only equal weights can be told to their rows."""
        ratio = self.model.ratio_.astype(np.float64)
        if self.train is not None:
            log = self.train.take(~self.model.held_out_rows(len(self.train)))
            return WeightedRows(log.users, log.items, ratio, log.labels)
        users, items = seen_pairs(self.model.seen_)
        same = np.ptp(ratio) <= 1e-9 * ratio.max()
        return WeightedRows(users, items, np.full(len(users), ratio.mean()) if same else None, None)


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of the log by their codes, with their ratios and labels where these are known."""

    users: NDArray[Any]
    items: NDArray[Any]
    ratio: Floats | None
    labels: NDArray[np.float32] | None


def seen_pairs(seen: Seen) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(users, items) of the pairs that a model has seen, user by user."""
    counts = np.diff(seen.starts.numpy())
    return np.repeat(np.arange(len(counts)), counts), seen.items.numpy()


def material_of_run(run: str | Path, test: str | None = None, unknown: Unknown = "error") -> ReportContext:
    """A saved run with its data read again, where they are still there and still the same."""
    model, manifest = load_model(run), read_manifest(run)
    fitted = manifest.get("fit") or {}
    dataset, notes = _read_again(model, fitted)
    found = ReportContext(model, Path(run).name, manifest, dataset, unknown=unknown, notes=notes)
    if test is None:
        return found if dataset is None else replace(found, test=dataset.test, test_name=name_of_test(dataset))
    log, seen, protocol = read_test(model, fitted, test)
    note = f"{seen:,} pairs of {test} were seen in training and are {'left out' if protocol == 'honest' else 'kept'}."
    said = (*((note,) if seen else ()), *words_on_strangers(found, log))  # an error before plain MF is fitted
    return replace(found, test=log, test_name=test, notes=(*notes, *said))


def words_on_strangers(material: ReportContext, log: FeedbackLog) -> list[str]:
    """What to say of users of a test whom a model does not know; an error where they are not allowed."""
    rows = int(material.model.unknown_users(log, material.unknown).sum())
    whose = f"Of {len(log):,} ratings of the test {rows:,} are by users whom the log of {material.name} does not have"
    return [f"{whose}: they are predicted by the items' rates of positive labels."] if rows else []


def name_of_test(dataset: Dataset) -> str | None:
    """What the test of a dataset is called."""
    return None if dataset.test is None else f"the unbiased test of {dataset.name}"


def _read_again(model: DebiasedRecommender, fitted: Mapping[str, Any]) -> tuple[Dataset | None, tuple[str, ...]]:
    """The data that a run's configuration names, or None and why not.

    A log over shards is worked on here, also where Ray did for the fit: its cluster, or Ray itself, may be gone.
    """
    if not fitted:
        return None, ("The run does not say what it was fitted on: what needs the log is left out.",)
    try:
        dataset = load_data(FitConfig(**fitted))
    except (CounterpoiseError, OSError, ValueError):  # no word of a file that is not this log goes into a page
        named = short_repr(fitted.get("data"))
        return None, (f"The log {named} could not be read again, so what needs it is left out. Is it still there?",)
    if not _same_pairs(model, dataset.train):
        return None, (f"{fitted['data']} has changed since the fit, so what needs the log is left out.",)
    log = dataset.train
    if isinstance(log, StreamedLog) and not isinstance(log.engine, ThreadEngine):
        dataset = replace(dataset, train=log.by(ThreadEngine()))
    return dataset, ()


def _same_pairs(model: DebiasedRecommender, log: FeedbackLog) -> bool:
    """Whether a log has the ids and the pairs that a model was fitted on."""
    if (log.user_ids, log.item_ids) != (model.user_ids_, model.item_ids_):
        return False
    seen = Seen.of(log)
    return torch.equal(seen.starts, model.seen_.starts) and torch.equal(seen.items, model.seen_.items)


def is_plain(model: DebiasedRecommender) -> bool:
    """Whether a model is plain: every pair counts the same, nothing is imputed, nothing is told of exposure."""
    told = isinstance(as_backbone(model.backbone), ExposureCovariate)
    return isinstance(model.weights, Uniform) and isinstance(model.imputation, NoImputation) and not told


def with_plain(material: ReportContext, plain: str | Path | DebiasedRecommender | None = None) -> ReportContext:
    """With plain MF beside it: a model, a saved run, or fitted now with the training and the settings of this one.

    On a large log, where an epoch has many steps, a plain model that is fitted now gets `PLAIN_STEPS` of them.
    """
    if is_plain(material.model):
        return material
    if isinstance(plain, str | Path):
        plain = load_model(plain)
    if plain is not None:
        if not is_plain(plain):
            raise ConfigError(
                "`plain` must be a run of plain MF (counterpoise fit --method mf): it is what we compare."
            )
        if (plain.user_ids_, plain.item_ids_) != (material.model.user_ids_, material.model.item_ids_):
            raise DataError(
                "`plain` must be fitted on the same log: its users and items are others. Use the same files."
            )
        return replace(material, plain=plain)
    if material.train is None:
        return material
    model, log = plain_model(material), material.train
    return replace(material, plain=fit_streamed(model, log) if isinstance(log, StreamedLog) else model.fit(log))


def plain_model(material: ReportContext) -> DebiasedRecommender:
    """Plain MF, unfitted, with the training of the model and those settings of its backbone that plain MF has."""
    model, log = make("mf"), material.train
    known = short_names(model)
    settings = material.configuration.get("settings", {})
    configure(model, **{name: value for name, value in settings.items() if known.get(name, "").startswith("backbone")})
    model.training = deepcopy(material.model.training)
    if log is not None:
        steps = math.ceil(len(log) / model.training.rows_a_step(len(log)))
        if steps > 1:
            model.training.epochs = min(model.training.epochs, math.ceil(PLAIN_STEPS / steps))
    return model
