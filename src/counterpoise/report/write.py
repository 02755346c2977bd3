"""Reports as files: one HTML page that needs no other, and the facts behind it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterpoise.config import Unknown
from counterpoise.data.log import Dataset, FeedbackLog
from counterpoise.errors import ConfigError, CounterpoiseError, DataError
from counterpoise.recommender import DebiasedRecommender
from counterpoise.report.comparison import comparison_facts
from counterpoise.report.comparison_page import comparison_page
from counterpoise.report.context import ReportContext, material_of_run, name_of_test, with_plain
from counterpoise.report.facts import gather
from counterpoise.report.page import report_page
from counterpoise.storage import MANIFEST, check_writable, write_texts

REPORT, COMPARISON = "report.html", "comparison.html"


def write_report(
    source: str | Path | DebiasedRecommender,
    dataset: Dataset | None = None,
    *,
    out: str | Path | None = None,
    test: str | FeedbackLog | None = None,
    unknown: Unknown = "error",
    plain: bool | str | Path | DebiasedRecommender = True,
) -> dict[str, Any]:
    """Write the report of a saved run, or of a fitted model and its dataset; the facts that it shows.

    `out`: the page, by default report.html in the folder of the run; the facts lie beside it as .json.
    `test`: uniformly collected ratings to judge by (for a run a file, or a dataset's name); by default the dataset's.
    `unknown`: users of the test whom the model does not know, as in `predict`.
    `plain`: plain MF to compare with. True fits it now; or a saved run of it, a fitted model, or False for none.
    """
    if isinstance(source, DebiasedRecommender):
        given = test if isinstance(test, FeedbackLog) else None if dataset is None else dataset.test
        name = "the given test" if isinstance(test, FeedbackLog) else None if dataset is None else name_of_test(dataset)
        material = ReportContext(source, dataset=dataset, test=given, test_name=name, unknown=unknown)
        out = out or REPORT
    else:
        if isinstance(test, FeedbackLog):
            raise ConfigError("`test` must be a file or a dataset's name for a saved run, got a FeedbackLog.")
        out = out or Path(source) / REPORT
        check_out(out)
        material = material_of_run(source, test, unknown)
        with drawing(source):
            return write_report_of(material, out, plain)
    return write_report_of(material, out, plain)


@contextmanager
def drawing(*runs: str | Path) -> Iterator[None]:
    """Facts of saved runs that cannot be drawn are an error of their data: a manifest may hold anything."""
    try:
        yield
    except CounterpoiseError:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
        named, reason = " and ".join(map(str, runs)), f"{type(error).__name__}: {error}"
        raise DataError(f"{named}: the facts kept there cannot be drawn ({reason}). Fit and save again.") from error


def write_report_of(
    material: ReportContext, out: str | Path, plain: bool | str | Path | DebiasedRecommender = True
) -> dict[str, Any]:
    """The report of what is at hand, written; its facts."""
    check_out(out)
    if plain is not False:
        material = with_plain(material, None if plain is True else plain)
    facts = gather(material)
    write_page(out, facts, report_page(facts))
    return facts


def check_out(out: str | Path) -> None:
    """Raise an error where a page cannot be written: worth asking before long work."""
    out = Path(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"`out` must end in .html, got {str(out)!r}.")
    if out.with_suffix(".json").name == MANIFEST:
        raise ConfigError(
            f"`out` must not be {out.name}: the facts beside it would be called {MANIFEST}, as a saved run."
        )
    check_writable(out.parent)


def write_page(out: str | Path, facts: Mapping[str, Any], page: str) -> None:
    """The page and its facts, beside and renamed."""
    write_texts({Path(out).with_suffix(".json"): json.dumps(facts, indent=1) + "\n", Path(out): page})


def compare(
    runs: Sequence[str | Path],
    *,
    out: str | Path = COMPARISON,
    test: str | None = None,
    unknown: Unknown = "error",
) -> dict[str, Any]:
    """Write a page with several saved runs side by side; the facts that it shows.

    All are judged on `test`, by default that of the first run, without pairs that any of them has seen.
    `unknown`: users of it whom a run does not know, as in `predict`.
    """
    check_out(out)
    with drawing(*runs):
        facts = comparison_facts(runs, test, unknown)
        write_page(out, facts, comparison_page(facts))
    return facts
