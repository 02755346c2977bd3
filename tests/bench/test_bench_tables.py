"""Tables of results: statistics against slow formulas, facts by hand, and each layout by a small example."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import random

import numpy as np
import pytest
from scipy.special import betainc

from counterpoise.bench.published import DATASETS, published, published_lines, published_on
from counterpoise.bench.statistics import holm, interval_over_users, mean_and_deviation, paired_t_test, wilcoxon_test
from counterpoise.bench.summary import TABLE_METRIC_NAMES, summarise
from counterpoise.bench.tables import as_csv, as_json, as_latex, as_markdown, as_terminal
from counterpoise.data.protocols import PROTOCOLS, find_protocol
from counterpoise.errors import ConfigError, DataError

NAN = math.nan
METRICS = {protocol: find_protocol(protocol).metrics for protocol in ("honest", "paper")}


def fit(title, values, seed, group="baseline", family="ips", **changes):
    """One row of results; `values` are AUC, NDCG and F1 by both rules, or None for a fit that is still to come."""
    metrics = (
        None if values is None else {m: v for names in METRICS.values() for m, v in zip(names, values, strict=True)}
    )
    row = {"dataset": "coat", "method": title.lower(), "title": title, "group": group, "family": family}
    row |= {"preset": "default", "protocol": "paper", "seed": seed, "k": 5, "seconds": 2.0, "failed": None}
    return row | {"metrics": metrics, "replicates": {}} | changes


def several(title, aucs, group="baseline", family="ips", **changes):
    """One row for each AUC, with seeds 0, 1, ..."""
    return [fit(title, (auc, auc - 0.1, auc - 0.2), seed, group, family, **changes) for seed, auc in enumerate(aucs)]


def paper_table(rows, *args, **options):
    """The table of the paper's protocol and metrics."""
    return summarise(rows, *args, **{"metrics": METRICS["paper"]} | options)


def cells(table, metric="auc", section=0):
    return {line.title: line.cells[metric] for line in table.sections[section].lines}


SMALL = [
    *several("IPS", [0.70, 0.72, 0.70, 0.72, 0.71]),
    *several("AKBIPS-Gau", [0.73, 0.752, 0.73, 0.752, 0.741], "ours"),
    *several("DR", [0.70, 0.71, 0.70, 0.71, 0.705], family="dr"),
    *several("MBDR", [0.66, 0.66, 0.65, 0.66, 0.67], "ours", "dr"),
    *several("my_own|50%", [0.69] * 4, "own", "dr"),
    fit("my_own|50%", None, 4, "own", "dr", failed="the loss\nis nan."),
    fit("Later", None, 0, "own", "dr"),
]
MISSING = [{"dataset": "yahoo-r3", "missing": "Ask for R3 & put it there."}]


# Statistics


def test_the_deviation_is_that_of_a_sample():
    mean, deviation = mean_and_deviation([1.0, 2.0, 6.0])
    assert (mean, deviation) == (3.0, pytest.approx(math.sqrt((4 + 1 + 9) / 2)))
    assert mean_and_deviation([5.0])[0] == 5.0
    assert math.isnan(mean_and_deviation([5.0])[1])
    assert all(map(math.isnan, mean_and_deviation([])))


def test_the_t_test_follows_its_formula():
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.2, 1, 7), rng.normal(0, 1, 7)
    d = [a - b for a, b in zip(first, second, strict=True)]
    mean = sum(d) / 7
    t = mean / math.sqrt(sum((x - mean) ** 2 for x in d) / 6 / 7)
    expected = betainc(6 / 2, 1 / 2, 6 / (6 + t * t))  # P(|T| > |t|) of Student's T with 6 degrees of freedom
    assert paired_t_test(first, second) == pytest.approx(expected)
    assert paired_t_test(second, first) == pytest.approx(expected)


@pytest.mark.parametrize("d", [[0.3, -0.1, 0.2, 0.5, 0.4], [0.1, 0.1, -0.2, 0.3, 0.2, 0.0], [0.0, 0.5, 0.0, 0.25, 0.0]])
def test_wilcoxon_matches_enumeration_with_ties_and_zeros(d):
    sizes = [abs(x) for x in d if x]
    ranks = [sum(other < x for other in sizes) + (1 + sizes.count(x)) / 2 for x in sizes]
    off = abs(sum(rank for rank, x in zip(ranks, [x for x in d if x], strict=True) if x > 0) - sum(ranks) / 2)
    signs = list(itertools.product([0, 1], repeat=len(ranks)))
    as_far = [abs(np.dot(one, ranks) - sum(ranks) / 2) >= off - 1e-9 for one in signs]
    assert wilcoxon_test(d, np.zeros(len(d))) == pytest.approx(sum(as_far) / len(signs))


@pytest.mark.parametrize("test", [paired_t_test, wilcoxon_test])
def test_equal_differences_give_no_p_value(test):
    assert test([0.7, 0.8, 0.6, 0.5, 0.9], [0.7, 0.8, 0.6, 0.5, 0.9]) == 1.0
    assert math.isnan(test([0.7, 0.8, 0.6, 0.5, 0.9], [0.6, 0.7, 0.5, 0.4, 0.8]))


@pytest.mark.parametrize("test", [paired_t_test, wilcoxon_test])
def test_fewer_than_five_pairs_give_no_p_value(test):
    first, second = [0.70, 0.81, 0.62, 0.55, 0.93], [0.60, 0.70, 0.50, 0.40, 0.80]
    assert test(first, second) < 0.07
    assert all(math.isnan(test(first[:pairs], second[:pairs])) for pairs in range(5))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([0.02, NAN, 0.01]) == pytest.approx([0.02, NAN, 0.02], nan_ok=True)
    assert len(holm([])) == 0


def test_holm_keeps_the_order_and_only_raises():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 20):
        p = rng.random(size) ** 3
        corrected = holm(p)
        assert (np.diff(corrected[np.argsort(p)]) >= 0).all()
        assert ((corrected >= p) & (corrected <= np.minimum(1, size * p))).all()


def test_the_interval_over_users_by_loops():
    replicates = np.random.default_rng(0).normal(size=(3, 41))
    means = sorted(sum(replicates[seed][r] for seed in range(3)) / 3 for r in range(41))
    assert interval_over_users(replicates, 0.95) == pytest.approx((means[1], means[39]))  # 2.5 and 97.5 % of 40 steps
    replicates[1, 7] = NAN  # a replicate in which the metric is not defined does not count
    left = sorted(np.delete(replicates, 7, axis=1).mean(axis=0))
    assert interval_over_users(replicates, 1.0) == pytest.approx((left[0], left[-1]))
    assert all(map(math.isnan, interval_over_users(np.empty(0))))


# Facts


def test_the_published_numbers_are_those_of_the_paper():
    best = published("paper", "AKBDR-Gau", "coat", "auc", 5)
    assert (best.mean, best.std, best.significant) == (0.746, 0.004, True)
    assert published("paper", "DR-JL", "yahoo-r3", "ndcg_one", 5).mean == 0.653
    last = published("paper", "SDR", "kuairec", "f1_one", 20)
    assert last == published("paper", "StableDR", "kuairec", "f1_one", 20)
    assert last.mean == 0.143
    assert published("paper", "SDR", "kuairec", "f1_one", 50) is None
    assert published("paper", "SDR", "kuairec", "f1", 20) is None  # another rule for users without a positive
    assert published("paper", "MF", "simulated", "auc", 5) is None
    assert published("paper", "AKBDR-Gau", "coat", "mse", 5) is None
    assert published("honest", "MF", "coat", "auc", 5) is None


def test_published_numbers_are_those_of_their_own_block():
    for protocol, auc in (("paper", 0.703), ("d-dr", 0.743), ("cdr", 0.705)):
        assert published(protocol, "MF", "coat", "auc", 5).mean == auc
    assert published("calibration", "IPS", "coat", "dcg", 6).mean == 1.201
    assert published("calibration", "IPS", "coat", "dcg", 2).mean == 0.747
    assert math.isnan(published("counter-if", "BPR", "yahoo-r3", "map", 5).std)


def test_published_rows_are_of_known_protocols_datasets_and_metrics():
    lines = published_lines()
    assert [line["protocol"] for line in lines] == sorted(
        (line["protocol"] for line in lines), key=list(PROTOCOLS).index
    )
    for name, protocol in PROTOCOLS.items():
        assert set(protocol.metrics) <= set(TABLE_METRIC_NAMES)
        for dataset in DATASETS:
            for numbers in published_on(name, dataset).values():
                assert {metric for metric, _ in numbers} == set(protocol.metrics)
                if protocol.datasets:
                    assert protocol.datasets[dataset].k in {k for _, k in numbers} or protocol.metrics == ("auc",)


def test_quoted_rows_of_upo_are_those_of_the_paper():
    """So the rules of the paper are taken for that protocol."""
    for dataset, title in itertools.product(("coat", "yahoo-r3"), ("MF", "IPS")):
        quoted, own = (published_on(name, dataset)[title] for name in ("upo", "paper"))
        assert {key: one.mean for key, one in quoted.items()} == {key: one.mean for key, one in own.items()}


def test_the_marks_are_those_of_the_paper():
    """With the paper's means as results, the best baselines of its table are the underlined ones."""
    titles = [
        "MF",
        "IPS",
        "SNIPS",
        "ASIPS",
        "IPS-V2",
        "WKBIPS-Exp",
        "AKBIPS-Exp",
        "AKBIPS-Gau",
        "DR",
        "DR-JL",
        "DR-MSE",
    ]
    titles += ["MR", "TDR", "TDR-JL", "SDR", "DR-V2", "WKBDR-Gau", "AKBDR-Exp", "AKBDR-Gau"]
    rows = []
    for title in titles:
        values = [published("paper", title, "yahoo-r3", name, 5).mean for name in METRICS["paper"]]
        group = "ours" if "KB" in title else "baseline"
        rows.append(
            fit(title, values, 0, group, "ips" if "IPS" in title or title == "MF" else "dr", dataset="yahoo-r3")
        )
    table = paper_table(rows[::-1])
    marked = {m: [title for title, cell in cells(table, m).items() if cell.best_baseline] for m in METRICS["paper"]}
    assert marked == {"auc": ["IPS-V2", "MR"], "ndcg_one": ["IPS-V2", "TDR"], "f1_one": ["IPS-V2", "TDR", "SDR"]}
    bold = [title for title, cell in cells(table, "f1_one").items() if cell.best]
    assert bold == ["AKBIPS-Exp", "AKBIPS-Gau", "TDR", "SDR", "AKBDR-Gau"]
    assert [line.title for line in table.sections[0].lines] == titles


def test_comparison_with_best_baseline_is_over_common_seeds():
    second = [0.70, 0.71, 0.705, 0.72, 0.70, 0.71]
    rows = several("IPS", second) + several("MF", [0.6] * 6, family="naive")
    first = [0.72, 0.735, 0.716, 0.74, 0.71]
    rows += several("AKBIPS-Gau", first, "ours")
    found = cells(summarise(rows))["AKBIPS-Gau"].comparison
    assert (found.against, found.seeds, found.better) == ("IPS", 5, True)
    assert found.difference == pytest.approx((0.02 + 0.025 + 0.011 + 0.02 + 0.01) / 5)
    assert found.t_p == found.t_p_holm == pytest.approx(paired_t_test(first, second[:5]))
    assert found.wilcoxon_p == pytest.approx(2 / 2**5)  # of five pairs all of one sign
    assert found.significant
    assert found.significant_holm
    assert cells(summarise(rows))["IPS"].comparison is None


def test_the_correction_counts_all_methods_compared():
    rows = several("IPS", [0.70, 0.71, 0.705, 0.7, 0.71]) + several("DR", [0.70, 0.71, 0.705, 0.7, 0.71], family="dr")
    rows += several("AKBIPS-Gau", [0.72, 0.735, 0.716, 0.71, 0.73], "ours")
    rows += several("AKBDR-Gau", [0.705, 0.70, 0.71, 0.71, 0.70], "ours", "dr")
    found = {title: cell.comparison for title, cell in cells(summarise(rows)).items() if cell.comparison}
    assert found["AKBIPS-Gau"].t_p_holm == pytest.approx(2 * found["AKBIPS-Gau"].t_p)
    assert found["AKBDR-Gau"].against == "DR"
    assert not found["AKBDR-Gau"].significant


def test_too_few_seeds_have_no_mark_and_the_table_says_so():
    few, enough = (
        several("IPS", [0.70, 0.71, 0.705, 0.72, 0.7][:n]) + several("Own", [0.80, 0.82, 0.81, 0.82, 0.8][:n], "own")
        for n in (4, 5)
    )
    note = "With fewer than 5 seeds a difference is not tested and has no mark."
    for rows, mark, noted in ((few, "", True), (enough, "*†", False)):
        (means, differences), latex = as_terminal(summarise(rows, metrics=["auc"])), as_latex(summarise(rows))
        assert means.rows[1][3].lstrip("0123456789. ±") == mark
        assert (note in means.notes, "p -" in differences.rows[0][2], note in latex) == (noted, noted, noted)


def test_worse_has_a_mark_of_its_own_and_lower_error_is_better():
    def row(title, mse, seed, group="baseline"):
        return fit(title, None, seed, group, metrics={"mse": mse})

    rows = [row("IPS", 0.20 + s / 100, s) for s in range(5)] + [row("SNIPS", 0.30, s) for s in range(5)]
    rows += [row("Low", 0.10 + s * s / 300, s, "own") for s in range(5)]
    rows += [row("High", 0.40 + s * s / 300, s, "own") for s in range(5)]
    found = cells(summarise(rows, metrics=["mse"]), "mse")
    assert (found["IPS"].best_baseline, found["SNIPS"].best_baseline) == (True, False)
    assert (found["Low"].best, found["IPS"].best, found["High"].best) == (True, True, False)
    low, high = found["Low"].comparison, found["High"].comparison
    assert low.against == high.against == "IPS"
    assert (low.significant, low.better, low.difference < 0) == (True, True, True)
    assert (high.significant, high.better) == (True, False)
    means = as_terminal(summarise(rows, metrics=["mse"]))[0]
    assert {line[0]: line[3][-2:] for line in means.rows if line[0] in ("Low", "High")} == {"Low": "*†", "High": "↓†"}
    assert "↓ worse than it by the same test." in means.notes


def test_intervals_of_differences_pair_the_replicates_of_a_seed():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, (2, 50))  # shared by both methods, as they see the same users
    rows = [fit("IPS", (0.7, 0.6, 0.5), s, replicates={"auc": list(0.7 + noise[s])}) for s in range(2)]
    gains = rng.normal(0.05, 0.001, (2, 50))
    rows += [
        fit("AKBIPS-Gau", (0.75, 0.6, 0.5), s, "ours", replicates={"auc": list(0.7 + noise[s] + gains[s])})
        for s in range(2)
    ]
    found = cells(summarise(rows))
    assert found["AKBIPS-Gau"].comparison.interval == pytest.approx(interval_over_users(gains))
    assert found["IPS"].interval == pytest.approx(interval_over_users(0.7 + noise))
    assert all(map(math.isnan, cells(summarise(rows), "f1")["IPS"].interval))


def test_the_order_of_rows_does_not_matter():
    rows = SMALL + several("MF", [0.5, 0.6], dataset="simulated", family="naive") + several("MF", [0.5], preset="paper")
    expected = as_json(summarise(rows, MISSING))
    for seed in range(5):
        shuffled = random.Random(seed).sample(rows, len(rows))
        assert as_json(summarise(shuffled, MISSING)) == expected


def test_failed_seed_changes_no_mean_and_is_noted():
    before = summarise(SMALL)
    after = summarise([*SMALL, fit("IPS", (9.0, 9.0, 9.0), 5, failed="out of memory")])
    assert {t: c.mean for t, c in cells(before).items()} == pytest.approx(
        {t: c.mean for t, c in cells(after).items()}, nan_ok=True
    )
    line = after.sections[0].lines[0]
    assert (line.done, line.failed, line.pending) == ([0, 1, 2, 3, 4], {5: "out of memory"}, [])
    assert "IPS: 5 of 6 seeds; seed 5 failed (out of memory)." in as_terminal(after)[0][3]
    assert "AKBIPS-Gau: 5 of 6 seeds; 1 not yet run." in as_terminal(after)[0][3]


def test_published_numbers_need_the_same_test_rule_and_k():
    def published_in(metric, **changes):
        row = fit("MF", (0.7, 0.6, 0.5), 0, **{"family": "naive"} | changes)
        return cells(summarise([row], metrics=[metric]), metric)["MF"].published

    assert published_in("auc").mean == published_in("auc", k=10).mean == 0.703
    assert published_in("ndcg_one").mean == 0.605
    assert published_in("ndcg_one", k=10) is None
    assert published_in("ndcg") is None
    assert published_in("auc", group="own") is None
    assert published_in("auc", protocol="honest") is None


def test_a_table_of_the_honest_protocol_has_no_published_columns():
    rows = [row | {"protocol": "honest"} for row in SMALL]
    means, *_ = as_terminal(summarise(rows))
    assert means.columns == ["method", "block", "seeds", "AUC", "NDCG@5", "F1@5"]
    assert not any("ublished" in note for note in means.notes)
    assert "NDCG@5, F1@5: users without a positive in the test are left out." in means.notes
    assert "published" in as_terminal(paper_table(SMALL))[0].columns


def test_methods_of_other_families_are_compared_with_all():
    rows = (
        several("IPS", [0.8, 0.81]) + several("DR", [0.7, 0.71], family="dr") + several("S", [0.6, 0.63], "own", "new")
    )
    found = cells(summarise(rows))
    assert found["S"].comparison.against == "IPS"
    assert not found["S"].best
    assert found["DR"].best_baseline


def test_an_undefined_metric_is_no_zero():
    rows = [fit("IPS", (0.7, None, NAN), 0), fit("IPS", (0.8, 0.5, NAN), 1)]
    found = paper_table(rows).sections[0].lines[0].cells
    assert (found["ndcg_one"].seeds, found["ndcg_one"].mean) == (1, 0.5)
    assert found["f1_one"].seeds == 0
    assert as_terminal(paper_table(rows))[0][2][0][3:] == [
        *("0.750 ± 0.071", "0.717", "+0.033"),
        *("0.500 (1 seed)", "0.617", "-0.117"),
        *("-", "0.473", "-"),
    ]


def test_bad_rows_and_metrics_are_named():
    with pytest.raises(DataError, match="two rows with seed 0"):
        summarise([fit("IPS", (0.7, 0.6, 0.5), 0)] * 2)
    with pytest.raises(DataError, match="must have 'family', got"):
        summarise([fit("IPS", (0.7, 0.6, 0.5), 0, family=None)])
    with pytest.raises(ConfigError, match=r"`metrics` must be one of 'auc'.*got 'ndcg_zero'"):
        summarise([], metrics=["ndcg_zero"])
    with pytest.raises(ConfigError, match="at least one"):
        summarise([], metrics=[])


# Layouts


def small():
    return summarise(SMALL, MISSING, metrics=["auc", "ndcg_one"])


def test_terminal_shows_means_then_differences_then_missing_datasets():
    means, differences, missing = as_terminal(small())
    assert means[0] == "coat, preset default, protocol paper"
    assert means[1] == ["method", "block", "seeds", "AUC", "published", "diff", "NDCG@5 (paper)", "published", "diff"]
    assert means[2] == [
        ["IPS", "IPS", "5", "0.710 ± 0.010", "0.717", "-0.007", "0.610 ± 0.010", "0.617", "-0.007"],
        ["AKBIPS-Gau", "IPS", "5", "0.741 ± 0.011*†", "0.730", "+0.011", "0.641 ± 0.011*†", "0.633", "+0.008"],
        ["DR", "DR", "5", "0.705 ± 0.005", "0.718", "-0.013", "0.605 ± 0.005", "0.623", "-0.018"],
        ["MBDR", "DR", "5", "0.660 ± 0.007↓†", "-", "-", "0.560 ± 0.007↓†", "-", "-"],
        ["Later", "DR", "0 of 5", "-", "-", "-", "-", "-", "-"],
        ["my_own|50%", "DR", "4 of 5", "0.690 ± 0.000", "-", "-", "0.590 ± 0.000", "-", "-"],
    ]
    assert means[3][-2:] == [
        "Later: 0 of 5 seeds; 5 not yet run.",
        "my_own|50%: 4 of 5 seeds; seed 4 failed (the loss is nan).",
    ]
    assert differences[2] == [
        ["AKBIPS-Gau", "IPS", "+0.031 p <0.001 (<0.001)", "+0.031 p <0.001 (<0.001)"],
        ["MBDR", "DR", "-0.045 p <0.001 (<0.001)", "-0.045 p <0.001 (<0.001)"],
        ["my_own|50%", "DR", "-0.015 p -", "-0.015 p -"],
    ]
    assert differences[3][1] == "AUC against IPS (block IPS), DR (block DR)."
    assert missing == ("datasets not found", [], [], ["yahoo-r3: not found. Ask for R3 & put it there."])


MARKDOWN = r"""### coat, preset default, protocol paper

| method       | block | seeds  | AUC                      | published | diff   |
| ------------ | ----- | ------ | ------------------------ | --------- | ------ |
| IPS          | IPS   | 5      | <u>**0.710**</u> ± 0.010 | 0.717     | -0.007 |
| AKBIPS-Gau   | IPS   | 5      | **0.741** ± 0.011\*†     | 0.730     | +0.011 |
| DR           | DR    | 5      | <u>**0.705**</u> ± 0.005 | 0.718     | -0.013 |
| MBDR         | DR    | 5      | 0.660 ± 0.007↓†          | -         | -      |
| Later        | DR    | 0 of 5 | -                        | -         | -      |
| my\_own\|50% | DR    | 4 of 5 | **0.690** ± 0.000        | -         | -      |

- Mean ± standard deviation over 5 seeds.
- Bold: the best two of each block. Underlined: its best baseline.
- \* better than the best baseline of its block by the paired t-test over seeds, p \<= 0.05.
- ↓ worse than it by the same test.
- † also after Holm's correction over all methods compared here.
"""


def test_markdown_is_aligned_marked_and_escaped():
    text = as_markdown(summarise(SMALL, MISSING, metrics=["auc"]))
    assert text.startswith(MARKDOWN)
    assert text.endswith("\n\n### datasets not found\n\n- yahoo-r3: not found. Ask for R3 \\& put it there.\n")
    assert "- my\\_own\\|50%: 4 of 5 seeds; seed 4 failed (the loss is nan).\n" in text


def test_markdown_has_intervals_over_users_with_replicates():
    rows = [fit("IPS", (0.7, 0.6, 0.5), 0, replicates={"auc": [0.6, 0.7, 0.8]})]
    text = as_markdown(summarise(rows, metrics=["auc"], level=1.0))
    assert "| IPS    | IPS   | 0.600 to 0.800 |\n\n- 100 % bootstrap intervals over users" in text


LATEX = r"""
\begin{tabular}{l cc cc}
\toprule
 & \multicolumn{2}{c}{\textsc{coat}} & \multicolumn{2}{c}{\textsc{kuairec}} \\
\cmidrule(lr){2-3} \cmidrule(lr){4-5}
Method & AUC & NDCG@5 (paper) & AUC & NDCG@20 (paper) \\
\midrule
MF & -- & -- & \underline{\textbf{0.750}}$_{\pm0.014}$ & \underline{\textbf{0.650}}$_{\pm0.014}$ \\
IPS & \underline{\textbf{0.710}}$_{\pm0.010}$ & \underline{\textbf{0.610}}$_{\pm0.010}$ & -- & -- \\
AKBIPS-Gau & \textbf{0.741}$^{*\dagger}_{\pm0.011}$ & \textbf{0.641}$^{*\dagger}_{\pm0.011}$ & -- & -- \\
\midrule
DR & \underline{\textbf{0.705}}$_{\pm0.005}$ & \underline{\textbf{0.605}}$_{\pm0.005}$ & -- & -- \\
MBDR & 0.660$^{\downarrow\dagger}_{\pm0.007}$ & 0.560$^{\downarrow\dagger}_{\pm0.007}$ & -- & -- \\
Later & -- & -- & -- & -- \\
my\_own\textbar{}50\% & \textbf{0.690}$_{\pm0.000}$ & \textbf{0.590}$_{\pm0.000}$ & -- & -- \\
\bottomrule
\end{tabular}
"""


def test_latex_has_the_layout_of_the_paper():
    rows = SMALL + several("MF", [0.74, 0.76], family="naive", dataset="kuairec", k=20)
    text = as_latex(summarise(rows, MISSING, metrics=["auc", "ndcg_one"]))
    assert LATEX in text
    assert "over 2 to 5 seeds (preset default, protocol paper)" in text
    assert "\nNDCG@5 (paper), NDCG@20 (paper): users without a positive in the test count with NDCG 1" in text
    assert "\ncoat, my\\_own\\textbar{}50\\%: 4 of 5 seeds; seed 4 failed (the loss is nan).\\par\n" in text
    assert "\nyahoo-r3: not found. Ask for R3 \\& put it there.\\par\n" in text
    assert text.count("{") == text.count("}")


def test_latex_has_a_table_for_each_preset_and_protocol():
    rows = several("MF", [0.7]) + several("MF", [0.7], preset="paper") + several("MF", [0.7], protocol="honest")
    text = as_latex(summarise(rows))
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == 3
    assert as_latex(summarise([], MISSING)) == "% yahoo-r3: not found. Ask for R3 & put it there.\n"


def test_names_are_escaped_in_every_layout():
    name = "a\\b{c}$d_e^f~g<h>#|i\n%&*`[j](k)\x1b[1m--x"
    table = summarise(several(name, [0.7, 0.8], "own"))
    assert r"a\textbackslash{}b\{c\}\$d\_e\textasciicircum{}f\textasciitilde{}g\textless{}h" in as_latex(table)
    assert r"\#\textbar{}i \%\&*`[j](k)[1m-{}-x & " in as_latex(table)
    row = as_markdown(table).splitlines()[4]
    assert r"| a\\b{c}\$d\_e^f\~g\<h\>\#\|i %\&\*\`\[j\](k)\[1m--x | IPS " in row
    assert as_terminal(table)[0][2][0][0] == "a\\b{c}$d_e^f~g<h>#|i %&*`[j](k)[1m--x"
    assert next(csv.DictReader(io.StringIO(as_csv(table))))["title"] == name


def test_csv_has_one_row_a_cell_and_blanks_for_nan():
    rows = list(csv.DictReader(io.StringIO(as_csv(small()))))
    assert [(row["title"], row["metric"]) for row in rows[:3]] == [
        ("IPS", "auc"),
        ("IPS", "ndcg_one"),
        ("AKBIPS-Gau", "auc"),
    ]
    assert len(rows) == 6 * 2 + 1
    best = rows[2]
    assert (best["seeds"], best["against"], best["common_seeds"], best["significant"]) == ("5", "IPS", "5", "1")
    assert float(best["mean"]) == pytest.approx(0.741)
    assert float(best["published_difference"]) == pytest.approx(0.011)
    later = next(row for row in rows if row["title"] == "Later")
    assert (later["mean"], later["seeds_pending"], later["note"]) == ("", "5", "0 of 5 seeds; 5 not yet run")
    filled = {name: value for name, value in rows[-1].items() if value}
    assert filled == {"dataset": "yahoo-r3", "note": "not found. Ask for R3 & put it there."}


def test_json_has_all_facts_and_no_nan():
    facts = json.loads(as_json(small()), parse_constant=pytest.fail)
    assert facts == small().to_dict()
    section = facts["sections"][0]
    assert section["lines"][1]["cells"]["auc"]["comparison"]["against"] == "IPS"
    assert section["lines"][4]["cells"]["auc"]["mean"] is None
    assert section["lines"][5]["failed"] == {"4": "the loss\nis nan."}
    assert facts["missing"] == {"yahoo-r3": "Ask for R3 & put it there."}


def test_two_rules_of_one_metric_have_different_names():
    row = fit("IPS", None, 0, metrics={"ndcg_one": 0.7, "ndcg": 0.6})
    (_, columns, _, notes), *_ = as_terminal(summarise([row], metrics=["ndcg_one", "ndcg"]))
    assert [name for name in columns if "NDCG" in name] == ["NDCG@5 (paper)", "NDCG@5"]
    assert "NDCG@5: users without a positive in the test are left out." in notes
    assert any(
        note.startswith("NDCG@5 (paper): users without a positive in the test count with NDCG 1") for note in notes
    )
