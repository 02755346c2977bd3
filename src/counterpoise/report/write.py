"""Reports as files: one self-contained HTML page, and the facts behind it as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.config import Sample, UnknownInTest
from counterpoise.data.log import Dataset, as_log
from counterpoise.data.splits import drop_cold
from counterpoise.errors import ConfigError, CounterpoiseError, DataError
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.comparison import comparison_facts, comparison_page
from counterpoise.report.context import ReportContext, load_context, name_of_test, with_baseline, with_test
from counterpoise.report.facts import gather
from counterpoise.report.sections import report_page
from counterpoise.runs import EvaluationData, check_known
from counterpoise.storage import MANIFEST, check_output, check_writable, expanded, read_manifest, to_json, write_texts

REPORT, COMPARISON = "report.html", "comparison.html"
Baseline = bool | str | Path | DebiasedRecommender


def write_report(
    source: str | Path | DebiasedRecommender,
    dataset: Dataset | None = None,
    *,
    out: str | Path | None = None,
    test: Any = None,
    test_kind: Sample | None = None,
    unknown_users: UnknownInTest = "error",
    unknown_items: UnknownInTest = "error",
    baseline: Baseline = True,
    data: str | Path | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """Write the report of a saved run, or of a fitted model and its dataset; returns the facts that it shows.

    `out`: the page, by default report.html in the folder of the run; the facts are written next to it as .json.
    `test`: ratings to evaluate on: a log or a frame, for a run a file or the name of a dataset; by default those of
    the dataset.
    `test_kind`: how the pairs of a file were collected, "uniform" or "biased", which is assumed.
    `unknown_users`, `unknown_items`: what to do with ratings of users or items that the model does not know: an
    "error", "drop" them, or score them as `predict` does ("popular").
    `baseline`: MF without correction to compare with. True fits it now; or a saved run, a fitted model, False for none.
    `data`: where the log of a saved run is; needed where it was a folder of any depth or a glob. `cache`: where shards
    are kept if it is streamed.
    """
    if isinstance(source, DebiasedRecommender):
        context = ReportContext(source, dataset=dataset)
        if test is not None:
            test = as_log("test", test, source)
            check_known(source, test, unknown_users, unknown_items)
            kept, cold = drop_cold(test, source.cold_rows(test), unknown_users, unknown_items)
            context = with_test(context, kept, "the given test", cold)
        elif dataset is not None:
            context = with_test(context, dataset.test, name_of_test(dataset), dataset.description)
        return write_report_of(context, out or REPORT, baseline)
    if test is not None and not isinstance(test, str):
        came = type(test).__name__
        raise ConfigError(f"`test` must be a file or the name of a dataset for a saved run, got a {came}.")
    read_manifest(source)  # is it a run? Before its folder is a place to write to
    out = out or Path(source) / REPORT
    check_out(out)
    tested = evaluation_data(test, test_kind, unknown_users, unknown_items)
    context = load_context(source, tested, log=data, cache=cache)
    with _damaged_runs(source):
        return write_report_of(context, out, baseline)


def evaluation_data(
    test: str | None, test_kind: Sample | None, unknown_users: UnknownInTest, unknown_items: UnknownInTest
) -> EvaluationData | None:
    """Other ratings to evaluate a saved run on; None for those of its fit."""
    if test is not None:
        return EvaluationData(test, test_kind, unknown_users, unknown_items)
    if test_kind is not None:
        raise ConfigError("`test_kind` says how a test was collected, and none is given. Give it as `test`.")
    return None


def write_report_of(context: ReportContext, out: str | Path, baseline: Baseline) -> dict[str, Any]:
    """Write the report of a context; returns its facts."""
    check_out(out)
    if baseline is not False:
        context = with_baseline(context, None if baseline is True else baseline)
    facts = gather(context)
    _write_page(out, facts, report_page(facts))
    return facts


def compare(
    runs: Sequence[str | Path],
    *,
    out: str | Path = COMPARISON,
    test: str | None = None,
    test_kind: Sample | None = None,
    unknown_users: UnknownInTest = "error",
    unknown_items: UnknownInTest = "error",
    data: str | Path | None = None,
    cache: str | Path | None = None,
) -> dict[str, Any]:
    """Write a page with several saved runs side by side; returns the facts that it shows.

    All are evaluated on `test`, by default that of the first run, without pairs that any of them was trained on.
    The other arguments are those of `write_report`.
    """
    check_out(out)
    tested = evaluation_data(test, test_kind, unknown_users, unknown_items)
    with _damaged_runs(*runs):
        facts = comparison_facts(runs, tested, unknown_users, unknown_items, data, cache)
        _write_page(out, facts, comparison_page(facts))
    return facts


@contextmanager
def _damaged_runs(*runs: str | Path) -> Iterator[None]:
    """Turn errors while facts of saved runs are drawn into `DataError`: a damaged manifest may hold anything."""
    try:
        yield
    except CounterpoiseError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        named, reason = " and ".join(map(str, runs)), f"{type(error).__name__}: {error}"
        raise DataError(f"{named}: the facts kept there cannot be drawn ({reason}). Fit and save again.") from error


def check_out(out: str | Path) -> None:
    """Raise an error where a page cannot be written, before long work."""
    out = expanded(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"`out` must end in .html, got {str(out)!r}.")
    if out.with_suffix(".json").name == MANIFEST:
        raise ConfigError(
            f"`out` must not be {out.name}: its facts would be written to {MANIFEST}, the file of a saved run. Choose "
            "another name."
        )
    check_writable(out.parent)
    for file in (out, out.with_suffix(".json")):
        check_output(file)


def _write_page(out: str | Path, facts: Mapping[str, Any], page: str) -> None:
    write_texts({Path(out).with_suffix(".json"): to_json(facts, indent=1) + "\n", Path(out): page})
