"""The options that several commands share, and how their words are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from counterpoise.config import Duplicates, EmptyUsers, EngineName, Protocol, Unknown
from counterpoise.errors import ConfigError, DataError

# Errors of the library in the words of the command line: what Python calls `user_col` is `--user-col` there.

NAME, VALUE = r"`([a-z][a-z_0-9]*)`", r"""(?<!--set )\b([a-z][a-z_0-9]*)=(?:"([^"]+)"|'([^']+)'|(-?\d[\w.]*))"""


def spelling(group: Any, arguments: Sequence[str]) -> dict[str, str]:
    """{what Python calls it: the option} of the command that these arguments call."""
    command = group
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {option.name: option.opts[0] for option in command.params if option.param_type_name == "option"}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """`user_col` as `--user-col`, duplicates="last" as --duplicates last; other settings by --set.

    A name of one word, `threshold`, is left: the option is spelled as it.
    """

    def name(found: re.Match[str]) -> str:
        return f"`{options[found[1]]}`" if "_" in found[1] and found[1] in options else found[0]

    def value(found: re.Match[str]) -> str:
        chosen = found[2] or found[3] or found[4]
        if found[1] in options:
            return f"{options[found[1]]} {chosen}"
        return f"--set {found[1]}={chosen}" if options.get("settings") == "--set" else found[0]

    told = re.sub(VALUE, value, re.sub(NAME, name, text))
    return re.sub(r"`(--[a-z-]+)` \(\1\)", r"`\1`", told)  # some messages name the option themselves


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Run = Annotated[Path, typer.Argument(help="A folder that `fit` wrote.", show_default=False)]
UserCol = Annotated[str | None, typer.Option(help="Column of user ids.", show_default="user_id")]
ItemCol = Annotated[str | None, typer.Option(help="Column of item ids.", show_default="item_id")]
RatingCol = Annotated[str | None, typer.Option(help="Column of ratings.", show_default="rating")]
Threshold = Annotated[float | None, typer.Option(help="Ratings at or above it are positive.")]
TopK = Annotated[int | None, typer.Option("--k", help="Length of the lists that are evaluated.", show_default="5")]
Empty = Annotated[EmptyUsers | None, typer.Option(help="Users without a positive label.", show_default="skip")]
UnknownUsers = Annotated[Unknown, typer.Option(help="Unknown users: an error, or the items' rates of positives.")]
Separator = Annotated[str | None, typer.Option(help="Between the fields of a text file.", show_default="by ending")]
Data = Annotated[str | None, typer.Argument(help="A dataset's name, or the log: a file, a folder or a glob.")]
Method = Annotated[str | None, typer.Option(help="See `counterpoise methods`.", show_default="counterpoise")]
UserFile = Annotated[str | None, typer.Option(help="File with ids and features (numbers) of users.")]
ItemFile = Annotated[str | None, typer.Option(help="File with ids and features (numbers) of items.")]
ProbeFile = Annotated[str | None, typer.Option(help="File with a small unbiased sample.")]
Split = Annotated[Protocol | None, typer.Option(help="Of the split.", show_default="honest")]
Repeated = Annotated[Duplicates | None, typer.Option(help="Repeated pairs.", show_default="error")]
TimestampCol = Annotated[str | None, typer.Option(help="Column of timestamps, if any.")]
PropensityCol = Annotated[str | None, typer.Option(help="Of propensities, for --set weights=known.")]
ProbeFraction = Annotated[float | None, typer.Option(help="Of the test, as probe.", show_default="0.05")]
Folder = Annotated[str | None, typer.Option(help="Folder of a named dataset.")]
Memory = Annotated[str | None, typer.Option(help="Budget for a log in many files.", show_default="4GB")]
EngineWord = Annotated[EngineName | None, typer.Option("--engine", help="Who works on it.", show_default="local")]
Workers = Annotated[int | None, typer.Option(help="Threads, or workers of Ray.", show_default="all cores")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster: auto or HOST:PORT.", show_default="start one")]
Cache = Annotated[str | None, typer.Option(help="Folder for its codes.", show_default="the user's cache")]
TABLE_FIELDS = ("name", "population_mean", "mean_before", "mean_after", "smd_before", "smd_after")
INTERRUPTED = 130  # the exit code after Ctrl-C
IdFile = Annotated[Path | None, typer.Option(help="The same, one a line: ids that hold a comma.", show_default=False)]
OUT_HELP = "Where to write: .parquet, .csv or .tsv."


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def ids(name: str, text: str | None, file: Path | None) -> list[str] | None:
    """Ids separated by commas, or those of a file, one a line: there an id may hold any other letter."""
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
        raise DataError(f"{file} holds no ids: `--{name}-file` takes one a line.")
    return found


def words(text: str | None) -> list[str] | None:
    """Ids separated by commas."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]
