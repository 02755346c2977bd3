"""`load_dataset` for logs that may be larger than memory: they are streamed from shards instead of read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.data.datasets import SOURCES, load_dataset
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.data.reading import AnyPath, read_logs_with_features
from counterpoise.errors import ConfigError
from counterpoise.out_of_core.engines import Engine, RayEngine
from counterpoise.out_of_core.log import read_streamed, too_long


def load_dataset_out_of_core(
    name: AnyPath, *, memory: str | float, engine: Engine | None = None, cache: AnyPath | None = None, **options: Any
) -> Dataset:
    """As `load_dataset`, whose options these are, with a `StreamedLog` where the log would take more than `memory`.

    Only a log in a folder or a glob can be that large. With a `RayEngine` the log is always streamed, also a single
    file. `cache`: where the shards are kept.
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
        return read_streamed(files, memory=memory, cache=cache, engine=engine, **reading)

    return load_dataset(name, read=read, **options)
