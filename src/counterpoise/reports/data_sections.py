"""The sections on the log, on balance and on weights, from their facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text
from counterpoise.reports.charts import Bar, Line, Mark, bar_chart, line_chart, row_chart

SHOWN = 20  # features in the love plot
PRICES = 100  # functions in the chart of prices
BALANCED = 0.1
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
    return Figure("Who holds the ratings", svg, caption, {who: kind for who, kind in names.values()}, term="popularity")


def _label_rates(rates: Sequence[Facts]) -> Figure:
    kinds = {"log": "before", "log, weighted": "after"}
    rows = []
    for rate in rates:
        low, high = rate["interval"] or (None, None)
        span = "" if low is None else f", interval {low:.1%} to {high:.1%}"
        tip = f"{rate['sample']}: {rate['rate']:.1%} of {rate['rows']:,} labels are positive{span}"
        rows.append((rate["sample"], [Mark(rate["rate"], tip, kinds.get(rate["sample"], "truth"), low, high)]))
    svg = row_chart(rows, "share of positive labels", "Label rates of the log and of uniform samples", guides=())
    table = Table(
        "Label rates",
        [Column("sample"), Column("rate", "share", "label rate"), Column("from", "share", "interval")]
        + [Column("to", "share", "interval"), Column("rows", "count")],
        [[r["sample"], r["rate"], *(r["interval"] or (None, None)), r["rows"]] for r in rates],
    )
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
        blocks.append(Text("This method balances no functions explicitly, so there are no dual prices and none given up."))
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
    legend = {"before": "before"} | ({"after": "after"} if balance["weighted"] else {})
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
    columns += [Column(f"{what} {when}", "number", terms[0]) for what in ("RMS", "largest") for when in times]
    return Table("Balance on held-out functions, in SD", columns, rows, half=True)


def _certificate(balance: Facts) -> str:
    functions, lost = balance["functions"], balance["given_up"]
    folds = max(row["fold"] for row in functions)
    worst = max(abs(row["after_sd"]) for row in functions)
    given_up = "None was given up." if not lost else f"{lost} of them were given up: they cost more than they were worth."
    return (
        f"The method balanced {len(functions)} functions in {folds} fold{'s' if folds > 1 else ''}; the largest imbalance "
        f"left is {worst:.2g} SD. {given_up} Solver: {balance['status']}, duality gap {balance['gap']:.1e}."
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
    columns += [Column("after", "sd"), Column("dual price", "number", "dual price"), Column("given up", term="given up")]
    rows = [
        [row["name"], row["fold"], row["before_sd"], row["after_sd"], row["price"], "yes" if row["given_up"] else "no"]
        for row in functions
    ]
    return Table("Balanced functions, imbalance in standard deviations", columns, rows, folded=True)


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
        Bar(b["low"], b["high"], b["rows"], f"{b['rows']:,} rows weigh {b['low']:.3g} to {b['high']:.3g} times the mean")
        for b in weights["histogram"]
    ]
    svg = bar_chart(bars, "weight / mean weight", "rows", "Histogram of the weights", logarithmic_x=True)
    return Figure("How the weights spread", svg, "Logarithmic: each step to the right multiplies.", term="weight")


def _against(groups: Sequence[Facts], who: str, term: str) -> Figure:
    tips = [
        f"{who}s with {g['from']:,} to {g['to']:,} ratings: mean weight {g['mean']:.2f}, middle 80% from {g['low']:.2f} to "
        f"{g['high']:.2f} ({g['rows']:,} rows)"
        for g in groups
    ]
    line = Line("mean", [(g["ratings"], g["mean"]) for g in groups], tips, band=[(g["low"], g["high"]) for g in groups])
    alt = f"Weight against the ratings of the {who}"
    names = f"ratings of the {who}", "weight / mean weight"
    svg = line_chart([line], *names, alt, include_y=(0.0,), logarithmic_x=True, guide=1)
    caption = f"Rows in groups by the {term} of their {who}: the line is the mean, the band holds the middle 80% of the rows."
    return Figure(f"Weight against {term}", svg, caption, term=term)


def _share_histogram(groups: Facts, who: str) -> Figure:
    bars = [
        Bar(b["low"], b["high"], b["rows"], f"{b['rows']:,} {who}s keep {b['low']:.0%} to {b['high']:.0%} of their rows")
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
    return Table("Weight by label", columns, [[part["label"], part["rows"], part["mean"]] for part in labels], half=True)


def _heaviest(rows: Sequence[Facts]) -> Table:
    columns = [Column("user"), Column("item"), Column("label", "number", "label"), Column("weight", "number", "weight")]
    columns += [Column("ratings of the user", "count", "activity"), Column("of the item", "count", "popularity")]
    keys = ("user", "item", "label", "weight", "user_ratings", "item_ratings")
    return Table("The heaviest rows", columns, [[row[key] for key in keys] for row in rows])
