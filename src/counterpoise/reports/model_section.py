"""The section on the model: metrics with intervals, against plain MF, calibration, learning, silence, truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.reports.blocks import Column, Figure, Section, Table, Text
from counterpoise.reports.charts import Line, Mark, line_chart, row_chart

Facts = Mapping[str, Any]
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
    facts, voices = model["imputation"], model["voices"]
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
    if voices:
        words = {"user": "exposure of the user", "item": "exposure of the item", "pair": "exposure of the pair"}
        drawn = [
            (words[who], [Mark(value, f"{words[who]}: {value:+.3f} log odds for a standard deviation")])
            for who, value in voices.items()
        ]
        svg = row_chart(drawn, "log odds for a standard deviation", "What exposure adds to the prediction")
        table = Table(
            "Voices",
            [Column("of", term="voices"), Column("voice", "sd", "voices")],
            [[words[w], v] for w, v in voices.items()],
        )
        caption = "Right of 0: what is seen more pleases more, beyond what else is known of it."
        blocks.append(Figure("What exposure adds", svg, caption, numbers=table, term="voices"))
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
