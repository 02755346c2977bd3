"""Many fits to one log: seeds, or points of a search. A pool of processes on a CPU, one after the other on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Unpack

import torch

from counterpoise.config import takes_options
from counterpoise.data.log import DEFAULTS, FeedbackLog, LogOptions, as_logs
from counterpoise.errors import ConfigError, check_number
from counterpoise.methods import configure, make
from counterpoise.recommender import DebiasedRecommender
from counterpoise.training.events import Progress


@takes_options(LogOptions, DEFAULTS)
def fit_many(
    model: DebiasedRecommender | str,
    log: Any,
    probe: Any = None,
    *,
    seeds: Sequence[int] | None = None,
    configs: Sequence[Mapping[str, Any]] | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    **options: Unpack[LogOptions],
) -> list[DebiasedRecommender]:
    """A fitted model for each of `seeds`, or for each of `configs` (settings as in `make`).

    Each model equals the one that `fit` gives. `probe`: one for all, or a list with one for each fit.
    `log` and the probes may be frames, with `options` as in `FeedbackLog.from_frame`. `jobs`: see `fit_models`.
    """
    if (seeds is None) == (configs is None):
        raise ConfigError("either `seeds` or `configs` must be given to fit_many, and not both.")
    for name, given in (("seeds", seeds), ("configs", configs)):
        if given is not None and (isinstance(given, str | Mapping) or not isinstance(given, Iterable)):
            raise ConfigError(f"`{name}` must be a list, one entry for each fit, got {given!r}.")
    base = make(model) if isinstance(model, str) else model
    points = [{"seed": seed} for seed in seeds] if seeds is not None else list(configs or ())
    models = [configure(deepcopy(base), **point) for point in points]
    probes = list(probe) if isinstance(probe, list | tuple) else [probe] * len(models)
    if len(probes) != len(models):
        raise ConfigError(f"`probe` must be one for all or one for each of {len(models)} fits, got {len(probes)}.")
    log, *probes = as_logs({"log": log} | {f"probe {n}": one for n, one in enumerate(probes, 1)}, **options)
    return fit_models(models, log, probes, jobs, progress)


def fit_models(
    models: Sequence[DebiasedRecommender],
    log: FeedbackLog,
    probes: Sequence[FeedbackLog | None],
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[DebiasedRecommender]:
    """Fit each model to the log with its probe.

    `jobs`: processes on a CPU, by default as many as torch has threads; the pool is kept for the next call. Models on
    a GPU are fitted one after the other. `progress` is called after each fit with (fits done, fits, last loss).
    """
    from joblib import Parallel, delayed

    if jobs is not None:
        check_number("jobs", jobs, at_least=1, integer=True)
    for model, probe in zip(models, probes, strict=True):
        model.check(log, probe)
    on_cpu = all(model.training.resolve_device().type == "cpu" for model in models)
    jobs = min(jobs or torch.get_num_threads(), len(models)) if on_cpu else 1
    pool = Parallel(n_jobs=max(1, jobs), return_as="generator", mmap_mode="c")  # a large log is shared, not sent
    fitted: list[DebiasedRecommender] = []
    for model in pool(delayed(_fit)(model, log, probe) for model, probe in zip(models, probes, strict=True)):
        fitted.append(model)
        if progress is not None:
            progress(len(fitted), len(models), float(model.history_.loss[-1]))
    return fitted


def _fit(model: DebiasedRecommender, log: FeedbackLog, probe: FeedbackLog | None) -> DebiasedRecommender:
    return model.fit(log, probe)
