"""The section on balance: love plot, held-out functions, and what balance cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text
from counterpoise.reports.charts import Bar, Mark, bar_chart, row_chart

SHOWN = 20  # features in the love plot
PRICES = 100  # functions in the chart of prices
BALANCED = 0.1  # standardised differences within it are usually called balanced
Facts = Mapping[str, Any]


def balance_section(facts: Facts) -> Section:
    """Whether the weighted log resembles all pairs."""
    balance = facts["balance"]
    blocks: list[Text | Table | Figure] = []
    if not balance["weighted"]:
        blocks.append(Text(_why_unweighted(facts)))
    blocks.append(_love_plot(balance))
    held_out = _held_out(balance)
    blocks += [held_out] if held_out else []
    if balance["functions"]:
        blocks += [_prices(balance), _functions(balance["functions"])]
    elif balance["weighted"]:
        blocks.append(
            Text("This method balances no functions explicitly, so there are no dual prices and none given up.")
        )
    return Section("balance", "Balance", blocks)


def _why_unweighted(facts: Facts) -> str:
    if facts["weights"]["uniform"]:
        return (
            "This method gives every row the same weight, so weighting changes no balance: the picture shows how far "
            "the log as it is differs from all pairs."
        )
    return "The log is not there, so weights cannot be told to their rows: the picture shows the log as it is."


def _love_plot(balance: Facts) -> Figure:
    rows = [row for row in balance["features"] if row["smd_before"] is not None]
    size = _change if balance["weighted"] else _imbalance
    largest = sorted(rows, key=lambda row: -abs(size(row)))[:SHOWN]
    drawn = []
    for row in sorted(largest, key=lambda row: -size(row)):
        marks = [Mark(abs(row["smd_before"]), f"{row['name']}: {row['smd_before']:+.3f} SD before", "before")]
        if balance["weighted"] and row["smd_after"] is not None:
            marks.append(Mark(abs(row["smd_after"]), f"{row['name']}: {row['smd_after']:+.3f} SD after", "after"))
        drawn.append((row["name"], marks))
    alt = "Love plot: imbalance of each feature" + (" before and after weighting" if balance["weighted"] else "")
    svg = row_chart(drawn, "|standardised difference|", alt, guides=(0.0, BALANCED))
    words = ("changed most", "improvement") if balance["weighted"] else ("differ most", "imbalance")
    shown = f"The {SHOWN} of {len(rows)} features that {words[0]}" if len(rows) > SHOWN else "All features"
    caption = f"{shown}, the largest {words[1]} first; the dashed lines are 0 and {BALANCED}."
    legend = {"before": "before", "after": "after"} if balance["weighted"] else {"the log as it is": "before"}
    numbers = _feature_table(balance["features"])
    return Figure("Love plot", svg, caption, legend, numbers, term="standardised difference", tall=True)


def _imbalance(row: Facts) -> float:
    return abs(float(row["smd_before"]))


def _change(row: Facts) -> float:
    return 0.0 if row["smd_after"] is None else abs(row["smd_before"]) - abs(row["smd_after"])


def _feature_table(rows: Sequence[Facts]) -> Table:
    smd, distance = "standardised difference", "distance"
    columns = [Column("feature", term="feature"), Column("mean, all pairs", "number"), Column("mean, log", "number")]
    columns += [Column("weighted", "number"), Column("SMD before", "sd", smd), Column("SMD after", "sd", smd)]
    columns += [Column("change", "sd", "change"), Column("distance before", "number", distance)]
    columns += [Column("distance after", "number", distance)]
    keys = ("name", "population_mean", "mean_before", "mean_after", "smd_before", "smd_after")
    tails = ("ks_before", "ks_after")
    return Table(
        "Balance of every feature",
        columns,
        [
            [*(row[key] for key in keys), None if row["smd_before"] is None else _change(row), *(row[t] for t in tails)]
            for row in rows
        ],
    )


def _held_out(balance: Facts) -> Table | None:
    kinds = {"held_out": "of features that we chose", "held_out_of_method": "of features of the method"}
    times = ("before", "after") if balance["weighted"] else ("before",)
    rows = [
        [words, *(balance[key][when][size] for size in ("rms_sd", "max_sd") for when in times)]
        for key, words in kinds.items()
        if balance[key]
    ]
    if not rows:
        return None
    terms = "held-out functions", "held-out functions of the method"
    columns = [Column("functions", term=terms[len(rows) - 1])]
    columns += [Column(f"{what} {when}", "number", terms[0]) for what in ("RMS", "max") for when in times]
    return Table("Balance on held-out functions, in SD", columns, rows, half=True)


def _certificate(balance: Facts) -> str:
    functions, lost = balance["functions"], balance["given_up"]
    folds = max(row["fold"] for row in functions)
    worst = max(abs(row["after_sd"]) for row in functions)
    given_up = (
        "None was given up." if not lost else f"{lost} of them were given up: they cost more than they were worth."
    )
    return (
        f"The method balanced {len(functions)} functions in {folds} fold{'s' if folds > 1 else ''}; the largest "
        f"imbalance left is {worst:.2g} SD. {given_up} Solver: {balance['status']}, duality gap {balance['gap']:.1e}."
    )


def _prices(balance: Facts) -> Figure:
    dearest = sorted(balance["functions"], key=lambda row: -abs(row["price"]))[:PRICES]
    bars = [
        Bar(place, place + 1, abs(row["price"]), _price_tip(row), "warn" if row["given_up"] else "after")
        for place, row in enumerate(dearest)
    ]
    svg = bar_chart(bars, "balanced functions, dearest first", "|dual price|", "Dual price of each balanced function")
    caption = f"{_certificate(balance)} High bars are what the log hardly has the rows for."
    legend = {"balanced": "after"} | ({"given up": "warn"} if any(row["given_up"] for row in dearest) else {})
    return Figure("What balance cost", svg, caption, legend, term="dual price")


def _price_tip(row: Facts) -> str:
    given_up = ", given up" if row["given_up"] else ""
    return (
        f"{row['name']} (fold {row['fold']}): price {row['price']:+.3g}, imbalance {row['before_sd']:+.3f} before, "
        f"{row['after_sd']:+.3f} after{given_up}"
    )


def _functions(functions: Sequence[Facts]) -> Table:
    columns = [Column("function", term="balanced functions"), Column("fold", "count"), Column("before", "sd")]
    columns += [
        Column("after", "sd"),
        Column("dual price", "number", "dual price"),
        Column("given up", term="given up"),
    ]
    rows = [
        [row["name"], row["fold"], row["before_sd"], row["after_sd"], row["price"], "yes" if row["given_up"] else "no"]
        for row in functions
    ]
    return Table("Balanced functions, imbalance in standard deviations", columns, rows, folded=True)
