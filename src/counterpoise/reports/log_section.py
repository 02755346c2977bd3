"""The section on the log: who holds the ratings, and its label rate against uniform samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table
from counterpoise.reports.charts import Line, Mark, line_chart, row_chart

Facts = Mapping[str, Any]


def log_section(facts: Facts) -> Section:
    """How biased the log is."""
    log = facts["log"]
    return Section("log", "The log", [_concentration(log), _label_rates(log["label_rates"]), _counts(log)])


def _concentration(log: Facts) -> Figure:
    names = {"popularity": ("items", "after"), "activity": ("users", "before")}
    lines = [
        Line(
            who,
            [(100 * share, 100 * held) for share, held in log[key]["curve"]],
            [f"The top {share:.0%} of {who} hold {held:.0%} of the ratings" for share, held in log[key]["curve"]],
            kind,
        )
        for key, (who, kind) in names.items()
    ]
    alt = "Share of all ratings held by the most rated items and by the most active users"
    svg = line_chart(lines, "top % of items or users", "% of all ratings", alt, diagonal=True)
    caption = "On the dashed line all would have as many ratings; the more a curve bends, the more a few decide."
    return Figure("Who holds the ratings", svg, caption, dict(names.values()), term="popularity")


def _label_rates(rates: Sequence[Facts]) -> Figure:
    kinds = {"log": "before", "log, weighted": "after"}
    rows = []
    for rate in rates:
        low, high = rate["interval"] or (None, None)
        span = "" if low is None else f", interval {low:.1%} to {high:.1%}"
        tip = f"{rate['sample']}: {rate['rate']:.1%} of {rate['rows']:,} labels are positive{span}"
        rows.append((rate["sample"], [Mark(rate["rate"], tip, kinds.get(rate["sample"], "truth"), low, high)]))
    svg = row_chart(rows, "share of positive labels", "Label rates of the log and of uniform samples", guides=())
    columns = [Column("sample"), Column("rate", "share", "label rate"), Column("from", "share", "interval")]
    columns += [Column("to", "share", "interval"), Column("rows", "count")]
    cells = [[r["sample"], r["rate"], *(r["interval"] or (None, None)), r["rows"]] for r in rates]
    table = Table("Label rates", columns, cells)
    caption = "Probe and test are uniform samples: they tell the rate of all pairs. The log is not."
    return Figure("Positive labels", svg, caption, numbers=table, term="label rate")


def _counts(log: Facts) -> Table:
    columns = [Column("ratings of"), Column("least", "count"), Column("median", "count"), Column("mean", "number")]
    columns += [Column("most", "count"), Column("without", "count"), Column("top tenth holds", "share", "top tenth")]
    columns += [Column("Gini", "number", "Gini")]
    keys = ("least", "median", "mean", "most", "without", "top_tenth_share", "gini")
    sides = {"users": "activity", "items": "popularity"}
    return Table(
        "Activity and popularity", columns, [[who, *(log[name][key] for key in keys)] for who, name in sides.items()]
    )
