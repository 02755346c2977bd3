"""The facts of a table of fits: means over seeds, intervals over users, comparisons with the best baseline.

As in the paper's Table 1, methods stand in two blocks, IPS-based (MF included) and DR-based. The best two methods and
the best baseline of a block are marked, and every method that is no baseline is tested against the latter. Methods of
other families stand in a block of their own and are compared with all. All methods for clicks are one block. With a
named `baseline` every other method is tested against it instead.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from typing import Any, Literal, get_args

import numpy as np

from counterpoise.bench.published import DATASETS, Published, places, published
from counterpoise.bench.statistics import (
    Floats,
    Interval,
    holm,
    interval_over_users,
    mean_and_deviation,
    paired_t_test,
    wilcoxon_test,
)
from counterpoise.data.protocols import find_protocol
from counterpoise.errors import ConfigError, DataError, check_choice, check_number, did_you_mean, short_repr
from counterpoise.evaluation.full_ranking import RANKING_METRIC_NAMES
from counterpoise.evaluation.metrics import CLICK_METRIC_NAMES, LOWER_IS_BETTER, METRIC_NAMES, PAPER_METRIC_NAMES

Block = Literal["IPS", "DR", "clicks", "other"]
BLOCKS: dict[str, Block] = {"naive": "IPS", "ips": "IPS", "dr": "DR", "imputation": "DR"}  # by family
GROUPS = ("baseline", "ours", "own")
METRICS_OF_CLICKS = ("ndcg", "recall", "map", "dcg")  # on a test of relevance
TABLE_METRIC_NAMES = METRIC_NAMES | PAPER_METRIC_NAMES | CLICK_METRIC_NAMES | RANKING_METRIC_NAMES
SIGNIFICANCE = 0.05  # the paper's level of p
DIGITS = 3  # as printed: methods that look equal are marked alike
REQUIRED = ("dataset", "method", "title", "group", "family", "preset", "protocol", "seed", "k")


@dataclass(frozen=True, eq=False)
class Fit:
    """One method on one dataset with one seed: done, failed, or not yet run."""

    dataset: str
    method: str
    title: str
    group: str  # baseline, ours, own
    family: str
    preset: str
    protocol: str
    seed: int
    k: int
    seconds: float | None
    failed: str | None
    metrics: Mapping[str, float | None]  # empty: not yet run
    replicates: Mapping[str, list[float | None]]
    feedback: str = "ratings"  # of the log

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Fit:
        """The fit of a row of results; one without `metrics` and without `failed` is not yet run."""
        absent = [name for name in REQUIRED if row.get(name) is None]
        if absent:
            shown = short_repr({name: row[name] for name in REQUIRED if name in row})
            raise DataError(f"a row of results must have {', '.join(map(repr, absent))}, got {shown}.")
        wrong = [name for name, is_valid in CHECKS.items() if not is_valid(row.get(name))]
        if wrong:
            raise DataError(
                f"a row of results has an unusable {wrong[0]!r}: {short_repr(row.get(wrong[0]))}. Fit it again."
            )
        facts: dict[str, Any] = {name: row.get(name) for name in (*REQUIRED, "seconds", "failed")}
        facts["feedback"] = row.get("feedback") or "ratings"
        return cls(**facts, metrics=row.get("metrics") or {}, replicates=row.get("replicates") or {})

    @property
    def done(self) -> bool:
        """Whether it has results."""
        return self.failed is None and bool(self.metrics)

    @property
    def block(self) -> Block:
        """The block of the table that it stands in: one for all methods of clicks."""
        return "clicks" if self.feedback == "clicks" else BLOCKS.get(self.family, "other")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    """Finite, or None or nan where a metric is not defined."""
    if value is None or isinstance(value, bool):
        return value is None
    return isinstance(value, float | int) and (value != value or abs(value) <= sys.float_info.max)


def _maps_to(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or (isinstance(value, Mapping) and all(map(is_valid, value.values())))


CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(REQUIRED, lambda value: isinstance(value, str)),
    **{"seed": _is_integer, "k": _is_integer, "seconds": _is_number, "metrics": _maps_to(_is_number)},
    "replicates": _maps_to(lambda one: isinstance(one, list) and all(map(_is_number, one))),
    "feedback": lambda value: value is None or isinstance(value, str),
    "failed": lambda value: value is None or isinstance(value, str),
}


@dataclass(frozen=True)
class Comparison:
    """A method against the named baseline, or the best one of its block, paired over the seeds that both have."""

    against: str  # the baseline's title
    seeds: int
    difference: float  # ours - theirs, the mean over these seeds
    interval: Interval  # of the difference, over users
    t_p: float
    wilcoxon_p: float
    better: bool
    t_p_holm: float
    wilcoxon_p_holm: float
    significant: bool  # better or worse, t_p <= SIGNIFICANCE
    significant_holm: bool  # the same of t_p_holm


@dataclass(frozen=True)
class Cell:
    """One metric of one method."""

    seeds: int  # those in which the metric is defined
    mean: float
    std: float
    interval: Interval  # of the mean, over users
    published: Published | None  # of the same protocol, metric and length of lists
    published_difference: float  # ours - published
    best: bool  # one of the best two of its block, as printed
    best_baseline: bool  # as printed, so that there may be two
    comparison: Comparison | None  # None for the baseline or all baselines, and where there is none to compare with


@dataclass(frozen=True)
class Line:
    """One method on one dataset."""

    method: str
    title: str
    group: str
    family: str
    block: Block
    done: list[int]  # seeds
    failed: dict[int, str]  # seed -> message
    pending: list[int]  # seeds that other methods of the section have, and this one has not yet
    seconds: float  # of a fit, the mean
    cells: dict[str, Cell]  # by metric


@dataclass(frozen=True)
class Section:
    """One dataset under one preset and one protocol."""

    dataset: str
    preset: str
    protocol: str
    k: int
    seeds: list[int]
    lines: list[Line]
    feedback: str = "ratings"


@dataclass(frozen=True)
class Table:
    """All sections, and the datasets that were not found with the way to get them."""

    metrics: list[str]
    level: float
    sections: list[Section]
    missing: dict[str, str]
    notes: list[str]  # on all sections
    baseline: str | None = None  # the title of what all others are tested against; None: the best of each block

    def to_dict(self) -> dict[str, Any]:
        """All fields in types that JSON has; None for nan."""
        facts = json.dumps(asdict(self))
        return dict(json.loads(facts, parse_constant=lambda nan: None))


def summarise(
    rows: Iterable[Mapping[str, Any]],
    missing: Iterable[Mapping[str, str]] = (),
    metrics: Sequence[str] = find_protocol("honest").metrics,
    level: float = 0.95,
    notes: Sequence[str] = (),
    baseline: str | None = None,
) -> Table:
    """The facts of a table; the order of rows does not matter.

    `rows`: one for each fit (see `Fit`). One without `metrics` and without `failed` is planned and counts as pending,
    as does every seed that another method of the same section has.
    `missing`: {"dataset": ..., "missing": how to get it} for each dataset that was not found. `notes`: lines that stand
    below every section. `baseline`: the method or title that every other is tested against, in all blocks; by default
    methods that are no baseline, against the best one of their block.
    """
    chosen = check_metrics(metrics)
    check_number("level", level, above=0, at_most=1, advice="Use 0.95 for 95 %.")
    fits = [Fit.of(row) for row in rows]
    against = None if baseline is None else baseline_title(baseline, {fit.method: fit.title for fit in fits})
    sections = defaultdict(list)
    for fit in fits:
        sections[_section_order(fit)].append(fit)
    absent = sorted(missing, key=lambda one: _dataset_order(one["dataset"]))
    return Table(
        metrics=chosen,
        level=float(level),
        sections=[_section(sections[order], chosen, level, against) for order in sorted(sections)],
        missing={one["dataset"]: one["missing"] for one in absent},
        notes=list(notes),
        baseline=against,
    )


def baseline_title(baseline: str, titles: Mapping[str, str]) -> str:
    """The title of the baseline, by its name or title; `titles`: those of all methods of a table, by name."""
    known = {word.lower(): title for name, title in titles.items() for word in (name, title)}
    if baseline.lower() not in known:
        listed, hint = ", ".join(titles), did_you_mean(baseline, titles)
        raise ConfigError(f"`baseline` must be a method of this table, among {listed}, got {baseline!r}.{hint}")
    return known[baseline.lower()]


def check_metrics(metrics: Sequence[str]) -> list[str]:
    """Each metric once."""
    if not metrics:
        raise ConfigError(
            f"`metrics` must name at least one metric, such as {', '.join(find_protocol('honest').metrics)}."
        )
    for metric in metrics:
        check_choice("metrics", metric, TABLE_METRIC_NAMES)
    return list(dict.fromkeys(metrics))


def line_order(line: Line | Fit) -> tuple[int, int, int, str, str]:
    """The sort key of a line: by block, baselines first, then as in the paper's table, then by title."""
    block = get_args(Block).index(line.block)
    group = GROUPS.index(line.group) if line.group in GROUPS else len(GROUPS)
    return block, group, places().get(line.title, len(places())), line.title, line.method


def _section_order(fit: Fit) -> tuple[Any, ...]:
    """The key of a section, which sorts the default preset and protocol first."""
    where = fit.preset != "default", fit.preset, fit.protocol
    return *where, *_dataset_order(fit.dataset), fit.feedback != "ratings", fit.feedback, fit.k


def _dataset_order(dataset: str) -> tuple[int, str]:
    """The paper's datasets come first, in its order."""
    return list(DATASETS).index(dataset) if dataset in DATASETS else len(DATASETS), dataset


def _section(fits: Sequence[Fit], metrics: Sequence[str], level: float, baseline: str | None) -> Section:
    by_method = defaultdict(list)
    for fit in sorted(fits, key=lambda fit: fit.seed):
        by_method[fit.method].append(fit)
    methods = sorted(by_method.values(), key=lambda fits: line_order(fits[0]))
    for fit, following in chain.from_iterable(map(pairwise, methods)):
        if fit.seed == following.seed:
            where = f"{fit.method!r} on {fit.dataset!r} (preset {fit.preset!r}, protocol {fit.protocol!r})"
            raise DataError(f"{where} has two rows with seed {fit.seed}. Keep one row for each fit.")
    seeds = sorted({fit.seed for fit in fits})
    columns = {metric: _column(methods, metric, level, baseline) for metric in metrics}
    lines = [_line(own, seeds, {metric: columns[metric][own[0].method] for metric in metrics}) for own in methods]
    first = fits[0]
    return Section(first.dataset, first.preset, first.protocol, first.k, seeds, lines, first.feedback)


def _line(fits: Sequence[Fit], seeds: Sequence[int], cells: dict[str, Cell]) -> Line:
    """One method in a section that has these seeds."""
    first, done = fits[0], [fit for fit in fits if fit.done]
    failed = {fit.seed: fit.failed for fit in fits if fit.failed is not None}
    seconds, _ = mean_and_deviation([fit.seconds for fit in done if fit.seconds is not None])
    settled = {fit.seed for fit in done} | set(failed)
    return Line(
        *(first.method, first.title, first.group, first.family, first.block),
        done=[fit.seed for fit in done],
        failed=failed,
        pending=[seed for seed in seeds if seed not in settled],
        seconds=seconds,
        cells=cells,
    )


class _Series:
    """One metric of one method: its values by seed, where the fit is done and the metric defined."""

    def __init__(self, fits: Sequence[Fit], metric: str) -> None:
        self.fits, self.first, self.metric = fits, fits[0], metric
        found = {fit.seed: fit.metrics.get(metric) for fit in fits if fit.done}
        self.values = {seed: float(value) for seed, value in found.items() if not (value is None or math.isnan(value))}
        self.mean, self.std = mean_and_deviation(list(self.values.values()))
        self.sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
        self.score = self.sign * self.mean  # higher is better

    def replicates(self, seeds: Iterable[int]) -> Floats:
        """(seeds, replicates); empty if one of the seeds has none, or another number of them."""
        wanted = set(seeds)
        found = [fit.replicates.get(self.metric) or [] for fit in self.fits if fit.seed in wanted]
        return np.array(found if len({len(one) for one in found}) == 1 else [], np.float64)


def _column(methods: Sequence[Sequence[Fit]], metric: str, level: float, baseline: str | None) -> dict[str, Cell]:
    """One metric of all methods."""
    column = {fits[0].method: _Series(fits, metric) for fits in methods}
    measured = [series for series in column.values() if series.values]
    comparisons = _comparisons(measured, level, baseline)
    return {method: _cell(series, measured, level, comparisons.get(method)) for method, series in column.items()}


def _cell(series: _Series, measured: Sequence[_Series], level: float, comparison: Comparison | None) -> Cell:
    known = _published(series.first, series.metric)
    interval = interval_over_users(series.replicates(series.values), level)
    return Cell(
        *(len(series.values), series.mean, series.std, interval),
        published=known,
        published_difference=series.mean - known.mean if known else math.nan,
        best=_is_among(series, _peers(series, measured), places=2),
        best_baseline=_is_among(series, _baselines(series, measured), places=1),
        comparison=comparison,
    )


def _peers(series: _Series, measured: Sequence[_Series]) -> list[_Series]:
    """The methods of the same block; all methods, for one outside of the paper's blocks."""
    return [other for other in measured if series.first.block in (other.first.block, "other")]


def _baselines(series: _Series, measured: Sequence[_Series]) -> list[_Series]:
    """The baselines with the most seeds: one that failed on most may look best by luck, and has nothing to pair."""
    baselines = [peer for peer in _peers(series, measured) if peer.first.group == "baseline"]
    most = max((len(baseline.values) for baseline in baselines), default=0)
    return [baseline for baseline in baselines if len(baseline.values) == most]


def _is_among(series: _Series, peers: Sequence[_Series], places: int) -> bool:
    """Whether a method, as printed, is as good as the one that has the last of these places."""
    best = sorted((round(peer.score, DIGITS) for peer in peers), reverse=True)[:places]
    return series in peers and round(series.score, DIGITS) >= best[-1]


def _published(fit: Fit, metric: str) -> Published | None:
    """The number of the method in the published table of this protocol, by the same metric for lists of this length."""
    return None if fit.group == "own" else published(fit.protocol, fit.title, fit.dataset, metric, fit.k)


def _comparisons(measured: Sequence[_Series], level: float, baseline: str | None) -> dict[str, Comparison]:
    """Each method against what it is tested against (see `summarise`); p corrected over all methods compared."""
    found: dict[str, dict[str, Any]] = {}
    for series in measured:
        if baseline is None:
            baselines = _baselines(series, measured) if series.first.group != "baseline" else []
        else:
            baselines = [other for other in measured if other.first.title == baseline and other is not series]
        if baselines:
            best = max(baselines, key=lambda other: other.score)
            found[series.first.method] = _comparison(series, best, level)
    for p in ("t_p", "wilcoxon_p"):
        corrected = holm([facts[p] for facts in found.values()])
        for facts, value in zip(found.values(), corrected, strict=True):
            facts[f"{p}_holm"] = float(value)
    for facts in found.values():
        facts["significant"] = facts["t_p"] <= SIGNIFICANCE
        facts["significant_holm"] = facts["t_p_holm"] <= SIGNIFICANCE
    return {method: Comparison(**facts) for method, facts in found.items()}


def _comparison(ours: _Series, best: _Series, level: float) -> dict[str, Any]:
    """The fields of `Comparison` that do not depend on the other methods."""
    seeds = sorted(set(ours.values) & set(best.values))
    first, second = (np.array([series.values[seed] for seed in seeds]) for series in (ours, best))
    difference, _ = mean_and_deviation(first - second)
    replicates = [series.replicates(seeds) for series in (ours, best)]
    same = replicates[0].shape == replicates[1].shape
    return {
        "against": best.first.title,
        "seeds": len(seeds),
        "difference": difference,
        "interval": interval_over_users(replicates[0] - replicates[1] if same else [], level),
        "t_p": paired_t_test(first, second),
        "wilcoxon_p": wilcoxon_test(first, second),
        "better": ours.sign * difference > 0,
    }
