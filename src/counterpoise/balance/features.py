"""Pair features x_ui = [user row; item row] as two standardised tables; a pair's features are gathered when needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.balance.population import ObservedPairs, Pairs, as_float64
from counterpoise.data.log import FeedbackLog
from counterpoise.errors import DataError, check_choice

Source = Literal["side", "activity", "popularity", "embeddings", "exposure"]
Table = NDArray[np.float64]


class ConstantFeatures(DataError):
    """The error of a table of features in which none varies, so that there is nothing to balance."""


def standardised(table: Any) -> Table:
    """Every column minus its mean over its standard deviation; constant columns, which balance nothing, are left out.

    Users and items are scaled each by themselves: a scale across both would keep kernels from factorising.
    """
    values = as_float64(table)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise DataError(f"a feature table must be finite and two-dimensional, got shape {values.shape}.")
    mean, deviation = values.mean(0), values.std(0)
    varying = deviation > 1e-12 * (abs(mean) + 1e-300)
    return (values[:, varying] - mean[varying]) / deviation[varying]  # type: ignore[no-any-return]


def activity(log: FeedbackLog) -> tuple[Table, Table]:
    """(log(1 + ratings given) of every user, log(1 + ratings received) of every item), as one column each."""
    counts = [np.bincount(codes, minlength=size) for codes, size in zip((log.users, log.items), log.shape, strict=True)]
    return np.log1p(counts[0])[:, None], np.log1p(counts[1])[:, None]


def popularity(log: FeedbackLog) -> tuple[Table, Table]:
    """As `activity`, for items alone: functions of it are the same for all users."""
    return np.zeros((log.shape[0], 0)), activity(log)[1]


def side_features(log: FeedbackLog) -> tuple[Table, Table]:
    """The side features that came with the log; (rows, 0) where there are none."""
    given = (log.user_features, log.item_features)
    users, items = (
        np.zeros((size, 0)) if table is None else table.astype(np.float64)
        for table, size in zip(given, log.shape, strict=True)
    )
    return users, items


def side_names(log: FeedbackLog) -> tuple[list[str], list[str]]:
    """What the side features of users and of items are called, such as "item genre=Comedy"."""
    users, items = log.user_feature_names, log.item_feature_names
    return [f"user {name}" for name in users], [f"item {name}" for name in items]


OF_LOG = {"side": side_features, "activity": activity, "popularity": popularity}


def pair_features(
    log: FeedbackLog,
    sources: Sequence[Source] = ("side", "activity"),
    embeddings: tuple[Any, Any] | None = None,
    exposure: tuple[Any, Any] | None = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Pairs:
    """All pairs of the log's users and items, with features from `sources` side by side.

    "side": side features of the log; "activity": how often users rate and items are rated; "popularity": the latter
    alone; "embeddings" and "exposure": the two tables passed under that name, of a model of the labels and of a model
    of what was observed.
    """
    learned = {"embeddings": embeddings, "exposure": exposure}
    tables: list[tuple[Any, Any]] = []
    for source in sources:
        check_choice("sources", source, get_args(Source))
        if source not in learned:
            tables.append(OF_LOG[source](log))
            continue
        pair = learned[source]
        if pair is None:
            raise DataError(f'`{source}` must be given for the source "{source}": (users, items) tables.')
        if (len(pair[0]), len(pair[1])) != log.shape:
            got = len(pair[0]), len(pair[1])
            raise DataError(f"`{source}` must have {log.shape[0]} user and {log.shape[1]} item rows, got {got}.")
        tables.append(pair)
    users, items = (
        np.hstack([standardised(pair[side]) for pair in tables]) if tables else np.zeros((0, 0)) for side in (0, 1)
    )
    if users.shape[1] + items.shape[1] == 0:
        raise ConstantFeatures(
            f"no feature varies in {', '.join(sources) or 'no source'}. Add a source, such as embeddings."
        )
    return Pairs(torch.from_numpy(users).to(device, dtype), torch.from_numpy(items).to(device, dtype))


def observed_pairs(log: FeedbackLog, pairs: Pairs) -> ObservedPairs:
    """The log's pairs, on the device of the features."""
    codes: list[Tensor] = [torch.from_numpy(np.array(code, dtype=np.int64)) for code in (log.users, log.items)]
    return pairs.at(codes[0].to(pairs.users.device), codes[1].to(pairs.users.device))
