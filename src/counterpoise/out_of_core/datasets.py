"""`load_dataset` for logs that may be larger than memory: they are streamed from shards instead of read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.data.columns import DEFAULT_NAMES
from counterpoise.data.datasets import SOURCES, load_dataset
from counterpoise.data.files import count_rows, files_of, is_many
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.reading import AnyPath, read_logs, read_logs_with_features
from counterpoise.errors import ConfigError
from counterpoise.out_of_core.encoding import shard_log
from counterpoise.out_of_core.engines import Engine, RayEngine
from counterpoise.out_of_core.log import StreamedLog, way_out
from counterpoise.out_of_core.shards import as_bytes

IN_MEMORY_ROW = 160  # bytes of a row while files become a log in memory
STREAMED_ROW = 40  # bytes of a row that a fit needs at most at a time: its weight, and that its pair was seen


def load_dataset_out_of_core(
    name: AnyPath,
    *,
    memory: str | float,
    engine: Engine | None = None,
    cache: AnyPath | None = None,
    reader: Engine | None = None,
    **options: Any,
) -> Dataset:
    """As `load_dataset`, whose options these are, with a `StreamedLog` where the log would take more than `memory`.

    Only a log in a folder or a glob can be that large. With a `RayEngine` the log is always streamed, also a single
    file. `cache`: where the shards are kept. `reader`: where files become shards, by default the engine.
    """
    over_ray = isinstance(engine, RayEngine)
    if over_ray and str(name) in SOURCES:
        raise ConfigError(f"`engine` 'ray' works on files of your own; {str(name)!r} fits into memory: leave it out.")

    def read(
        files: Mapping[str, AnyPath], users: AnyPath | None, items: AnyPath | None, **reading: Any
    ) -> Mapping[str, FeedbackLog]:
        if not (too_long(files["train"], memory) or over_ray):
            return read_logs_with_features(files, users, items, **reading)
        if users is not None or items is not None:
            raise ConfigError(
                "`users` and `items` do not go with a log that is streamed. Raise `memory`, or leave Ray out."
            )
        return _read_streamed(files, memory, cache, engine, reader or engine, **reading)

    return load_dataset(name, read=read, **options)


def too_long(path: AnyPath, memory: str | float) -> bool:
    """Whether the log in a folder or a glob would take more than `memory` as a log in memory."""
    budget = as_bytes(memory)  # also where one file is read whole: a mistyped size is an error
    return is_many(path) and count_rows(files_of(path)) * IN_MEMORY_ROW > budget


def _read_streamed(
    paths: Mapping[str, AnyPath],
    memory: str | float,
    cache: Any,
    engine: Any,
    reader: Any,
    threshold: Any = None,
    **options: Any,
) -> dict[str, FeedbackLog]:
    """As `read_logs`, with the first log streamed and the others in memory."""
    read = ("user_col", "item_col", "rating_col", "separator", "header")
    columns: dict[str, Any] = {name: options.pop(name) for name in read if name in options}
    if options:
        raise ConfigError(
            f"a log that is streamed does not take {', '.join(map(repr, options))}: it has users, items and ratings, "
            f"and every row counts. To read it into memory, {way_out(engine)}."
        )
    (name, first), *others = paths.items()
    beside = [path for _, path in others]
    sharded = shard_log(first, **columns, beside=beside, memory=memory, cache=cache, engine=reader)
    names = {role: columns.get(f"{role}_col", DEFAULT_NAMES[role]) for role in ("user", "item", "rating")}
    log = StreamedLog(sharded, threshold, engine, as_bytes(memory), names)
    if len(log) * STREAMED_ROW > log.memory:
        raise ConfigError(
            f"`memory` must be at least {len(log) * STREAMED_ROW / 1e9:.1f}GB to fit {len(log):,} rows, as a run "
            f"remembers every pair that it has seen, got {memory!r}."
        )
    ids: dict[str, Any] = {"user_ids": log.user_ids, "item_ids": log.item_ids}
    more = read_logs(dict(others), **columns, **ids, threshold=threshold) if others else {}
    return {name: log, **more}
