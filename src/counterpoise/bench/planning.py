"""From the words of a command to its fits: which there are, and who makes those that the folder does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterpoise.console import counting_bar
from counterpoise.errors import GO_ON, ConfigError, check_number, stoppable
from counterpoise.options import given, words
from counterpoise.words import BenchBackbone, EngineName, Protocol

if TYPE_CHECKING:
    from counterpoise.bench.jobs import Job
    from counterpoise.bench.store import Store

READING = ("user_col", "item_col", "rating_col", "timestamp_col", "propensity_col", "duplicates", "separator")


def reading_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How files of one's own are read, as far as it was given."""
    return given(**{name: arguments[name] for name in READING})


def plan(
    datasets: str,
    methods: str,
    seeds: int,
    backbones: Sequence[BenchBackbone],
    protocols: Sequence[Protocol],
    threshold: float | None,
    settings: list[str] | None,
    reading: Mapping[str, Any],
) -> tuple[list[Job], list[dict[str, str]]]:
    """(the fits, seed by seed, so that what is there after an interruption is a table of fewer seeds; what is missing).

    Every method and dataset is tried before the first fit: a mistake costs no time.
    """
    from counterpoise.bench.entries import entries
    from counterpoise.bench.grounds import GROUNDS, ground
    from counterpoise.bench.jobs import Job
    from counterpoise.config import parse_settings

    check_number("seeds", seeds, at_least=1, integer=True)
    grounds = [ground(name) for name in dict.fromkeys(words(datasets) or [])]
    absent = {where.name: text for where in grounds if (text := where.missing())}
    rows, own = entries(words(methods) or []), parse_settings(settings or [])
    if not grounds or not rows:
        raise ConfigError("`datasets` and `methods` must name at least one each.")
    if reading and all(where.name in GROUNDS for where in grounds):
        named = ", ".join(f"`{name}`" for name in reading)
        raise ConfigError(f"{named}: columns are of files of your own, and `datasets` names none.")
    jobs = [
        Job(where.name, row.name, seed, column, protocol, threshold, own, reading)
        for seed in range(seeds)
        for where in grounds
        if where.name not in absent
        for protocol in protocols
        for column in backbones
        for row in rows
    ]
    for job in jobs[: len(jobs) // seeds]:
        job.config_hash  # noqa: B018  builds the model: an unknown setting is an error now
    for where in grounds:
        for protocol in protocols:
            if where.name not in absent and (protocol == "paper" or not where.shape):
                where.load(protocol, 0, threshold, reading)
    return jobs, [{"dataset": name, "missing": text} for name, text in absent.items()]


def finish(
    jobs: list[Job],
    out: Path,
    processes: int,
    retry: bool,
    stack: bool,
    engine: EngineName | None,
    address: str | None,
    visible: bool,
) -> Store:
    """Fit what the folder does not have, with a bar that counts."""
    from counterpoise.bench.runner import run
    from counterpoise.bench.store import Store

    store = Store(out)
    if retry:
        store.forget_failures(jobs)
    with counting_bar("fitting", visible) as watch, stoppable(f"Fits that are done are in {out}: {GO_ON}"):
        run(jobs, store, processes, watch, stack, engine or "local", address)
    return store
