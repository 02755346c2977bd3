"""`counterpoise report`: a page about a saved run, or about several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import working
from counterpoise.cli.options import OutputOptions, TestOptions, flag, option, with_options
from counterpoise.errors import ConfigError

if TYPE_CHECKING:
    from counterpoise.data.log import Dataset
    from counterpoise.recommender import DebiasedRecommender


@with_options
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folder of a saved run; with --compare several.", metavar="RUN...", show_default=False),
    ],
    kind: TestOptions,
    output: OutputOptions,
    out: Annotated[
        Path | None, option("Write the page to this file.", metavar="FILE", shown="RUN/report.html", panel="Output")
    ] = None,
    test: Annotated[
        str | None,
        option(
            "Evaluate on this file of ratings, or named dataset.", metavar="FILE", shown="that of the run", panel="Data"
        ),
    ] = None,
    data: Annotated[
        str | None,
        option(
            "Read the log of the fit from here, if it was a folder or a glob.",
            metavar="DATA",
            shown="that of the run",
            panel="Data",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        option(
            "Keep the shards of a streamed log in this folder.",
            metavar="FOLDER",
            shown="the user's cache",
            panel="Scale",
        ),
    ] = None,
    compare: Annotated[bool, flag("Show several runs side by side.", "--compare", "Evaluation")] = False,
    baseline: Annotated[
        str | None,
        option(
            "Compare with this saved run of mf, or with none.", metavar="RUN", shown="fit mf now", panel="Evaluation"
        ),
    ] = None,
) -> None:
    """Write a page about a run: how biased its log is, what the weights changed, how good it is.

    The same facts are written as JSON beside the page.

    For example:
        counterpoise report runs/mine
        counterpoise report runs/mine --test uniform.csv --test-kind uniform
        counterpoise report runs/mine runs/other --compare --out comparison.html
    """
    from counterpoise.cli.describe import wrapped
    from counterpoise.report import write as writing

    if len(runs) > 1 and not compare:
        raise ConfigError(f"`report` takes one run, got {len(runs)}. Use --compare to show several side by side.")
    with working("reporting", output.visible):
        if compare:
            if baseline is not None:
                raise ConfigError(
                    "`--baseline` goes with the report of one run; with --compare name a run of mf first."
                )
            out = out or Path(writing.COMPARISON)
            facts = writing.compare(runs, out=out, test=test, data=data, cache=cache, **kind.given())
        else:
            out = out or runs[0] / writing.REPORT
            chosen: bool | str = True if baseline is None else baseline != "none" and baseline
            own: dict[str, Any] = {"baseline": chosen, "data": data, "cache": cache}
            facts = writing.write_report(runs[0], out=out, test=test, **own, **kind.given())
    verdict = facts["verdict"]
    lines = [verdict["text"], verdict["grounds"], *facts["notes"]]
    lines += [f"{part['title']}: {part['text']}" for part in facts["summary"]]
    lines.append(f"Written to {out}; the facts are in {out.with_suffix('.json')}")
    output.show({"out": str(out), **facts}, wrapped("\n".join(lines)))


def report_beside(
    run: Path,
    model: DebiasedRecommender,
    dataset: Dataset,
    baseline: bool | DebiasedRecommender,
    *,
    visible: bool,
) -> Path:
    """Write the report of a model that was just saved in a folder, without reading its data again; its path.

    `baseline`: a fitted model to compare with, or True to fit one. `visible`: show a spinner.
    """
    from counterpoise.report.context import ReportContext, name_of_test
    from counterpoise.report.write import REPORT, write_report_of
    from counterpoise.storage import read_manifest

    context = ReportContext(model, run.name, read_manifest(run), dataset, dataset.test, name_of_test(dataset))
    with working("reporting", visible):
        write_report_of(context, run / REPORT, baseline)
    return run / REPORT
