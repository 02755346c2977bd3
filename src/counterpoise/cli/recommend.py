"""`counterpoise recommend` and `counterpoise predict`: lists and scores of a saved run, in the ids of its log."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.cli.console import show_frame, show_json, working
from counterpoise.cli.options import (
    OUT_HELP,
    OutputOptions,
    PairColumns,
    RatingCol,
    Run,
    UnknownItems,
    UnknownUsers,
    flag,
    option,
    with_options,
    words,
)
from counterpoise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from counterpoise.recommender import DebiasedRecommender

IdFile = Annotated[
    Path | None,
    option(
        "Read such ids from this file, one per line; there an id may hold a comma.",
        metavar="FILE",
        shown="none",
        panel="Data",
    ),
]


@with_options
def recommend(
    run: Run,
    columns: PairColumns,
    output: OutputOptions,
    out: Annotated[Path | None, option(OUT_HELP, metavar="FILE", shown="print it", panel="Output")] = None,
    k: Annotated[int, option("Recommend this many items to each user.", "--k", metavar="NUMBER", panel="Output")] = 10,
    users: Annotated[
        str | None,
        option("Recommend to these users: ids, separated by commas.", metavar="IDS", shown="all users", panel="Data"),
    ] = None,
    users_file: IdFile = None,
    candidates: Annotated[
        str | None,
        option("Choose from these items: ids, separated by commas.", metavar="IDS", shown="all items", panel="Data"),
    ] = None,
    candidates_file: IdFile = None,
    exclude: Annotated[
        str | None,
        option("Leave these items out: ids, separated by commas.", metavar="IDS", shown="none", panel="Data"),
    ] = None,
    exclude_file: IdFile = None,
    exclude_pairs: Annotated[
        Path | None,
        option("Leave out the pairs of this file of user_id and item_id.", metavar="FILE", shown="none", panel="Data"),
    ] = None,
    ratings: Annotated[
        Path | None,
        option("Recommend to new users by their ratings in this file.", metavar="FILE", shown="none", panel="Data"),
    ] = None,
    new_items: Annotated[
        Path | None,
        option(
            "Recommend new items of this file of item_id and features too.", metavar="FILE", shown="none", panel="Data"
        ),
    ] = None,
    rating_col: RatingCol = None,
    keep_seen: Annotated[
        bool, flag("Recommend items too that the user has in the log.", "--keep-seen", "Output")
    ] = False,
    unknown_users: UnknownUsers = "error",
) -> None:
    """Recommend the best items for users, in their original ids.

    New users need no new fit: --ratings names a file of item_id and rating, with user_id where there are several.

    For example:
        counterpoise recommend runs/mine --users 17,42
        counterpoise recommend runs/mine --k 20 --out recs.parquet
        counterpoise recommend runs/mine --ratings new-user.csv
    """
    from counterpoise.data.reading import read_pairs, read_ratings
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    if out is not None:
        check_table_name(out)
    user_ids = read_ids("users", users, users_file)
    among = read_ids("candidates", candidates, candidates_file)
    without = read_ids("exclude", exclude, exclude_file)
    if exclude_pairs is not None and without is not None:
        raise ConfigError(
            "give --exclude or --exclude-pairs, not both: write the items to leave out into the file of pairs."
        )
    if ratings is not None and user_ids is not None:
        raise ConfigError("give --users (users of the log) or --ratings (users whom it does not have), not both.")
    with working("recommending", output.visible):
        model = load_model(run)
        given = partial(_reading, model, columns.given())
        choice: dict[str, Any] = {
            "k": k,
            "filter_seen": not keep_seen,
            "candidates": among,
            "exclude": without if exclude_pairs is None else read_pairs(exclude_pairs, **given(exclude_pairs)),
            "new_items": None if new_items is None else _table_of_items(model, new_items),
        }
        if ratings is not None:
            reading = given(ratings, "rating") | ({} if rating_col is None else {"rating_col": rating_col})
            frame = model.recommend_for(read_ratings(ratings, **reading, clicks=model.feedback == "clicks"), **choice)
        else:
            frame = model.recommend(user_ids, unknown_users=unknown_users, **choice)
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
    pairs: Annotated[Path, typer.Argument(help="File of user and item ids.", metavar="PAIRS", show_default=False)],
    out: Annotated[Path, option(OUT_HELP, metavar="FILE", shown=False, panel="Output")],
    columns: PairColumns,
    output: OutputOptions,
    unknown_users: UnknownUsers = "error",
    unknown_items: UnknownItems = "error",
) -> None:
    """Predict the probability of a positive rating, or of relevance, for the pairs of a file.

    For example:
        counterpoise predict runs/mine pairs.csv --out scores.csv
        counterpoise predict runs/mine pairs.csv --out s.csv --unknown-users popular
    """
    from counterpoise.data.reading import read_pairs
    from counterpoise.recommender import load_model
    from counterpoise.storage import check_table_name, write_table

    check_table_name(out)
    with working("predicting", output.visible):
        model = load_model(run)
        frame = read_pairs(pairs, **_reading(model, columns.given(), pairs))
        scores = model.predict(
            frame["user_id"], frame["item_id"], unknown_users=unknown_users, unknown_items=unknown_items
        )
        write_table(frame.with_columns(score=scores), out)
    output.show({"rows": len(frame), "out": str(out)}, f"{len(frame):,} rows written to {out}")


def _reading(model: DebiasedRecommender, given: dict[str, Any], path: Path, *more: str) -> dict[str, Any]:
    """How a file is read: as `given`, and else with the names of the log's columns, where it has them."""
    from counterpoise.data.columns import names_in
    from counterpoise.data.reading import header_of

    with suppress(DataError):  # of a file without names, or one that its reader refuses
        present = header_of(path, given.get("separator"), given.get("header"))
        names = names_in(present, model.log_facts_["columns"], ("user", "item", *more))
        return {f"{role}_col": name for role, name in names.items() if name in present} | given
    return given


def _table_of_items(model: DebiasedRecommender, path: Path) -> Any:
    from counterpoise.data.reading import read_side_table

    encoder = model.side_encoders_["item"]
    id_col = "item_id" if encoder is None or encoder.id_col_ is None else encoder.id_col_
    return read_side_table(path, id_col).frame


@with_options
def export(
    run: Run,
    out: Annotated[
        Path,
        option("Write users.parquet and items.parquet to this folder.", metavar="FOLDER", shown=False, panel="Output"),
    ],
    output: OutputOptions,
) -> None:
    """Write the vectors of users and items, whose inner products are the log odds: for a vector store.

    For example:
        counterpoise export runs/mine --out vectors
    """
    from counterpoise.recommender import load_model

    model = load_model(run)
    model.export_embeddings(out)
    rows = {"users": len(model.user_ids_), "items": len(model.item_ids_)}
    text = f"vectors of {rows['users']:,} users and {rows['items']:,} items written to {out}"
    output.show(rows | {"out": str(out)}, text)


def read_ids(name: str, text: str | None, file: Path | None) -> list[str] | None:
    """Ids separated by commas, or the lines of a file, where an id may hold any other character."""
    if file is None:
        return words(text)
    if text is not None:
        raise ConfigError(f"`--{name}` and `--{name}-file` name the same: give one of them.")
    from counterpoise.storage import MAX_TEXT_FILE, expanded, read_file

    try:
        lines = read_file(expanded(file), limit=MAX_TEXT_FILE).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(f"{file} cannot be read: it is not UTF-8 text.") from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise DataError(f"{file} holds no ids: `--{name}-file` takes one per line.")
    return found
