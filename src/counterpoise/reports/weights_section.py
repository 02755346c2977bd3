"""The section on weights: their spread, what is left of the sample, and whom they favour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text
from counterpoise.reports.charts import Bar, Line, bar_chart, line_chart

Facts = Mapping[str, Any]


def weights_section(facts: Facts) -> Section:
    """What the weights look like."""
    weights = facts["weights"]
    if weights["uniform"]:
        words = f"Every one of the {weights['rows']:,} rows counts the same: this method corrects nothing by weights."
        return Section("weights", "Weights", [Text(words)])
    blocks: list[Text | Table | Figure] = [_weight_numbers(weights), _weight_histogram(weights)]
    if "by_popularity" not in weights:
        blocks.append(Text("The log is not there, so weights cannot be told to users and items."))
        return Section("weights", "Weights", blocks)
    sides = {"by_popularity": ("item", "popularity"), "by_activity": ("user", "activity")}
    blocks += [_against(weights[key], *words) for key, words in sides.items() if len(weights[key]) > 1]
    blocks += [_share_histogram(weights[f"per_{who}"], who) for who in ("user", "item")]
    blocks += [_group_table(weights), _label_table(weights["by_label"]), _heaviest(weights["heaviest"])]
    return Section("weights", "Weights", blocks)


def _weight_numbers(weights: Facts) -> Table:
    columns = [Column("rows", "count"), Column("effective sample size", "count", "effective sample size")]
    columns += [Column("design effect", "number", "design effect"), Column("heaviest 1% hold", "share", "tail")]
    columns += [Column("largest / mean", "number", "tail")]
    columns += [Column(name, "number", "weight") for name in weights["quantiles"]]
    keys = ("rows", "effective_sample_size", "design_effect", "top_1_percent_share", "max_over_mean")
    return Table("The weights in numbers", columns, [[*(weights[k] for k in keys), *weights["quantiles"].values()]])


def _weight_histogram(weights: Facts) -> Figure:
    bars = [
        Bar(
            b["low"], b["high"], b["rows"], f"{b['rows']:,} rows weigh {b['low']:.3g} to {b['high']:.3g} times the mean"
        )
        for b in weights["histogram"]
    ]
    svg = bar_chart(bars, "weight / mean weight", "rows", "Histogram of the weights", logarithmic_x=True)
    return Figure("How the weights spread", svg, "Logarithmic: each step to the right multiplies.", term="weight")


def _against(groups: Sequence[Facts], who: str, term: str) -> Figure:
    tips = [
        f"{who}s with {g['from']:,} to {g['to']:,} ratings: mean weight {g['mean']:.2f}, "
        f"middle 80% from {g['low']:.2f} to {g['high']:.2f} ({g['rows']:,} rows)"
        for g in groups
    ]
    line = Line("mean", [(g["ratings"], g["mean"]) for g in groups], tips, band=[(g["low"], g["high"]) for g in groups])
    alt = f"Weight against the ratings of the {who}"
    names = f"ratings of the {who}", "weight / mean weight"
    svg = line_chart([line], *names, alt, include_y=(0.0,), logarithmic_x=True, guide=1)
    caption = (
        f"Rows in groups by the {term} of their {who}: the line is the mean, the band holds the middle 80% of the rows."
    )
    return Figure(f"Weight against {term}", svg, caption, term=term)


def _share_histogram(groups: Facts, who: str) -> Figure:
    bars = [
        Bar(
            b["low"], b["high"], b["rows"], f"{b['rows']:,} {who}s keep {b['low']:.0%} to {b['high']:.0%} of their rows"
        )
        for b in groups["share_histogram"]
    ]
    alt = f"Effective sample size of each {who} over its rows"
    svg = bar_chart(bars, "effective sample size / rows", f"{who}s", alt)
    caption = f"How much of each {who}'s ratings is left once they count unequally; 1 is all."
    return Figure(f"Effective sample of each {who}", svg, caption, term="effective sample size")


def _group_table(weights: Facts) -> Table:
    names = list(weights["quantiles"])
    columns = [Column("effective sample size", term="effective sample size"), Column("groups", "count")]
    columns += [Column(name, "number") for name in names]
    rows = []
    for who in ("user", "item"):
        part = weights[f"per_{who}"]
        rows.append([f"of a {who}" if who == "user" else f"of an {who}", part["groups"], *part["sizes"].values()])
        rows.append([f"over its rows, {who}s", part["groups"], *part["shares"].values()])
    return Table("Effective sample sizes per user and item", columns, rows)


def _label_table(labels: Sequence[Facts]) -> Table:
    columns = [Column("label", term="label"), Column("rows", "count"), Column("mean weight", "number", "weight")]
    return Table(
        "Weight by label", columns, [[part["label"], part["rows"], part["mean"]] for part in labels], half=True
    )


def _heaviest(rows: Sequence[Facts]) -> Table:
    columns = [Column("user"), Column("item"), Column("label", "number", "label"), Column("weight", "number", "weight")]
    columns += [Column("ratings of the user", "count", "activity"), Column("of the item", "count", "popularity")]
    keys = ("user", "item", "label", "weight", "user_ratings", "item_ratings")
    return Table("The heaviest rows", columns, [[row[key] for key in keys] for row in rows])
