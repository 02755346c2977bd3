"""`counterpoise recommend` and `counterpoise predict`: lists and scores of a saved run, in the ids of its log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.console import show_frame, show_json, working
from counterpoise.cli.options import (
    OUT_HELP,
    OutputOptions,
    PairColumns,
    Run,
    UnknownItems,
    UnknownUsers,
    option,
    with_options,
    words,
)
from counterpoise.errors import ConfigError, DataError

IdFile = Annotated[Path | None, option("File of such ids, one per line; there an id may hold a comma.", shown=False)]


@with_options
def recommend(
    run: Run,
    output: OutputOptions,
    out: Annotated[Path | None, option(OUT_HELP, shown="print them", panel="Output")] = None,
    k: Annotated[int, option("Number of items for each user.", "--k")] = 10,
    users: Annotated[str | None, option("User ids, separated by commas.", shown="all users")] = None,
    users_file: IdFile = None,
    candidates: Annotated[str | None, option("Item ids to choose from, separated by commas.", shown="all")] = None,
    candidates_file: IdFile = None,
    keep_seen: Annotated[bool, option("Also recommend items that the user rated in the log.", "--keep-seen")] = False,
    unknown_users: UnknownUsers = "error",
) -> None:
    """Recommend the best items for users, in their original ids."""
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    if out is not None:
        check_table_name(out)
    asked = read_ids("users", users, users_file)
    among = read_ids("candidates", candidates, candidates_file)
    with working("recommending", output.visible):
        frame = load_model(run).recommend(
            asked, k=k, filter_seen=not keep_seen, candidates=among, unknown_users=unknown_users
        )
    if out is not None:
        write_table(frame, out)
        output.show({"rows": len(frame), "out": str(out)}, f"{len(frame):,} rows written to {out}")
    elif output.as_json:
        show_json(frame.to_dicts())
    elif output.visible:
        show_frame(frame)


@with_options
def predict(
    run: Run,
    pairs: Annotated[Path, typer.Argument(help="File of user and item ids.", show_default=False)],
    out: Annotated[Path, option(OUT_HELP, shown=False, panel="Output")],
    columns: PairColumns,
    output: OutputOptions,
    unknown_users: UnknownUsers = "error",
    unknown_items: UnknownItems = "error",
) -> None:
    """Predict the probability of a positive rating for the pairs of a file."""
    from counterpoise.data.reading import read_pairs
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    check_table_name(out)
    with working("predicting", output.visible):
        model = load_model(run)
        frame = read_pairs(pairs, **columns.given())
        scores = model.predict(
            frame["user_id"], frame["item_id"], unknown_users=unknown_users, unknown_items=unknown_items
        )
        write_table(frame.with_columns(score=scores), out)
    output.show({"rows": len(frame), "out": str(out)}, f"{len(frame):,} rows written to {out}")


def read_ids(name: str, text: str | None, file: Path | None) -> list[str] | None:
    """Ids separated by commas, or the lines of a file, where an id may hold any other character."""
    if file is None:
        return words(text)
    if text is not None:
        raise ConfigError(f"`--{name}` and `--{name}-file` name the same: give one of them.")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DataError(f"{file} cannot be read: {reason}.") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise DataError(f"{file} holds no ids: `--{name}-file` takes one per line.")
    return found
