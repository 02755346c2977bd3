"""`counterpoise report`: one page on a saved run, or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import say, show_json, working
from counterpoise.cli.options import Json, Quiet, UnknownUsers
from counterpoise.errors import ConfigError

if TYPE_CHECKING:
    from counterpoise.data.log import Dataset
    from counterpoise.recommender import DebiasedRecommender

RUNS_HELP = "A folder that `fit` wrote; with --compare several."
PLAIN_HELP = "A saved run of mf to compare with, or none."


def report(
    runs: Annotated[list[Path], typer.Argument(help=RUNS_HELP, show_default=False)],
    test: Annotated[str | None, typer.Option(help="A file with unbiased ratings, or a dataset's name.")] = None,
    out: Annotated[Path | None, typer.Option(help="The page to write.", show_default="RUN/report.html")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Put several runs side by side.")] = False,
    plain: Annotated[str | None, typer.Option(help=PLAIN_HELP, show_default="fit it now")] = None,
    unknown: UnknownUsers = "error",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write one page on a run: how biased its log is, what the weights did, how good it is. FILE.json has the facts."""
    from counterpoise.report import write as writing

    if len(runs) > 1 and not compare:
        raise ConfigError(f"`report` takes one run, got {len(runs)}. Use --compare to put several side by side.")
    with working("reporting", not (as_json or quiet)):
        if compare:
            if plain is not None:
                raise ConfigError("`--plain` goes with the report of one run; with --compare name a run of mf first.")
            out = out or Path(writing.COMPARISON)
            facts = writing.compare(runs, out=out, test=test, unknown=unknown)
        else:
            out = out or runs[0] / writing.REPORT
            chosen: bool | str = True if plain is None else plain != "none" and plain
            facts = writing.write_report(runs[0], out=out, test=test, unknown=unknown, baseline=chosen)
    if as_json:
        show_json({"out": str(out), **facts})
    elif not quiet:
        say("\n".join(summary_lines(facts)))
        say(f"Written to {out}; the facts are in {out.with_suffix('.json')}")


def summary_lines(facts: dict[str, Any]) -> list[str]:
    """The summary of a page, for a terminal."""
    return [*facts["notes"], *(f"{part['title']}: {part['text']}" for part in facts["summary"])]


def report_beside(
    run: Path, model: DebiasedRecommender, dataset: Dataset, plain: bool | DebiasedRecommender = True, *, wanted: bool
) -> Path:
    """The report of what was just saved in a folder, without reading its data again; where it lies.

    `wanted`: a sign of life meanwhile.
    """
    from counterpoise.report.context import ReportContext, name_of_test
    from counterpoise.report.write import REPORT, write_report_of
    from counterpoise.storage import read_manifest

    context = ReportContext(model, run.name, read_manifest(run), dataset, dataset.test, name_of_test(dataset))
    with working("reporting", wanted):
        write_report_of(context, run / REPORT, plain)
    return run / REPORT
