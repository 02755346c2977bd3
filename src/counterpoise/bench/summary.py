"""From fits to facts: means over seeds, intervals over users, and comparisons with the best baseline.

As in the paper's Table 1, methods stand in two blocks, IPS-based (MF included) and DR-based; the best two of a block
and its best baseline are marked, and every method that is no baseline is tested against the latter. Methods of other
families stand in a block of their own, and are held against all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from counterpoise.bench.published import DATASETS, Published, published
from counterpoise.bench.records import Cell, Comparison, Fit, Runs, Section, Series, Table
from counterpoise.bench.statistics import (
    Floats,
    holm,
    interval_over_users,
    mean_and_deviation,
    paired_t_test,
    wilcoxon_test,
)
from counterpoise.config import EmptyUsers
from counterpoise.errors import ConfigError, check_choice, check_number
from counterpoise.evaluation.metrics import EMPTY_USER_METRICS, METRIC_NAMES

METRICS = ("auc", "ndcg_one", "f1_one")  # the paper's, with its rule for users without a positive label
CHOICES = [name for name in METRIC_NAMES if name not in EMPTY_USER_METRICS] + [
    f"{m}_{r}" for m in EMPTY_USER_METRICS for r in get_args(EmptyUsers)
]
SIGNIFICANT = 0.05
DIGITS = 3  # as printed: what looks equal is marked alike


def summarise(
    rows: Iterable[Mapping[str, Any]],
    missing: Iterable[Mapping[str, str]] = (),
    metrics: Sequence[str] = METRICS,
    level: float = 0.95,
) -> Table:
    """The facts of a table; the order of rows does not matter.

    `rows`: one for each fit (see `Fit`). One without `metrics` and without `failed` is planned, and counts as pending,
    as does every seed that another method of the same section has.
    `missing`: {"dataset": ..., "missing": how to get it} for each dataset that is not there.
    """
    chosen = check_metrics(metrics)
    check_number("level", level, above=0, at_most=1, advice="Use 0.95 for 95 %.")
    sections = defaultdict(list)
    for fit in map(Fit.of, rows):
        sections[_order(fit)].append(fit)
    absent = sorted(missing, key=lambda entry: _place(entry["dataset"]))
    return Table(
        metrics=chosen,
        level=float(level),
        sections=[_section(sections[order], chosen, level) for order in sorted(sections)],
        missing={entry["dataset"]: entry["missing"] for entry in absent},
    )


def check_metrics(metrics: Sequence[str]) -> list[str]:
    """Each metric once."""
    if not metrics:
        raise ConfigError(f"`metrics` must name at least one metric. Use {', '.join(METRICS)} for the paper's.")
    for metric in metrics:
        check_choice("metrics", metric, CHOICES)
    return list(dict.fromkeys(metrics))


def split_metric(metric: str) -> tuple[str, str | None]:
    """("ndcg", "one") of "ndcg_one"; the rule is None for a metric that needs none."""
    name, _, rule = metric.rpartition("_")
    return (name, rule) if name in EMPTY_USER_METRICS else (metric, None)


def _order(fit: Fit) -> tuple[Any, ...]:
    """What a section has in common, and where it stands: the default backbone and protocol first."""
    return fit.backbone != "strong", fit.backbone, fit.protocol, *_place(fit.dataset), fit.k


def _place(dataset: str) -> tuple[int, str]:
    """The paper's datasets come first, in its order."""
    return list(DATASETS).index(dataset) if dataset in DATASETS else len(DATASETS), dataset


def _section(fits: Sequence[Fit], metrics: Sequence[str], level: float) -> Section:
    by_method = defaultdict(list)
    for fit in fits:
        by_method[fit.method].append(fit)
    runs = sorted(map(Runs.of, by_method.values()), key=Runs.order)
    seeds = sorted({fit.seed for fit in fits})
    columns = {metric: _column(runs, metric, level) for metric in metrics}
    lines = [run.line(seeds, {metric: columns[metric][run.method] for metric in metrics}) for run in runs]
    return Section(fits[0].dataset, fits[0].backbone, fits[0].protocol, fits[0].k, seeds, lines)


def _column(runs: Sequence[Runs], metric: str, level: float) -> dict[str, Cell]:
    """One metric of all methods."""
    column = [Series.of(run, metric) for run in runs]
    measured = [series for series in column if series.values]
    comparisons = _comparisons(measured, level)
    return {s.runs.method: _cell(s, measured, level, comparisons.get(s.runs.method)) for s in column}


def _cell(series: Series, measured: Sequence[Series], level: float, comparison: Comparison | None) -> Cell:
    known, peers = _published(series.runs.fits[0], series.metric), _peers(series, measured)
    interval = interval_over_users(series.replicates(series.values), level)
    return Cell(
        *(len(series.values), series.mean, series.std, interval),
        published=known,
        published_difference=series.mean - known.mean if known else math.nan,
        best=_is_among(series, peers, places=2),
        best_baseline=_is_among(series, _complete(_baselines(peers)), places=1),
        comparison=comparison,
    )


def _peers(series: Series, measured: Sequence[Series]) -> list[Series]:
    """The methods of the same block; all, where a method has none of the paper's blocks."""
    return [other for other in measured if series.runs.block in (other.runs.block, "other")]


def _baselines(peers: Sequence[Series]) -> list[Series]:
    return [peer for peer in peers if peer.runs.is_baseline]


def _complete(baselines: Sequence[Series]) -> list[Series]:
    """Those with the most seeds: one that failed on most may look best by luck, and leaves nothing to compare."""
    most = max((len(baseline.values) for baseline in baselines), default=0)
    return [baseline for baseline in baselines if len(baseline.values) == most]


def _is_among(series: Series, peers: Sequence[Series], places: int) -> bool:
    """Whether a method, as printed, is as good as the one that has the last of these places."""
    best = sorted((round(peer.score, DIGITS) for peer in peers), reverse=True)[:places]
    return series in peers and round(series.score, DIGITS) >= best[-1]


def _published(fit: Fit, metric: str) -> Published | None:
    """The paper's number, where it has one by the same rule for lists of the same length."""
    name, rule = split_metric(metric)
    known = published(fit.title, fit.dataset, name) if rule in (None, "one") and fit.group != "own" else None
    return known if known is None or known.k in (None, fit.k) else None


def _comparisons(measured: Sequence[Series], level: float) -> dict[str, Comparison]:
    """Each method that is no baseline against the best baseline of its block; p corrected over all of them."""
    found = {}
    for series in measured:
        baselines = _complete(_baselines(_peers(series, measured)))
        if baselines and not series.runs.is_baseline:
            best = max(baselines, key=lambda baseline: baseline.score)
            found[series.runs.method] = _comparison(series, best, level)
    t_ps, wilcoxon_ps = (holm([getattr(one, name) for one in found.values()]) for name in ("t_p", "wilcoxon_p"))
    return {
        method: replace(
            comparison,
            t_p_holm=float(t_p),
            wilcoxon_p_holm=float(wilcoxon_p),
            starred_holm=bool(comparison.better and t_p <= SIGNIFICANT),
        )
        for (method, comparison), t_p, wilcoxon_p in zip(found.items(), t_ps, wilcoxon_ps, strict=True)
    }


def _comparison(ours: Series, best: Series, level: float) -> Comparison:
    """Before the correction for several methods."""
    seeds = sorted(set(ours.values) & set(best.values))
    first, second = (np.array([series.values[seed] for seed in seeds]) for series in (ours, best))
    difference, _ = mean_and_deviation(first - second)
    p, better = paired_t_test(first, second), ours.sign * difference > 0
    return Comparison(
        *(best.runs.title, len(seeds), difference, interval_over_users(_paired(ours, best, seeds), level)),
        *(p, wilcoxon_test(first, second), better),
        t_p_holm=math.nan,
        wilcoxon_p_holm=math.nan,
        starred=better and p <= SIGNIFICANT,
        starred_holm=False,
    )


def _paired(ours: Series, best: Series, seeds: Sequence[int]) -> Floats:
    """Differences (seeds, replicates): replicate r of a seed has drawn the same users for both."""
    first, second = ours.replicates(seeds), best.replicates(seeds)
    return first - second if first.shape == second.shape else np.empty(0)
