"""The section on the model: metrics with intervals, against plain MF, calibration, learning, silence, truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from counterpoise.report.charts import Bar, Line, Mark, bar_chart, line_chart, row_chart
from counterpoise.report.definitions import DEFINITIONS

# What a page is made of: paragraphs, tables and figures, in sections. Rendering knows these and nothing of facts.

FORMATS = {
    "count": "{:,.0f}",
    "number": "{:.3g}",
    "metric": "{:.4f}",
    "signed": "{:+.4f}",
    "sd": "{:+.3f}",
    "share": "{:.1%}",
    "chance": "{:.2f}",
    "seconds": "{:.1f} s",
}


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Column:
    """The head of a column: its name, the format of its numbers, and the definition that it links to."""

    name: str
    format: str = "text"
    term: str | None = None

    def __post_init__(self) -> None:
        """Every term is defined."""
        assert self.term is None or self.term in DEFINITIONS, self.term

    @property
    def numeric(self) -> bool:
        """Whether its cells are numbers."""
        return self.format != "text"

    def show(self, value: Any) -> str:
        """A value as text; (value, low, high) with its interval."""
        if value is None:
            return "–"
        if isinstance(value, list | tuple):
            return f"{self.show(value[0])} ({self.show(value[1])} to {self.show(value[2])})"
        return FORMATS[self.format].format(value) if self.format in FORMATS else str(value)

    def key(self, value: Any) -> Any:
        """What a value is sorted by."""
        return self.key(value[0]) if isinstance(value, list | tuple) else "" if value is None else value


@dataclass(frozen=True)
class Table:
    """Rows under columns; `folded` where it is behind a line to open, `half` where it may stand beside another."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    folded: bool = False
    half: bool = False
    sortable: bool = True
    kind: str = "table"


@dataclass(frozen=True)
class Figure:
    """A chart with a title, a legend (name -> class of its marks), a caption, and its numbers as a table."""

    title: str
    svg: Markup
    caption: str = ""
    legend: dict[str, str] = field(default_factory=dict)
    numbers: Table | None = None
    term: str | None = None
    tall: bool = False
    kind: str = "figure"


@dataclass(frozen=True)
class Section:
    """A title and what stands under it."""

    name: str  # of the anchor
    title: str
    blocks: Sequence[Text | Table | Figure]


def slug(term: str) -> str:
    """The anchor of a definition."""
    return "def-" + "".join(letter if letter.isalnum() else "-" for letter in term.lower())


# The section on the log: who holds the ratings, and its label rate against uniform samples.

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


# The section on balance: love plot, held-out functions, and what balance cost.

SHOWN = 20  # features in the love plot
PRICES = 100  # functions in the chart of prices
BALANCED = 0.1  # standardised differences within it are usually called balanced


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
    functions, lost = balance["functions"], balance["relaxed"]
    folds = max(row["fold"] for row in functions)
    worst = max(abs(row["after_sd"]) for row in functions)
    relaxed = (
        "None was given up." if not lost else f"{lost} of them were given up: they cost more than they were worth."
    )
    return (
        f"The method balanced {len(functions)} functions in {folds} fold{'s' if folds > 1 else ''}; the largest "
        f"imbalance left is {worst:.2g} SD. {relaxed} Solver: {balance['status']}, duality gap {balance['gap']:.1e}."
    )


def _prices(balance: Facts) -> Figure:
    dearest = sorted(balance["functions"], key=lambda row: -abs(row["price"]))[:PRICES]
    bars = [
        Bar(place, place + 1, abs(row["price"]), _price_tip(row), "warn" if row["relaxed"] else "after")
        for place, row in enumerate(dearest)
    ]
    svg = bar_chart(bars, "balanced functions, dearest first", "|dual price|", "Dual price of each balanced function")
    caption = f"{_certificate(balance)} High bars are what the log hardly has the rows for."
    legend = {"balanced": "after"} | ({"given up": "warn"} if any(row["relaxed"] for row in dearest) else {})
    return Figure("What balance cost", svg, caption, legend, term="dual price")


def _price_tip(row: Facts) -> str:
    relaxed = ", given up" if row["relaxed"] else ""
    return (
        f"{row['name']} (fold {row['fold']}): price {row['price']:+.3g}, imbalance {row['before_sd']:+.3f} before, "
        f"{row['after_sd']:+.3f} after{relaxed}"
    )


def _functions(functions: Sequence[Facts]) -> Table:
    columns = [Column("function", term="balanced functions"), Column("fold", "count"), Column("before", "sd")]
    columns += [
        Column("after", "sd"),
        Column("dual price", "number", "dual price"),
        Column("given up", term="given up"),
    ]
    rows = [
        [row["name"], row["fold"], row["before_sd"], row["after_sd"], row["price"], "yes" if row["relaxed"] else "no"]
        for row in functions
    ]
    return Table("Balanced functions, imbalance in standard deviations", columns, rows, folded=True)


# The section on weights: their spread, what is left of the sample, and whom they favour.


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


METRIC_TERMS = {"auc": "AUC", "user_auc": "AUC", "ndcg": "NDCG", "precision": "precision", "recall": "recall"}
METRIC_TERMS |= {"f1": "F1", "mse": "MSE", "mae": "MAE", "log_loss": "log loss"}
KINDS = {"run": "after", "plain": "before"}
NAMES = {"run": "this run", "plain": "plain MF"}


def model_section(facts: Facts) -> Section:
    """How good the model is."""
    model = facts["model"]
    blocks: list[Text | Table | Figure] = []
    if model["metrics"]:
        rule = model["evaluation"]
        blocks.append(Text(f"Judged on {model['test']['name']}: {_rule_words(rule)}"))
        blocks.append(metric_table(model["metrics"]))
        if any(row.get("difference") for row in model["metrics"]):
            blocks.append(difference_figure(model["metrics"], "Against plain MF", "this run minus plain MF"))
    elif model["evaluation"]:
        blocks += [Text("The test is not there; these are the metrics of the fit."), _kept_metrics(model["evaluation"])]
    else:
        blocks.append(Text("There are no uniformly collected ratings to judge it by: give some with --test FILE."))
    if model["calibration"]:
        blocks.append(_calibration(model["calibration"]))
    blocks.append(_learning(model))
    blocks += [*_silence(model), *_truth(model)]
    return Section("model", "The model", blocks)


def _rule_words(rule: Facts) -> str:
    return (
        f"{rule['n_rows']:,} rows of {rule['n_users']:,} users, of whom {rule['n_empty_users']:,} have no positive "
        f"label (rule: {rule['empty_users']}) and {rule['n_short_users']:,} fewer than {rule['k']} rows."
    )


def metric_table(rows: Sequence[Facts]) -> Table:
    """Every metric with its interval, that of plain MF, and the difference."""
    columns = [Column("metric", term="AUC"), Column("this run", "metric", "interval")]
    compared = any("plain" in row for row in rows)
    if compared:
        columns += [Column("plain MF", "metric", "plain MF"), Column("difference", "signed", "difference")]
        columns += [Column("verdict", term="verdict")]
    cells = []
    for row in rows:
        name = row["name"] + (" (lower is better)" if row["lower_is_better"] else "")
        line = [name, with_interval(row["run"])]
        if compared:
            line += [with_interval(row["plain"]), _span(row["difference"]), row["verdict"]]
        cells.append(line)
    return Table("Metrics on the test, with 95% intervals over users", columns, cells)


def with_interval(part: Facts) -> Any:
    """(value, low, high), or the value alone."""
    interval = part["interval"]
    known = part["value"] is not None and interval and interval[0] is not None
    return [part["value"], *interval] if known else part["value"]


def _span(difference: Facts) -> Any:
    if difference["low"] is None:
        return difference["value"]
    return [difference["value"], difference["low"], difference["high"]]


def difference_figure(rows: Sequence[Facts], title: str, x_name: str) -> Figure:
    """Paired differences with intervals: right of 0 where more is more."""
    drawn = []
    for row in rows:
        d = row["difference"]
        if d["value"] is None:
            continue
        span = "" if d["low"] is None else f" ({d['low']:+.4f} to {d['high']:+.4f})"
        kind = {"better": "good", "worse": "warn"}.get(row["verdict"], "unclear")
        tip = f"{row['name']}: {d['value']:+.4f}{span}, {row['verdict']}"
        drawn.append((row["name"] + (" ↓" if row["lower_is_better"] else ""), [_mark(d, tip, kind)]))
    svg = row_chart(drawn, x_name, f"{title}: difference of each metric")
    caption = "Paired over users; an interval that leaves out 0 is a difference. ↓: lower is better."
    return Figure(title, svg, caption, {"better": "good", "worse": "warn", "not clear": "unclear"}, term="difference")


def _mark(difference: Facts, tip: str, kind: str) -> Mark:
    return Mark(difference["value"], tip, kind, difference["low"], difference["high"])


def _kept_metrics(evaluation: Facts) -> Table:
    rows = []
    for name, term in METRIC_TERMS.items():
        interval = evaluation["intervals"].get(name) or (None, None)
        rows.append([term if name != "user_auc" else "AUC per user", evaluation[name], *interval])
    columns = [Column("metric", term="AUC"), Column("value", "metric"), Column("from", "metric", "interval")]
    return Table("Metrics of the fit", [*columns, Column("to", "metric", "interval")], rows)


def _calibration(found: Facts) -> Figure:
    lines = []
    for which, part in found.items():
        bins = part["bins"]
        tips = [
            f"{NAMES[which]}: predicted {b['predicted']:.3f}, {b['observed']:.1%} of {b['rows']:,} rows are positive"
            for b in bins
        ]
        points = [(b["predicted"], b["observed"]) for b in bins]
        lines.append(Line(NAMES[which], points, tips, KINDS[which], [(b["low"], b["high"]) for b in bins], True))
    svg = line_chart(lines, "mean prediction", "share of positives", "Calibration on the test", diagonal=True)
    errors = ", ".join(f"{part['error']:.3f} for {NAMES[which]}" for which, part in found.items())
    caption = f"On the dashed line predictions mean what they say. Calibration error: {errors}."
    columns = [
        Column("model"),
        Column("predicted", "metric", "calibration"),
        Column("positive", "metric", "label rate"),
    ]
    columns += [Column("from", "metric", "interval"), Column("to", "metric", "interval"), Column("rows", "count")]
    rows = [
        [NAMES[which], *(b[key] for key in ("predicted", "observed", "low", "high", "rows"))]
        for which, part in found.items()
        for b in part["bins"]
    ]
    legend = {NAMES[which]: KINDS[which] for which in found}
    return Figure("Calibration", svg, caption, legend, Table("Calibration", columns, rows), term="calibration error")


def _learning(model: Facts) -> Figure:
    learning = model["learning"]
    kinds = {"loss": ("loss", "after"), "held_out_risk": ("held-out risk", "before")}
    lines = [
        Line(name, learning[key], [f"epoch {epoch}: {name} {value:.4f}" for epoch, value in learning[key]], kind)
        for key, (name, kind) in kinds.items()
        if learning[key]
    ]
    svg = line_chart(lines, "epoch", "loss", "Learning curve")
    stopped = (
        f"{learning['epochs']} epochs in {learning['seconds']:.1f} s; the parameters are those of epoch "
        f"{learning['best_epoch']}. At the end the risk is {model['risk']:.4f}, the error on the log "
        f"{model['error_on_log']:.4f}."
    )
    legend = {name: kind for key, (name, kind) in kinds.items() if learning[key]}
    return Figure("Learning curve", svg, stopped, legend, term="loss")


def _silence(model: Facts) -> list[Text | Table | Figure]:
    """What silence and exposure did, where a method reads them."""
    facts, exposure_coefficients = model["imputation"], model["exposure_coefficients"]
    blocks: list[Text | Table | Figure] = []
    if "contrast" in facts:
        columns = [Column("observed if positive", "share", "chance of being observed")]
        columns += [Column("observed if negative", "share", "chance of being observed")]
        columns += [Column("contrast", "number", "contrast")]
        rows = [[facts["positive"], facts["negative"], facts["contrast"]]]
        if "level" in facts:
            columns.append(Column("level", "number", "level"))
            rows[0].append(facts["level"])
        blocks.append(
            Table("What silence says: the chance that a pair is observed, by its label", columns, rows, half=True)
        )
    if exposure_coefficients:
        words = {"user": "exposure of the user", "item": "exposure of the item", "pair": "exposure of the pair"}
        drawn = [
            (words[who], [Mark(value, f"{words[who]}: {value:+.3f} log odds for a standard deviation")])
            for who, value in exposure_coefficients.items()
        ]
        svg = row_chart(drawn, "log odds for a standard deviation", "What exposure adds to the prediction")
        table = Table(
            "Voices",
            [Column("of", term="exposure_coefficients"), Column("voice", "sd", "exposure_coefficients")],
            [[words[w], v] for w, v in exposure_coefficients.items()],
        )
        caption = "Right of 0: what is seen more pleases more, beyond what else is known of it."
        blocks.append(Figure("What exposure adds", svg, caption, numbers=table, term="exposure_coefficients"))
    if grades := model.get("grades"):
        columns = [Column("rating from", "number"), Column("log odds", "number", "grades")]
        rows = list(map(list, zip(grades["levels"], grades["log_odds"], strict=True)))
        title = f"What grades say: the odds of a rating as high at the mean, believed at {grades['say']:.2f}"
        blocks.append(Table(title, columns, rows, half=True))
    shown = ("contrast", "positive", "negative", "level") if "contrast" in facts else ()
    others = {name: value for name, value in facts.items() if name not in shown}
    if others:
        rows = [[name.replace("_", " "), value] for name, value in others.items()]
        blocks.append(Table("What the imputation says", [Column("fact"), Column("value")], rows))
    return blocks


def _truth(model: Facts) -> list[Text | Table | Figure]:
    """What only a simulation knows."""
    blocks: list[Text | Table | Figure] = []
    if model["truth"]:
        columns = [
            Column("ideal loss", "metric", "ideal loss"),
            Column("bias of the log's mean error", "share", "bias"),
        ]
        columns += [Column("bias with the weights", "share", "bias")]
        keys = ("ideal_loss", "bias_of_the_log", "bias_of_the_weights")
        blocks.append(Table("Known because the log is simulated", columns, [[model["truth"].get(key) for key in keys]]))
    if model["demo"]:
        shown = ("predictor", "loss_on_log", "loss_on_all_pairs", "auc", "ndcg")
        columns = [Column("predictor"), Column("loss on the log", "metric", "error on the log")]
        columns += [Column("loss on all pairs", "metric", "ideal loss"), Column("AUC", "metric", "AUC")]
        rows = [[row[key] for key in shown] for row in model["demo"]["rows"]]
        blocks.append(
            Table("What the log says, and what is true", [*columns, Column("NDCG@5", "metric", "NDCG")], rows)
        )
    return blocks


# The section on recommendations: what people would be shown, before and after.


def lists_section(facts: Facts) -> Section:
    """What people would be shown."""
    lists = facts["lists"]
    blocks: list[Text | Table | Figure] = [_list_figures(lists)]
    if "before" not in lists:
        blocks.append(Text("There is no plain MF to compare with, so these are the lists of this run alone."))
    else:
        blocks.append(
            Text("Some users, from the least to the most active; • marks what plain MF would not have shown.")
        )
    for user in lists["users"]:
        if user["after"]:
            blocks.append(_user_table(user, "before" in lists))
    return Section("lists", "Recommendations", blocks)


def _list_figures(lists: Facts) -> Table:
    columns = [Column("lists"), Column("items shown", "count", "items shown")]
    columns += [
        Column("popularity rank", "metric", "popularity rank"),
        Column("from the top tenth", "share", "top tenth"),
    ]
    columns += [Column("overlap", "share", "overlap")]
    keys = ("items_shown", "popularity_rank", "top_tenth")
    names = {"before": "before: plain MF", "after": "after: this run"}
    rows = [
        [words, *(lists[which][key] for key in keys), lists["overlap"] if which == "after" else None]
        for which, words in names.items()
        if which in lists
    ]
    return Table(f"Lists of {lists['k']} for {lists['sampled_users']:,} users", columns, rows)


def _user_table(user: Facts, compared: bool) -> Table:
    """One user's lists side by side."""
    columns = [Column("rank", "count")]
    sides = ["before", "after"] if compared else ["after"]
    for side in sides:
        columns += [Column(side), Column("score", "chance", "score"), Column("ratings", "count", "popularity")]
    rows = []
    for place in range(max(len(user[side]) for side in sides)):
        row: list[Any] = [place + 1]
        for side in sides:
            entry = user[side][place] if place < len(user[side]) else None
            new = " •" if entry and entry.get("new") else ""
            row += [f"{entry['item']}{new}", entry["score"], entry["ratings"]] if entry else [None, None, None]
        rows.append(row)
    count = f"{user['ratings']:,} rating{'' if user['ratings'] == 1 else 's'}"
    return Table(f"User {user['user']}, {count}", columns, rows, half=True, sortable=False)


# The section on configuration: what decides the fit, and what it ran on.


def configuration_section(facts: Facts) -> Section:
    """What decides the fit, and what it ran on."""
    found, method = facts["configuration"], facts["method"]
    about = {
        "method": method["name"],
        "about": method["about"],
        "formula": method["formula"],
        "citation": method["citation"],
        "seed": str(found["seed"]),
        "seconds of the fit": f"{found['fit_seconds']:.1f}",
        "fitted with counterpoise": found["fit_version"],
    }
    if found["plain_seconds"] is not None:
        about["plain MF"] = f"{found['plain_epochs']} epochs in {found['plain_seconds']:.1f} s"
    pairs = [Column("what"), Column("value")]
    blocks: list[Text | Table | Figure] = [
        Table("The fit", pairs, [[k, v] for k, v in about.items() if v], sortable=False)
    ]
    folded = {"Asked for": "fit", "Settings of every part": "settings", "The data": "dataset"}
    blocks += [Table(words, pairs, _shown(found[key]), True) for words, key in folded.items() if found[key]]
    blocks.append(Table("Versions that made this report", pairs, _shown(found["versions"]), sortable=False))
    return Section("configuration", "Configuration", blocks)


def _shown(values: Facts) -> list[list[Any]]:
    return [[name, "not set" if value is None else str(value)] for name, value in values.items()]
