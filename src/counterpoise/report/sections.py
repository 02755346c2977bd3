"""The sections of a run's report: from facts to paragraphs, tables and figures."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from counterpoise.balance.covariate_balance import BALANCED_SMD
from counterpoise.data.feedback import LEVEL_OF_CLICKS, Words, words_of
from counterpoise.evaluation.full_ranking import MEASURES
from counterpoise.evaluation.metrics import EMPTY_USERS, LOWER_IS_BETTER
from counterpoise.evaluation.weighted import WEIGHTED_NAMES
from counterpoise.report.charts import Bar, Line, Mark, bar_chart, line_chart, row_chart
from counterpoise.report.page import VERDICTS, Block, Column, Facts, Figure, Section, Table, pairs, records, render
from counterpoise.report.summary import CUSTOM, NO_TEST, biased_test, listed
from counterpoise.training.summary import intercept_sentence

MAX_FEATURES = 20  # rows of the love plot
MAX_FUNCTIONS = 100  # bars of the chart of dual values
METRIC_TERMS = {"auc": "AUC", "user_auc": "AUC", "ndcg": "NDCG", "precision": "precision", "recall": "recall"}
METRIC_TERMS |= {"f1": "F1", "mse": "MSE", "mae": "MAE", "log_loss": "log loss"}
STYLES = {"run": "after", "baseline": "before"}  # classes of the style sheet
MODELS = {"run": "this run", "baseline": "MF baseline"}
ROWS = ("rows", "rows", "count")
WEIGHT_COLUMNS = (
    ("effective_sample_size", "effective sample size", "count", "effective sample size"),
    ("design_effect", "design effect", "number", "design effect"),
    ("top_1_percent_share", "share of the heaviest 1%", "share", "weight tail"),
    ("max_over_mean", "largest / mean", "number", "weight tail"),
)
EXPOSURE_TITLES = {
    "exposure_coefficients": "Exposure coefficients",
    "outcome_coefficients": "Exposure coefficients of the outcome model",
}
MISSINGNESS_COLUMNS = (
    ("positive", "P(observed | positive)", "share", "observation probability"),
    ("negative", "P(observed | negative)", "share", "observation probability"),
    ("log_odds_ratio", "log odds ratio", "number", "log odds ratio"),
)
ENSEMBLE_COLUMNS = (
    ("weight", "share of the missingness model", "share", "ensemble"),
    ("exposure", "factor of exposure", "number", "exposure coefficients"),
    ("slope", "slope", "number", "slope"),
    ("intercept", "intercept", "number", "intercept"),
)


def report_page(facts: Facts) -> str:
    """The HTML page of one run."""
    method, log = facts["method"]["name"], facts["log"]["name"] or "a log"
    title = f"{'Custom method' if method == CUSTOM else method} on {log}"
    sections = (
        results_section,
        lists_section,
        log_section,
        balance_section,
        weights_section,
        model_section,
        configuration_section,
    )
    return render(title, f"Report of the run {facts['run']}", facts, [section(facts) for section in sections])


def log_section(facts: Facts) -> Section:
    """Concentration of ratings and label rates."""
    log, words = facts["log"], words_of(facts["feedback"])
    table = records(
        words("Ratings per user and item"),
        [{"of": "users"} | log["activity"], {"of": "items"} | log["popularity"]],
        ("of", words("ratings of")),
        ("min", "min", "count"),
        ("median", "median", "count"),
        ("mean", "mean", "number"),
        ("max", "max", "count"),
        ("zero", words("without ratings"), "count"),
        ("top_tenth_share", "share of the top tenth", "share", "top tenth"),
        ("gini", "Gini", "number", "Gini"),
    )
    rates = [_label_rates(log["label_rates"])] if facts["feedback"] != "clicks" else []  # of clicks all are positive
    return Section("log", "Log", [_concentration(log, words), *rates, table])


def _concentration(log: Facts, words: Words) -> Figure:
    names = {"popularity": ("items", "after"), "activity": ("users", "before")}
    lines = []
    for key, (who, style) in names.items():
        curve = log[key]["curve"]
        tips = [words(f"The top {share:.0%} of {who} have {held:.0%} of the ratings") for share, held in curve]
        lines.append(Line([(100 * share, 100 * held) for share, held in curve], tips, style))
    alt = words("Share of all ratings held by the most popular items and by the most active users")
    svg = line_chart(lines, "top % of items or users", words("% of all ratings"), alt, diagonal=True)
    caption = words("Dashed line: ratings spread equally. The higher a curve, the more concentrated the ratings.")
    return Figure(words("Concentration of ratings"), svg, caption, dict(names.values()), term="popularity")


def _label_rates(rates: Sequence[Facts]) -> Figure:
    styles = {"log": "before", "log, weighted": "after"}
    drawn, rows = [], []
    for rate in rates:
        low, high = rate["interval"] or (None, None)
        span = "" if low is None else f", interval {low:.1%} to {high:.1%}"
        tip = f"{rate['sample']}: {rate['rate']:.1%} of {rate['rows']:,} labels are positive{span}"
        ends = [None if end is None else 100 * end for end in (low, high)]
        drawn.append((rate["sample"], [Mark(100 * rate["rate"], tip, styles.get(rate["sample"], "truth"), *ends)]))
        rows.append({**rate, "low": low, "high": high})
    alt = "Label rates of the log and of uniform samples"
    svg = row_chart(drawn, "% of labels that are positive", alt, guides=(), least=1.0)
    rate_column = ("rate", "rate", "share", "label rate")
    numbers = records("Label rates", rows, "sample", rate_column, *_interval_columns("share"), ROWS)
    uniform = any(rate["sample"] not in styles for rate in rates)
    caption = "Uniform samples estimate the label rate of all pairs. The log is selected."
    caption = caption if uniform else "Without a uniform sample the label rate of all pairs is not known."
    return Figure("Label rates", svg, caption, numbers=numbers, term="label rate")


def _interval_columns(number: str) -> tuple[tuple[str, ...], ...]:
    return ("low", "from", number, "interval"), ("high", "to", number, "interval")


def balance_section(facts: Facts) -> Section:
    """Whether the weighted log has the same feature distribution as all pairs."""
    balance = facts["balance"]
    blocks: list[Block] = []
    if not balance["weighted"]:
        why = "The log is not available, so weights cannot be assigned to rows."
        if facts["weights"]["uniform"]:
            why = "This method gives every row the same weight, so weighting changes no balance."
        blocks.append(f"{why} The figure shows the unweighted log against all pairs.")
    blocks += [_love_plot(balance), *_held_out(balance), *([_path(balance["path"])] if balance["path"] else [])]
    if balance["functions"]:
        blocks += _dual_values(balance)
    elif balance["weighted"]:
        blocks.append("This method balances no functions explicitly, so there are no dual values.")
    return Section("balance", "Balance", blocks)


def _love_plot(balance: Facts) -> Figure:
    weighted = balance["weighted"]
    rows = [{**row, "change": _change(row)} for row in balance["features"]]
    known = [row for row in rows if row["smd_before"] is not None]

    def size(row: Facts) -> float:
        return float(row["change"] if weighted else abs(row["smd_before"]))

    drawn = []
    for row in sorted(sorted(known, key=lambda row: -abs(size(row)))[:MAX_FEATURES], key=lambda row: -size(row)):
        times = ("before", "after") if weighted and row["smd_after"] is not None else ("before",)
        found = [(when, row[f"smd_{when}"]) for when in times]
        marks = [Mark(abs(smd), f"{row['name']}: SMD {smd:+.3f} {when}", when) for when, smd in found]
        drawn.append((row["name"], marks))
    alt = "Love plot: imbalance of each feature" + (" before and after weighting" if weighted else "")
    svg = row_chart(drawn, "|standardised mean difference|", alt, guides=(0.0, BALANCED_SMD))
    selected, order = ("with the largest change", "improvement") if weighted else ("that differ most", "imbalance")
    shown = f"The {MAX_FEATURES} of {len(known)} features {selected}" if len(known) > MAX_FEATURES else "All features"
    caption = f"{shown}, the largest {order} first. Dashed lines: 0 and {BALANCED_SMD}."
    legend = {"before": "before", "after": "after"} if weighted else {"unweighted log": "before"}
    term = "standardised mean difference"
    numbers = records(
        "Balance of every feature",
        rows,
        ("name", "feature", "text", "feature"),
        ("population_mean", "mean, all pairs", "number"),
        ("mean_before", "mean, log", "number"),
        ("mean_after", "mean, weighted log", "number"),
        ("smd_before", "SMD before", "sd", term),
        ("smd_after", "SMD after", "sd", term),
        ("change", "change", "sd", "change"),
        ("ks_before", "KS before", "number", "KS distance"),
        ("ks_after", "KS after", "number", "KS distance"),
    )
    return Figure("Love plot", svg, caption, legend, numbers, term)


def _change(row: Facts) -> float | None:
    """|SMD| before weighting minus |SMD| after; 0 without weights, None for a feature without an SMD."""
    before, after = row["smd_before"], row["smd_after"]
    return None if before is None else 0.0 if after is None else abs(before) - abs(after)


def _held_out(balance: Facts) -> list[Block]:
    kinds = {"held_out": "of the features above", "held_out_of_method": "of the method's features"}
    times = ("before", "after") if balance["weighted"] else ("before",)
    rows = [
        [name, *(balance[key][when][size] for size in ("rms_sd", "max_sd") for when in times)]
        for key, name in kinds.items()
        if balance[key]
    ]
    if not rows:
        return []
    terms = "held-out functions", "held-out functions of the method"
    columns = [Column("functions", term=terms[len(rows) - 1])]
    columns += [Column(f"{what} {when}", "number", terms[0]) for what in ("RMS", "max") for when in times]
    return [Table("Imbalance of held-out functions, in SD", columns, rows, half=True)]


def _path(path: Facts) -> Figure:
    """Effective sample against imbalance at the strengths that were solved, a line for each fold."""
    lines, chosen, rows = [], [], []
    tip = "fold {fold}, strength {strength:.3g}: keeps {kept:.1%}, largest imbalance {imbalance:.3f} SD{note}"
    for fold, points in enumerate(path["folds"], start=1):
        known = [point | {"fold": fold, "note": ", chosen" if point["chosen"] else ""} for point in points]
        tips = [tip.format(**point) for point in known]
        places = [(point["imbalance"], 100 * point["kept"]) for point in known]
        lines.append(Line(places, tips, dots=True))
        marked = [place for place, point in enumerate(known) if point["chosen"]]
        chosen.append(Line([places[place] for place in marked], [tips[place] for place in marked], "before", dots=True))
        rows += [point | {"chosen": "yes" if point["chosen"] else "no"} for point in known]
    least = path["kept_at_least"]
    axes = "largest imbalance, in standard deviations", "% of the effective sample"
    alt = "Effective sample kept against the imbalance left, by strength"
    svg = line_chart([*lines, *chosen], *axes, alt, include_y=(100 * least, 100), guide=100 * least)
    each = "A line for each fold, whose features are learned from the other rows. " if len(lines) > 1 else ""
    size, term = "effective sample size", "path of strengths"
    numbers = records(
        "Path of strengths",
        rows,
        ("fold", "fold", "count"),
        ("strength", "strength", "number", term),
        ("kept", "kept", "share", size),
        ("imbalance", "largest imbalance", "number", "balanced functions"),
        ("chosen", "chosen", "text", term),
    )
    legend = {"solved on the way": "after", "chosen": "before"}
    return Figure("Path of strengths", svg, each + _path_rule(path), legend, numbers, term)


def _path_rule(path: Facts) -> str:
    rule = f"Rule: the largest strength that keeps at least {path['kept_at_least']:.1%} (dashed line)"
    if path["left"] is None:
        return f"{rule}, here {path['strength']:.3g}."
    return f"{rule}. The path ended before, at {path['strength']:.3g}: the imbalance left is within {path['left']}."


def _dual_values(balance: Facts) -> list[Block]:
    """The chart of dual values, and the table of all balanced functions."""
    functions = balance["functions"]
    largest = sorted(functions, key=lambda row: -abs(row["dual_value"]))[:MAX_FUNCTIONS]
    bars = []
    for place, row in enumerate(largest):
        tip = (
            f"{row['name']} (fold {row['fold']}): dual value {row['dual_value']:+.3g}, imbalance "
            f"{row['before_sd']:+.3f} before, {row['after_sd']:+.3f} after{', relaxed' if row['relaxed'] else ''}"
        )
        bars.append(Bar(place, place + 1, abs(row["dual_value"]), tip, "warn" if row["relaxed"] else "after"))
    alt = "Dual value of each balanced function"
    svg = bar_chart(bars, "balanced functions, largest dual value first", "|dual value|", alt)
    folds, left = max(row["fold"] for row in functions), max(abs(row["after_sd"]) for row in functions)
    relaxed = f"{balance['relaxed'] or 'No'} function{'s were' if (balance['relaxed'] or 0) > 1 else ' was'} relaxed"
    caption = (
        f"{len(functions)} functions were balanced in {folds} fold{'s' if folds > 1 else ''}; the largest remaining "
        f"imbalance is {left:.2g} SD. {relaxed}. Solver: {balance['status']}, duality gap {balance['gap']:.1e}. A "
        "large dual value: few rows of the log support the function."
    )
    legend = {"balanced": "after"} | ({"relaxed": "warn"} if any(row["relaxed"] for row in largest) else {})
    table = records(
        "Balanced functions, imbalance in standard deviations",
        [{**row, "relaxed": "yes" if row["relaxed"] else "no"} for row in functions],
        ("name", "function", "text", "balanced functions"),
        ("fold", "fold", "count"),
        ("before_sd", "before", "sd"),
        ("after_sd", "after", "sd"),
        ("dual_value", "dual value", "number", "dual value"),
        ("relaxed", "relaxed", "text", "relaxed"),
        folded=True,
    )
    return [Figure("Dual values", svg, caption, legend, term="dual value"), table]


def weights_section(facts: Facts) -> Section:
    """The distribution of the weights and the effective sample size."""
    weights, words = facts["weights"], words_of(facts["feedback"])
    if weights["uniform"]:
        return Section("weights", "Weights", [f"All {weights['rows']:,} rows have the same weight."])
    quantiles = [(name, name, "number", "weight") for name in weights["quantiles"]]
    diagnostics = records(
        "Weight diagnostics", [{**weights, **weights["quantiles"]}], ROWS, *WEIGHT_COLUMNS, *quantiles
    )
    bars = _bars(weights["histogram"], "{rows:,} rows have {low:.3g} to {high:.3g} times the mean weight")
    svg = bar_chart(bars, "weight / mean weight", "rows", "Histogram of the weights", logarithmic_x=True)
    cancel = "In training each pair counts by its exposure, so these inverse exposures cancel: they weight no row."
    blocks: list[Block] = [
        *([cancel] if facts["method"]["risk"] == "exposed" else []),
        diagnostics,
        Figure("Distribution of the weights", svg, "Logarithmic x axis.", term="weight"),
    ]
    if "by_popularity" not in weights:
        blocks.append("The log is not available, so weights cannot be assigned to users and items.")
        return Section("weights", "Weights", blocks)
    sides = {"by_popularity": ("item", "popularity"), "by_activity": ("user", "activity")}
    blocks += [_weight_by_count(weights[key], *names, words) for key, names in sides.items() if len(weights[key]) > 1]
    sizes, term = [], "effective sample size"
    for who in ("user", "item"):
        of = weights[f"per_{who}"]
        tip = f"{{rows:,}} {who}s have an effective sample size of {{low:.0%}} to {{high:.0%}} of their rows"
        axes, alt = (f"{term} / rows", f"{who}s"), f"Effective sample size of each {who} / its rows"
        svg = bar_chart(_bars(of["share_histogram"], tip), *axes, alt)
        caption = f"1: all rows of the {who} have the same weight."
        blocks.append(Figure(f"Effective sample size per {who}", svg, caption, term=term, folded=True))
        sizes += [{"of": f"per {who}", **of, **of["sizes"]}, {"of": f"per {who} / rows", **of, **of["shares"]}]
    columns = ("of", term, "text", term), ("groups", "groups", "count"), *(column[:3] for column in quantiles)
    labelled = facts["feedback"] != "clicks"  # of which all have label 1
    label_columns = ("label", "label", "text", "label"), ROWS, ("mean", "mean weight", "number", "weight")
    blocks += [
        records("Effective sample sizes per user and item", sizes, *columns, folded=True),
        *([records("Weight by label", weights["by_label"], *label_columns, half=True)] if labelled else []),
        records(
            "Rows with the largest weights",
            weights["heaviest"],
            "user",
            "item",
            ("label", "label", "number", "label"),
            ("weight", "weight", "number", "weight"),
            ("user_ratings", words("ratings of the user"), "count", "activity"),
            ("item_ratings", words("ratings of the item"), "count", "popularity"),
            folded=True,
        ),
    ]
    return Section("weights", "Weights", blocks)


def _bars(bins: Sequence[Facts], tip: str) -> list[Bar]:
    return [Bar(one["low"], one["high"], one["rows"], tip.format(**one)) for one in bins]


def _weight_by_count(groups: Sequence[Facts], who: str, term: str, words: Words) -> Figure:
    tip = (
        f"{who}s with {{from:,}} to {{to:,}} {words.row}s: mean weight {{mean:.2f}}, middle 80% from {{low:.2f}} to "
        "{high:.2f} ({rows:,} rows)"
    )
    points, band = [(g["ratings"], g["mean"]) for g in groups], [(g["low"], g["high"]) for g in groups]
    line = Line(points, [tip.format(**group) for group in groups], band=band)
    axes, alt = (words(f"ratings of the {who}"), "weight / mean weight"), words(f"Weight by the ratings of the {who}")
    svg = line_chart([line], *axes, alt, include_y=(0.0,), logarithmic_x=True, guide=1)
    caption = f"Rows in groups by the {term} of their {who}. Line: mean weight; band: middle 80% of the rows."
    return Figure(f"Weight by {term}", svg, caption, term=term)


def results_section(facts: Facts) -> Section:
    """Metrics on the test beside the baseline, their differences, and calibration."""
    model, words = facts["model"], words_of(facts["feedback"])
    blocks: list[Block] = []
    titles = words("Difference from the MF baseline"), "worse  ←  against the baseline  →  better"
    if model["ranking"]:
        blocks += ranking_tables(model["ranking"], model["test"], words)
    elif model["metrics"]:
        rule, weighted = model["evaluation"], model["weighted"]
        evaluated = (
            f"Evaluated on {model['test']['name']}: {rule['n_rows']:,} rows of {rule['n_users']:,} users, of whom "
            f"{rule['n_empty_users']:,} have no {words.positive} and {rule['n_short_users']:,} fewer than {rule['k']} "
            f"rows. In NDCG, precision, recall and F1, {EMPTY_USERS}."
            + (f" {LEVEL_OF_CLICKS}" if facts["feedback"] == "clicks" else "")
        )
        blocks.append(evaluated)
        if weighted:
            blocks += weighted_tables(weighted, words)
        estimated = bool(weighted and weighted["reason"] is None)
        if model["test"]["sample"] != "uniform" and not estimated:
            blocks.append(biased_test(words))
        blocks.append(_metric_table(model["metrics"], words, folded=estimated))
        differences = weighted["differences"].get("run", {}) if estimated else {}
        drawn = [{**row, **differences[row["metric"]]} for row in model["metrics"] if row["metric"] in differences]
        drawn = drawn or [row for row in model["metrics"] if row.get("difference")]
        if drawn:
            blocks.append(difference_figure(drawn, *titles))
    elif model["evaluation"] and "auc" in model["evaluation"]:
        rows = []
        for name, term in METRIC_TERMS.items():
            interval = model["evaluation"]["intervals"].get(name) or (None, None)
            rows.append([term if name != "user_auc" else "AUC per user", model["evaluation"][name], *interval])
        ends = [Column(name, "metric", "interval") for name in ("from", "to")]
        table = Table("Metrics at the fit", [Column("metric", term="AUC"), Column("value", "metric"), *ends], rows)
        blocks += ["The test is not available; these are the metrics at the fit.", table]
    else:
        blocks.append(NO_TEST)
    if model["calibration"]:
        blocks.append(_calibration(model["calibration"], words))
    return Section("results", "Results", blocks)


def model_section(facts: Facts) -> Section:
    """Learning curve, and the fitted parts of the method."""
    model = facts["model"]
    return Section("model", "Model", [_learning(model), *_fitted_parts(model), *_truth(model)])


def ranking_tables(ranking: Facts, test: Facts, words: Words) -> list[Block]:
    """Tables of the ranks of held-out clicks among all items, weighted by exposure and not; the first by thirds too."""
    if ranking["reason"] is not None:
        return [f"The clicks of the test could not be ranked: {ranking['reason']}."]
    first, run = next(iter(ranking["models"].items()))
    table = _beside_table(
        "Full rankings of held-out clicks, with 95% intervals",
        ranking,
        {name: f"{title}@{run['k']}" for name, title in MEASURES.items()},
        ("full ranking", "weighted by exposure"),
        words,
    )
    text = (
        f"{run['n_positives']:,} clicks of {run['n_users']:,} users of {test['name']}, ranked among all items that the "
        f"user has not clicked in training. Weighted, they count as {run['effective_sample_size']:,.0f}. "
        f"{run['assumption']}"
    )
    thirds = records(
        f"{_label(first, words)}: clicks by the popularity of their item",
        run["by_popularity"],
        ("group", "items"),
        ("items", "number", "count"),
        ("positives", "held-out clicks", "count"),
        ("share", "share of the weight", "share"),
        ("recall", f"recall@{run['k']}", "metric", "full ranking"),
        ("dcg", f"DCG@{run['k']}", "metric", "full ranking"),
    )
    return [text, table, thirds]


def _beside_table(caption: str, found: Facts, titles: Facts, terms: tuple[str, str], words: Words) -> Table:
    """Weighted metrics of several models, the differences of one from the reference, and naive values of the first.

    `found`: models, reference and differences as `weighted_facts` has them. `titles`: of the metrics, by their keys.
    """
    models, reference = found["models"], found["reference"]
    first = next(iter(models))
    shown = [name for name in found["differences"] if name == "run" or "run" not in models]
    columns = [Column("metric", term=terms[0]), *(Column(_label(name, words), "metric", terms[1]) for name in models)]
    for name in shown:
        of = "" if len(shown) == 1 else f"{_label(name, words)}: "
        against = f"{of}against {_label(reference, words)}"
        columns += [Column(against, "signed", "difference"), Column(f"{of}verdict", "verdict", "verdict")]
    columns.append(Column(f"{_label(first, words)}, naive", "metric", terms[1]))
    rows = []
    for key, title in titles.items():
        cells: list[Any] = [title]
        cells.append(with_interval({"value": models[first][key], "interval": models[first]["intervals"].get(key)}))
        cells += [model[key] for name, model in models.items() if name != first]
        for name in shown:
            difference = found["differences"][name].get(key)
            cells += (
                [None, None] if difference is None else [with_interval(difference["difference"]), difference["verdict"]]
            )
        rows.append([*cells, models[first]["naive"].get(key)])
    return Table(caption, columns, rows)


def _label(which: str, words: Words) -> str:
    """The name of a model, by its key in the facts; of a run, its own."""
    return words(MODELS[which]) if which in MODELS else which


def weighted_tables(weighted: Facts, words: Words) -> list[Block]:
    """Estimates over all pairs from a biased test beside the naive metrics of its rows; sensitivity of the first."""
    if weighted["reason"] is not None:
        return [f"There are no weighted estimates over all pairs: {weighted['reason']}."]
    first, run = next(iter(weighted["models"].items()))
    caption = "Estimates over all pairs from the biased test, with 95% intervals"
    lower = dict.fromkeys(LOWER_IS_BETTER, " (lower is better)")
    titles = {name: title.format(k=run["k"]) + lower.get(name, "") for name, title in WEIGHTED_NAMES.items()}
    table = _beside_table(caption, weighted, titles, ("AUC", "weighted estimate"), words)
    ranges = [
        [WEIGHTED_NAMES[name].format(k=run["k"]), *(end for gamma in found.values() for end in gamma)]
        for name, found in run["sensitivity"].items()
    ]
    gammas: Facts = next(iter(run["sensitivity"].values()), {})
    ends = [Column(f"{end} {gamma}", "metric", "sensitivity") for gamma in gammas for end in ("from, odds ratio", "to")]
    text = (
        f"Weighted estimates of metrics over all pairs that were not trained on. The {run['n_rows']:,} rows of the "
        f"test count as {run['effective_sample_size']:,.0f}; one row has at most {run['largest_share']:.1%} of the "
        f"weight. {run['assumption']}"
    )
    return [
        text,
        table,
        Table(
            f"Sensitivity of {_label(first, words)} to an unmeasured cause of selection",
            [Column("metric"), *ends],
            ranges,
            folded=True,
        ),
    ]


def metric_heading(row: Facts) -> str:
    """The name of a metric and its direction."""
    return str(row["name"]) + (" (lower is better)" if row["lower_is_better"] else "")


def _metric_table(rows: Sequence[Facts], words: Words, folded: bool) -> Table:
    """Every metric with its interval, that of the baseline, and the difference."""
    columns = [Column("metric", term="AUC"), Column(MODELS["run"], "metric", "interval")]
    cells = [[metric_heading(row), with_interval(row["run"])] for row in rows]
    if any("baseline" in row for row in rows):
        columns += [
            Column(words(MODELS["baseline"]), "metric", "baseline"),
            Column("difference", "signed", "difference"),
        ]
        columns += [Column("verdict", "verdict", "verdict")]
        for row, line in zip(rows, cells, strict=True):
            line += [with_interval(row["baseline"]), with_interval(row["difference"]), row["verdict"]]
    caption = "Metrics on the test, with 95% intervals over users"
    return Table(f"{caption}, of its rows as they are" if folded else caption, columns, cells, folded=folded)


def with_interval(found: Facts) -> Any:
    """[value, low, high] of a metric or of a difference; the value alone where there is no interval."""
    low, high = found.get("interval") or (found.get("low"), found.get("high"))
    return found["value"] if found["value"] is None or low is None else [found["value"], low, high]


def difference_figure(rows: Sequence[Facts], title: str, x_name: str) -> Figure:
    """Paired differences of metrics with intervals, oriented so that better is to the right."""
    drawn = []
    for row in rows:
        value, low, high = (row["difference"][key] for key in ("value", "low", "high"))
        if value is None:
            continue
        span = "" if low is None else f" ({low:+.4f} to {high:+.4f})"
        style, sign = VERDICTS[row["verdict"]][1], -1 if row["lower_is_better"] else 1
        tip = f"{row['name']}: {value:+.4f}{span}, {row['verdict']}"
        ends = [None if end is None else sign * end for end in (low, high)[::sign]]
        drawn.append((row["name"], [Mark(sign * value, tip, style, *ends)]))
    svg = row_chart(drawn, x_name, f"{title}: difference of each metric, better to the right")
    lower = [row["name"] for row in rows if row["lower_is_better"]]
    turned = f" {listed(lower)} {'are' if len(lower) > 1 else 'is'} turned round." if lower else ""
    caption = f"Right is better.{turned} Paired differences with 95% intervals; clear if the interval excludes 0."
    legend = {f"{sign} {name}": style for name, (sign, style) in VERDICTS.items()}
    return Figure(title, svg, caption, legend, term="difference")


def _calibration(found: Facts, words: Words) -> Figure:
    lines, rows = [], []
    titles = {which: words(MODELS[which]) for which in found}
    tip = "{model}: predicted {predicted:.3f}, {observed:.1%} of {rows:,} rows are positive"
    for which, part in found.items():
        bins = [{"model": titles[which], **one} for one in part["bins"]]
        rows += bins
        points, band = [(b["predicted"], b["observed"]) for b in bins], [(b["low"], b["high"]) for b in bins]
        lines.append(Line(points, [tip.format(**one) for one in bins], STYLES[which], band, whiskers=True))
    svg = line_chart(lines, "mean prediction", "share of positives", "Calibration on the test", diagonal=True)
    errors = ", ".join(f"{part['error']:.3f} ({titles[which]})" for which, part in found.items())
    caption = f"Dashed line: perfect calibration. Calibration error: {errors}."
    means = ("predicted", "predicted", "metric", "calibration"), ("observed", "positive", "metric", "label rate")
    numbers = records("Calibration", rows, "model", *means, *_interval_columns("metric"), ROWS)
    legend = {titles[which]: STYLES[which] for which in found}
    return Figure("Calibration", svg, caption, legend, numbers, term="calibration error")


def _learning(model: Facts) -> Figure:
    learning, lines, legend = model["learning"], [], {}
    for key, name, style in (("loss", "loss", "after"), ("held_out_risk", "held-out risk", "before")):
        if learning[key]:
            tips = [f"epoch {epoch}: {name} {value:.4f}" for epoch, value in learning[key]]
            lines.append(Line(learning[key], tips, style))
            legend[name] = style
    svg = line_chart(lines, "epoch", "loss", "Learning curve")
    caption = (
        f"{learning['epochs']} epochs in {learning['seconds']:.1f} s; the parameters are those of epoch "
        f"{learning['best_epoch']}. At the end the risk is {model['risk']:.4f}, the error on the log "
        f"{model['error_on_log']:.4f}."
    )
    return Figure("Learning curve", svg, caption, legend, term="loss")


def _fitted_parts(model: Facts) -> list[Block]:
    """Level, missingness model, exposure coefficients, ordinal ratings and other facts of the imputation."""
    others, blocks = dict(model["imputation"]), list[Block]()
    if others.get("log_odds_ratio") == 0:  # inactive, as the summary says
        others = {key: value for key, value in others.items() if key not in ("positive", "negative", "log_odds_ratio")}
    if "log_odds_ratio" in others:
        shown = [column for column in MISSINGNESS_COLUMNS if column[0] in others]
        caption = "Missingness model: probability that a pair is observed, by its label"
        blocks.append(records(caption, [{key: others.pop(key) for key, *_ in shown}], *shown, half=True))
    if model["ensemble"]:
        caption = "What the probe decided"
        shown = [column for column in ENSEMBLE_COLUMNS if column[0] in model["ensemble"]]
        blocks.append(records(caption, [model["ensemble"]], *shown))
    if model["intercept_shift"] and model["intercept_shift"]["shift"]:
        blocks.append(intercept_sentence(model["intercept_shift"]))
    for key, title in EXPOSURE_TITLES.items():
        if model[key]:
            blocks.append(_exposure(model[key], title))
    if ordinal := model["ordinal"]:
        columns = [Column("rating from", "number"), Column("log odds", "number", "ordinal log odds")]
        rows = list(map(list, zip(ordinal["levels"], ordinal["log_odds"], strict=True)))
        caption = f"Ordinal ratings: log odds of a rating at or above each level (weight {ordinal['weight']:.2f})"
        blocks.append(Table(caption, columns, rows, half=True))
    if others:
        blocks.append(pairs("Imputation", {name.replace("_", " "): value for name, value in others.items()}))
    return blocks


def _exposure(coefficients: Facts, title: str) -> Figure:
    rows = [{"of": f"exposure of the {who}", "value": value} for who, value in coefficients.items()]
    tip, term = "{of}: {value:+.3f} log odds per standard deviation", "exposure coefficients"
    marks = [(row["of"], [Mark(row["value"], tip.format(**row))]) for row in rows]
    svg = row_chart(marks, "log odds per standard deviation", title)
    numbers = records(title, rows, ("of", "covariate"), ("value", "coefficient", "sd", term))
    caption = "Positive: more exposed users, items or pairs have more positive labels, other things equal."
    return Figure(title, svg, caption, numbers=numbers, term=term)


def _truth(model: Facts) -> list[Block]:
    """The table of what is known in a simulation only."""
    blocks: list[Block] = []
    if truth := model["truth"]:
        columns = (
            ("ideal_loss", "ideal loss", "metric", "ideal loss"),
            ("bias_of_the_log", "bias of the unweighted log", "share", "bias"),
            ("bias_of_the_weights", "bias of the weighted log", "share", "bias"),
        )
        known = {key: truth.get(key) for key, *_ in columns}
        blocks.append(records("Known because the log is simulated", [known], *columns))
    if model["demo"]:
        table = records(
            "Loss on the log and on all pairs",
            model["demo"]["rows"],
            "predictor",
            ("loss_on_log", "loss on the log", "metric", "error on the log"),
            ("loss_on_all_pairs", "loss on all pairs", "metric", "ideal loss"),
            ("auc", "AUC", "metric", "AUC"),
            ("ndcg", "NDCG@5", "metric", "NDCG"),
        )
        blocks.append(table)
    return blocks


def lists_section(facts: Facts) -> Section:
    """Coverage and popularity of the recommended lists, and the lists of some users."""
    lists, words = facts["lists"], words_of(facts["feedback"])
    sides = [which for which in ("run", "baseline") if which in lists]
    overlaps = {"baseline": None, "run": lists["overlap"]}
    table = records(
        f"Top-{lists['k']} lists of {lists['sampled_users']:,} users",
        [{"lists": words(MODELS[which]), **lists[which], "overlap": overlaps[which]} for which in sides],
        "lists",
        ("items_shown", "items shown", "count", "items shown"),
        ("popularity_rank", "popularity rank", "metric", "popularity rank"),
        ("top_tenth", "share of the top tenth", "share", "top tenth"),
        ("overlap", "overlap", "share", "overlap"),
    )
    marked = "• marks items that are not in the baseline's list." if "baseline" in sides else "No baseline."
    note = words(f"Some users, from the least to the most active: item (score; its ratings in the log). {marked}")
    return Section(
        "lists", "Recommendations", [table, note, *(_user_table(u, sides, words) for u in lists["users"] if u["run"])]
    )


def _user_table(user: Facts, sides: Sequence[str], words: Words) -> Table:
    """One user's lists side by side: item, score and ratings."""

    def cell(entry: Facts | None) -> str | None:
        if entry is None:
            return None
        new = "• " if entry.get("new") else ""
        return f"{new}{entry.get('name', entry['item'])} ({entry['score']:.2f};\u00a0{entry['ratings']:,})"

    columns = [Column("rank", "count"), *(Column(words(MODELS[side])) for side in sides)]
    entries = zip_longest(*(user[side] for side in sides))
    rows = [[place, *map(cell, line)] for place, line in enumerate(entries, start=1)]
    return Table(f"User {user['user']}, {words.count(user['ratings'])}", columns, rows, half=True, sortable=False)


def configuration_section(facts: Facts) -> Section:
    """Method, settings, data and versions."""
    found, method = facts["configuration"], facts["method"]
    fit = {"method": method["name"]} | {key: method[key] for key in ("about", "formula", "citation") if method[key]}
    fit |= {"seed": found["seed"], "seconds of the fit": f"{found['fit_seconds']:.1f}"}
    fit["fitted with counterpoise"] = found["fit_version"]
    if found["baseline_seconds"] is not None:
        fit[words_of(facts["feedback"])(MODELS["baseline"])] = (
            f"{found['baseline_epochs']} epochs in {found['baseline_seconds']:.1f} s"
        )
    folded = {"Options of the fit": "fit", "Settings of every part": "settings", "Data": "dataset"}
    blocks: list[Block] = [pairs("Fit", fit, sortable=False)]
    blocks += [pairs(caption, found[key], folded=True) for caption, key in folded.items() if found[key]]
    blocks.append(pairs("Versions that made this report", found["versions"], sortable=False))
    return Section("configuration", "Configuration", blocks)
