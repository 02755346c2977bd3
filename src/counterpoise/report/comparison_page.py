"""The page that shows several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.report.page import page
from counterpoise.report.sections import (
    METRIC_TERMS,
    Column,
    Figure,
    Section,
    Table,
    Text,
    difference_figure,
    with_interval,
)

Facts = Mapping[str, Any]


def comparison_page(facts: Facts) -> str:
    """Metrics, what the runs are, and where they differ."""
    runs = [run["run"] for run in facts["runs"]]
    sections = [_metrics(facts, runs), _runs(facts), _settings(facts, runs)]
    return page("Runs compared", f"{', '.join(runs[1:])} against {runs[0]}", facts, sections)


def _metrics(facts: Facts, runs: Sequence[str]) -> Section:
    if not facts["metrics"]:
        return Section("metrics", "Metrics", [Text("There is no common test."), _kept(facts["runs"])])
    test = facts["test"]
    blocks: list[Text | Table | Figure] = [
        Text(f"All runs are judged on {test['name']}, {test['rows']:,} rows; differences are from {runs[0]}.")
    ]
    columns = [Column("metric", term="AUC"), *(Column(run, "metric", "interval") for run in runs)]
    rows = [[_title(row), *(with_interval(run) for run in row["runs"])] for row in facts["metrics"]]
    blocks.append(Table("Metrics with 95% intervals over users", columns, rows))
    for place, run in enumerate(runs[1:], start=1):
        shown = [row | row["runs"][place] for row in facts["metrics"]]
        blocks.append(difference_figure(shown, f"{run} against {runs[0]}", f"{run} minus {runs[0]}"[:60]))
    columns = [Column("metric", term="difference")]
    columns += [
        column
        for run in runs[1:]
        for column in (Column(run, "signed", "difference"), Column("verdict", term="verdict"))
    ]
    return Section("metrics", "Metrics", [*blocks, Table(f"Differences from {runs[0]}", columns, _differences(facts))])


def _title(row: Facts) -> str:
    return str(row["name"]) + (" (lower is better)" if row["lower_is_better"] else "")


def _differences(facts: Facts) -> list[list[Any]]:
    rows = []
    for row in facts["metrics"]:
        cells: list[Any] = [_title(row)]
        for run in row["runs"][1:]:
            d = run["difference"]
            cells += [d["value"] if d["low"] is None else [d["value"], d["low"], d["high"]], run["verdict"]]
        rows.append(cells)
    return rows


def _kept(runs: Sequence[Facts]) -> Table:
    """The metrics that each run kept of its own fit: of different tests, so nothing is compared."""
    columns = [Column("run")] + [
        Column(term, "metric", term) for name, term in METRIC_TERMS.items() if name != "user_auc"
    ]
    names = [name for name in METRIC_TERMS if name != "user_auc"]
    rows = [[run["run"], *((run["evaluation"] or {}).get(name) for name in names)] for run in runs]
    return Table("What each run measured at its fit, on its own test", columns, rows)


def _runs(facts: Facts) -> Section:
    columns = [
        Column("run"),
        Column("method"),
        Column("data"),
        Column("seed", "count", "seed"),
        Column("rows", "count"),
    ]
    columns += [Column("seconds", "number", "seconds"), Column("epochs", "count"), Column("risk", "metric", "risk")]
    keys = ("run", "method", "data", "seed", "rows", "seconds", "epochs", "risk")
    runs = Table("What the runs are", columns, [[run[key] for key in keys] for run in facts["runs"]])
    return Section("runs", "The runs", [runs, _weights(facts["runs"])])


def _weights(runs: Sequence[Facts]) -> Table:
    columns = [Column("run"), Column("effective sample size", "count", "effective sample size")]
    columns += [Column("design effect", "number", "design effect"), Column("heaviest 1% hold", "share", "tail")]
    columns += [Column("largest / mean", "number", "tail")]
    columns += [
        Column(f"held-out {when}", "number", "held-out functions of the method") for when in ("before", "after")
    ]
    keys = ("run", "effective_sample_size", "design_effect", "top_1_percent_share", "max_over_mean")
    found = [[run[key] for key in (*keys, "held_out_before", "held_out_after")] for run in runs]
    return Table("How far their weights go", columns, found)


def _settings(facts: Facts, runs: Sequence[str]) -> Section:
    columns = [Column("setting"), *(Column(run) for run in runs)]
    asked, parts = ([[row["setting"], *map(str, row["values"])] for row in facts[key]] for key in ("asked", "settings"))
    versions = [[name, version] for name, version in facts["versions"].items()]
    blocks: list[Text | Table | Figure] = [Table("What was asked for, where it differs", columns, asked)]
    if not asked:
        blocks = [Text("The same was asked of all runs.")]
    if parts:
        blocks.append(Table("Settings of every part, where they differ", columns, parts, folded=True))
    blocks.append(Table("Versions that made this page", [Column("what"), Column("value")], versions, sortable=False))
    return Section("settings", "Settings", blocks)
