"""The command line: parse, call, print. No mathematics."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from counterpoise import __version__
from counterpoise.cli import bench
from counterpoise.cli.balance import balance
from counterpoise.cli.console import (
    complain,
    progress_bar,
    say,
    show_frame,
    show_json,
    show_table,
    working,
)
from counterpoise.cli.fit import fit
from counterpoise.cli.options import (
    INTERRUPTED,
    OUT_HELP,
    Empty,
    Folder,
    IdFile,
    ItemCol,
    Json,
    Memory,
    Quiet,
    RatingCol,
    Run,
    Separator,
    TopK,
    UnknownUsers,
    UserCol,
    given,
    ids,
    in_options,
    spelling,
)
from counterpoise.cli.report import report, report_beside
from counterpoise.cli.serve import serve
from counterpoise.cli.tune import tune
from counterpoise.config import Duplicates, Protocol
from counterpoise.errors import CounterpoiseError, StoppedError

# Modules that need torch or a data-frame library are imported by the commands that use them: `--help` stays quick.

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads sleep: spinning, they take the cores of others

app = typer.Typer(
    name="counterpoise",
    help="Recommenders that learn the taste, not the selection: debiased collaborative filtering.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench.app, name="bench")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the saved run.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the simulation and of the training.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Simulate a biased log with a known truth, fit a recommender, and see how far the log misleads."""
    from counterpoise.cli.demo import run_demo
    from counterpoise.storage import check_folder

    check_folder(out)
    with progress_bar("training", not (as_json or quiet)) as progress:
        result = run_demo(seed, progress)
    result.model.save(out, demo=result.to_dict(), fit=result.configuration.model_dump())
    page = report_beside(out, result.model, result.world.dataset, result.plain, wanted=not (as_json or quiet))
    if as_json:
        show_json({"run": str(out), "report": str(page), **result.to_dict()})
    if as_json or quiet:
        return
    rates = result.label_rates
    say(f"A simulated log: {result.world.dataset.train}")
    say(
        f"Users rate what they like: {rates['log']:.0%} of the logged labels are positive, "
        f"but only {rates['all pairs']:.0%} of all pairs are (a small uniform probe says {rates['probe']:.0%})."
    )
    show_table(
        ["predictor", "loss on the log", "loss on all pairs (truth)", "AUC, unbiased test", "NDCG@5, unbiased test"],
        [[row.predictor, row.loss_on_log, row.loss_on_all_pairs, row.auc, row.ndcg] for row in result.rows],
    )
    say(
        "mf learns the log as it is. skb-ips weights it, so that it resembles all pairs. counterpoise, the default,\n"
        "learns what was observed beside what is liked. No side features are used.\n"
        "What the log says of a model (first column) is not how good it is (the others).\n"
    )
    say("Recommendations of counterpoise for five users:")
    show_frame(result.model.recommend(list(range(5)), k=3))
    say(
        f"\nSaved in {out}; look at {page} in a browser. Try next:\n"
        f"  counterpoise recommend {out} --k 10 --out recs.csv\n"
        "  counterpoise fit ratings.csv --threshold 4 --out runs/mine     (columns user_id,item_id,rating)\n"
        "  counterpoise datasets      counterpoise methods      counterpoise --help"
    )


app.command()(fit)
app.command()(tune)


@app.command()
def evaluate(
    run: Run,
    test: Annotated[str, typer.Argument(help="Unbiased ratings (file, folder, glob), or a dataset's name.")],
    path: Folder = None,
    protocol: Annotated[Protocol | None, typer.Option(help="honest: leave out what the model has seen.")] = None,
    seed: Annotated[int | None, typer.Option(help="Split of a named dataset.", show_default="the run's")] = None,
    threshold: Annotated[float | None, typer.Option(help="Of positive ratings.", show_default="the run's")] = None,
    duplicates: Annotated[Duplicates, typer.Option(help="Repeated pairs.")] = "error",
    user_col: UserCol = None,
    item_col: ItemCol = None,
    rating_col: RatingCol = None,
    separator: Separator = None,
    k: TopK = None,
    empty_users: Empty = None,
    unknown: UnknownUsers = "error",
    memory: Memory = None,
    out: Annotated[Path | None, typer.Option(help="Also write the evaluation as JSON.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a saved run on unbiased ratings; in the honest protocol without pairs that the model has seen."""
    from counterpoise.runs import EvaluationData, evaluate_run
    from counterpoise.storage import write_text

    columns = given(user_col=user_col, item_col=item_col, rating_col=rating_col, separator=separator)
    options = given(path=path, protocol=protocol, seed=seed, threshold=threshold, memory=memory)
    data = EvaluationData(test, reading=columns | {"duplicates": duplicates}, **options)
    rules = given(k=k, empty_users=empty_users)
    with working("evaluating", not (as_json or quiet)):
        result, seen, protocol = evaluate_run(run, data, unknown_users=unknown, **rules)
    facts = {"protocol": protocol, "rows_seen_in_training": seen, **result.to_dict()}
    if out is not None:
        write_text(out, json.dumps(facts, indent=2) + "\n")
    if as_json:
        show_json({"run": str(run), "test": test, **facts})
    elif not quiet:
        left_out = "left out" if protocol == "honest" else "counted"
        say(f"{result}\n{seen:>7,}  rows were seen in training or in the probe: {left_out} ({protocol} protocol)")


@app.command()
def predict(
    run: Run,
    pairs: Annotated[Path, typer.Argument(help="A file with user and item ids.", show_default=False)],
    out: Annotated[Path, typer.Option(help=OUT_HELP, show_default=False)],
    user_col: UserCol = None,
    item_col: ItemCol = None,
    separator: Separator = None,
    unknown: UnknownUsers = "error",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the probability of a positive rating for the pairs of a file."""
    from counterpoise.data.reading import read_pairs
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    check_table_name(out)
    with working("predicting", not (as_json or quiet)):
        model = load_model(run)
        frame = read_pairs(pairs, **given(user_col=user_col, item_col=item_col, separator=separator))
        scores = model.predict(frame["user_id"], frame["item_id"], unknown=unknown)
        write_table(frame.with_columns(score=scores), out)
    _report_rows(len(frame), out, as_json, quiet)


@app.command()
def recommend(
    run: Run,
    out: Annotated[Path | None, typer.Option(help=OUT_HELP, show_default="print")] = None,
    k: Annotated[int, typer.Option("--k", help="Items for each user.")] = 10,
    users: Annotated[str | None, typer.Option(help="Ids, separated by commas.", show_default="all users")] = None,
    users_file: IdFile = None,
    candidates: Annotated[str | None, typer.Option(help="Item ids, separated by commas.", show_default="all")] = None,
    candidates_file: IdFile = None,
    keep_seen: Annotated[bool, typer.Option("--keep-seen", help="Also recommend what the user already rated.")] = False,
    unknown: UnknownUsers = "error",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recommend the best items for users, in their original ids."""
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    if out is not None:
        check_table_name(out)
    asked, among = ids("users", users, users_file), ids("candidates", candidates, candidates_file)
    with working("recommending", not (as_json or quiet)):
        frame = load_model(run).recommend(asked, k=k, filter_seen=not keep_seen, candidates=among, unknown=unknown)
    if out is not None:
        write_table(frame, out)
        _report_rows(len(frame), out, as_json, quiet)
    elif as_json:
        show_json(frame.to_dicts())
    elif not quiet:
        show_frame(frame)


app.command()(balance)
app.command()(report)
app.command()(serve)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the datasets that are known by name: licence, size, and where to get them."""
    from counterpoise.data.datasets import available

    rows = available()
    if as_json:
        show_json(rows)
        return
    for row in rows:
        place = f"found in {row['folder']}" if row["folder"] else "built in" if row["ready"] else row["obtain"]
        say(f"{row['name']}: {row['title']}\n  {row['size']}\n  licence: {row['licence']}\n  {place}\n")


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain one method.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or explain one, by our name or the paper's (AKBDR-Gau)."""
    from counterpoise.cli.describe import COLUMNS, method_facts, method_rows, method_text
    from counterpoise.methods import METHODS

    if name is not None:
        show_json(method_facts(name)) if as_json else say(method_text(name))
    elif as_json:
        show_json([method.to_dict() for method in METHODS.values()])
    else:
        show_table(list(COLUMNS), method_rows())
        say("counterpoise methods NAME explains one; docs/methods.md helps to choose.")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        say(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code. Bad input is one line on standard error and exit code 2."""
    given_words = sys.argv[1:] if arguments is None else arguments
    try:
        app(bench.join_lists(given_words) if given_words[:1] == ["bench"] else given_words)
        code = 0
    except StoppedError as stop:
        complain(str(stop))
        return INTERRUPTED
    except CounterpoiseError as error:
        complain(f"error: {in_options(str(error), spelling(typer.main.get_command(app), given_words))}")
        code = 2
    except (MemoryError, RuntimeError, OSError) as error:
        if not (isinstance(error, OSError | MemoryError) or "memory" in str(error)):
            raise
        complain(f"error: the machine refused: {str(error) or 'out of memory'}")
        code = 2
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    if code == INTERRUPTED:
        complain("stopped before the end. Nothing was written. The same command starts anew.")
    return code


def _report_rows(rows: int, out: Path, as_json: bool, quiet: bool) -> None:
    if as_json:
        show_json({"rows": rows, "out": str(out)})
    elif not quiet:
        say(f"{rows:,} rows written to {out}")


if __name__ == "__main__":
    sys.exit(main())
