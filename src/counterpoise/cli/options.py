"""Options of the command line that several commands share, as dataclasses, and the decorator that expands them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import MISSING, dataclass, fields
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from counterpoise.cli.console import print_line, show_json
from counterpoise.config import Duplicates, EngineName, Feedback, Holdout, Sample, Unknown, UnknownInTest

if TYPE_CHECKING:
    from counterpoise.runs import FitConfig

KEYWORD = inspect.Parameter.KEYWORD_ONLY
PANELS = ("Data", "Method", "Evaluation", "Output", "Scale")  # groups of options in --help, in this order


@dataclass(frozen=True)
class OptionGroup:
    """Base of the dataclasses whose fields are options; `panel` is their heading in --help."""

    panel: ClassVar[str] = "Options"

    def given(self, *names: str) -> dict[str, Any]:
        """{field: value} of all options, or of those named, that are not None."""
        values = {name: getattr(self, name) for name in names or [field.name for field in fields(self)]}
        return {name: value for name, value in values.items() if value is not None}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand each parameter of a command that is an `OptionGroup` into one option for each of its fields.

    Typer reads options from a function's signature and does not know dataclasses. The returned function shows Typer the
    expanded signature, and calls the command with an instance of each group. Two groups must not share a field.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if isinstance(hints[name], type) and issubclass(hints[name], OptionGroup):
            groups[name] = hints[name]
            parameters += _parameters(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=KEYWORD))
    parameters.sort(key=_place)

    def expanded(**values: Any) -> None:
        given = dict(values)
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        if values.get("out") is not None:
            from counterpoise import storage

            values["out"] = given["out"] = storage.expanded(values["out"])
        with _inputs_kept(given):
            command(**values)

    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    setattr(expanded, "__signature__", inspect.Signature(parameters))  # noqa: B010  mypy knows no such attribute
    return expanded


@contextmanager
def _inputs_kept(values: Mapping[str, Any]) -> Iterator[None]:
    """Where a command has an `out`: an error, at once, if it is no file to write, and no input is written to."""
    if "out" not in values:
        yield
        return
    from counterpoise.storage import check_output, keeping

    out, others = values["out"], [value for name, value in values.items() if name != "out"]
    with keeping(paths_in(others)):
        if out is not None and not out.is_dir():
            check_output(out)
        yield


def paths_in(values: Sequence[Any]) -> list[Path]:
    """The files and folders that some values of options name, alone, in a list, between commas, or as a glob."""
    found: list[Path] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += paths_in(value)
        elif isinstance(value, str | Path):
            for name in {str(value), *str(value).split(",")}:
                with suppress(RuntimeError, ValueError, OSError):
                    place = Path(name).expanduser()
                    matched = glob(str(place), recursive=True) if has_magic(name) else []  # noqa: PTH207
                    found += [each for each in (place, *map(Path, matched)) if each.exists()]
    return found


def _place(parameter: inspect.Parameter) -> int:
    """Where the panel of an option stands in --help; those without one come first."""
    panel = get_args(parameter.annotation)[1].rich_help_panel
    return PANELS.index(panel) if panel in PANELS else -1


def option(
    text: str, *names: str, metavar: str | None = None, shown: str | bool = True, panel: str | None = None
) -> Any:
    """An option with its help text; `metavar` names its value, `shown` is the default where that is None."""
    return typer.Option(*names, help=text, metavar=metavar, show_default=shown, rich_help_panel=panel)


def flag(text: str, name: str, panel: str | None = None) -> Any:
    """An option without a value."""
    return option(text, name, metavar="", shown=False, panel=panel)


def command(app: typer.Typer) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; what its docstring has below "For example:" stands below the options of --help."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        text, _, examples = (inspect.getdoc(function) or "").partition("\nFor example:\n")
        paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
        shown = [f"  {line.strip()}" for line in examples.splitlines() if line.strip()]
        epilog = "\n".join(["Examples:", *shown]) if shown else None
        app.command(help="\n\n".join(paragraphs), epilog=epilog)(function)
        return function

    return register


def _parameters(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    """A keyword parameter for each field of a group, with the group's panel in its Typer annotation."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, info = get_args(hints[field.name])
        if isinstance(info, OptionInfo):
            info = copy(info)
            info.rich_help_panel = info.rich_help_panel or group.panel
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, KEYWORD, default=default, annotation=Annotated[kind, info])


Json = Annotated[bool, flag("Print the result as one JSON document.", "--json", "Output")]
Quiet = Annotated[bool, flag("Print nothing but errors.", "--quiet", "Output")]
Run = Annotated[
    Path,
    typer.Argument(help="Folder of a saved run, written by `counterpoise fit`.", metavar="RUN", show_default=False),
]
RATING_HELP = "Read ratings from this column."
RatingCol = Annotated[str | None, option(RATING_HELP, metavar="COLUMN", shown="rating", panel="Data")]
TimestampCol = Annotated[str | None, option("Read timestamps from this column.", metavar="COLUMN", shown="none")]
REPEATED_HELP = (
    "Where a pair occurs more than once, stop (error), keep the last row (last), or combine them (mean, sum); auto "
    "counts clicks and refuses other repeats."
)
Repeated = Annotated[Duplicates | None, option(REPEATED_HELP, metavar="RULE", shown="auto")]
FEEDBACK_HELP = "Read the rows as ratings, clicks (positives alone), or impressions (shown, clicked or not)."
Kind = Annotated[Feedback | None, option(FEEDBACK_HELP, metavar="KIND", shown="by the labels")]
ENGINE_HELP = "Read and balance logs beyond memory by threads of this process (local), or by Ray (ray)."
ADDRESS_HELP = "Use the Ray cluster at this address: auto or HOST:PORT."
Address = Annotated[str | None, option(ADDRESS_HELP, metavar="ADDRESS", shown="start one here", panel="Scale")]
UNKNOWN_USERS_HELP = (
    "For users that the log does not have: stop (error), or score items by their share of positives (popular)."
)
UnknownUsers = Annotated[Unknown, option(UNKNOWN_USERS_HELP, metavar="RULE", panel="Data")]
UNKNOWN_ITEMS_HELP = "For items that the log does not have: stop (error), or score them by the user's mean (popular)."
UnknownItems = Annotated[Unknown, option(UNKNOWN_ITEMS_HELP, metavar="RULE", panel="Data")]
TEST_KIND_HELP = "Take the pairs of the test as drawn at random from all pairs (uniform), or as selected (biased)."
FATES = "stop (error), leave them out (drop), or predict them from what is known of the other side (popular)."
COLD_HELP = f"For test rows of {{0}}s without rows in the log: {FATES}"
UNKNOWN_HELP = f"For test rows of {{0}}s that the run does not know: {FATES}"
OUT_HELP = "Write the result to this file, which ends in .parquet, .csv or .tsv."
PATH_HELP = "Look for the files of a named dataset in this folder."
PATH_SHOWN = "under COUNTERPOISE_DATA"
PROTOCOL_HELP = "Split and test by this protocol: honest, paper, or another of `counterpoise bench protocols`."


@dataclass(frozen=True)
class PairColumns(OptionGroup):
    """How a file of user-item pairs is read."""

    panel = "Data"
    user_col: Annotated[str | None, option("Read user ids from this column.", metavar="COLUMN", shown="user_id")] = None
    item_col: Annotated[str | None, option("Read item ids from this column.", metavar="COLUMN", shown="item_id")] = None
    separator: Annotated[
        str | None,
        option(
            "Split the lines of a text file at this: ';', tab, '::', ...", metavar="TEXT", shown="found in the file"
        ),
    ] = None
    header: Annotated[
        str | None,
        option(
            "Name the columns of a text file that has no header, in order: user_id,item_id,...",
            metavar="COLUMNS",
            shown="the first row",
        ),
    ] = None


@dataclass(frozen=True)
class RatingColumns(PairColumns):
    """How a file of ratings is read."""

    rating_col: RatingCol = None
    feedback: Kind = None
    threshold: Annotated[
        float | None, option("Count ratings at or above this value as positive.", metavar="RATING", shown="none")
    ] = None
    duplicates: Repeated = None


@dataclass(frozen=True)
class LogColumns(RatingColumns):
    """How a training log is read."""

    timestamp_col: TimestampCol = None
    propensity_col: Annotated[
        str | None,
        option("Read known propensities from this column, for --set weights=known.", metavar="COLUMN", shown="none"),
    ] = None


@dataclass(frozen=True)
class DataOptions(OptionGroup):
    """The log to learn from and the files that go with it."""

    panel = "Data"
    data: Annotated[
        str | None,
        typer.Argument(
            help="Name of a dataset (see `counterpoise datasets`), or your log: a file, a folder or a glob.",
            metavar="DATA",
        ),
    ] = None
    test: Annotated[
        str | None, option("Evaluate on the ratings of this file.", metavar="FILE", shown="that of the dataset")
    ] = None
    probe: Annotated[
        str | None,
        option(
            "Learn also from this small sample of pairs that were drawn at random.",
            metavar="FILE",
            shown="drawn from a uniform test",
        ),
    ] = None
    users: Annotated[
        str | None,
        option("Read features of users from this file: ids, and columns of any kind.", metavar="FILE", shown="none"),
    ] = None
    items: Annotated[
        str | None,
        option("Read features of items from this file: ids, and columns of any kind.", metavar="FILE", shown="none"),
    ] = None
    categorical: Annotated[
        str | None,
        option(
            "Read the numbers in these columns of --users and --items as categories, not as quantities.",
            metavar="COLUMNS",
            shown="none",
        ),
    ] = None
    item_names: Annotated[
        str | None,
        option("Show items by their names in this file of item ids and names.", metavar="FILE", shown="none"),
    ] = None
    item_name_col: Annotated[
        str | None,
        option(
            "Read these names from this column of --item-names, or else of --items.",
            metavar="COLUMN",
            shown="name or title",
        ),
    ] = None
    path: Annotated[str | None, option(PATH_HELP, metavar="FOLDER", shown=PATH_SHOWN)] = None
    protocol: Annotated[str | None, option(PROTOCOL_HELP, metavar="NAME", shown="honest")] = None
    probe_fraction: Annotated[
        float | None, option("Draw this share of a uniform test as probe.", metavar="SHARE", shown="0.05")
    ] = None


@dataclass(frozen=True)
class HoldoutOptions(OptionGroup):
    """What a model is evaluated on."""

    panel = "Evaluation"
    test_kind: Annotated[Sample | None, option(TEST_KIND_HELP, metavar="KIND", shown="biased")] = None
    holdout: Annotated[
        float | None,
        option("Hold this share of the log out, and evaluate on it.", metavar="SHARE", shown="none"),
    ] = None
    by: Annotated[
        Holdout | None,
        option(
            "Hold out rows at random (random), some of each user (user), the latest (time), or the last of each user "
            "(leave-last).",
            metavar="RULE",
            shown="random",
        ),
    ] = None
    unknown_users: Annotated[
        UnknownInTest | None, option(COLD_HELP.format("user"), metavar="RULE", shown="popular")
    ] = None
    unknown_items: Annotated[
        UnknownInTest | None, option(COLD_HELP.format("item"), metavar="RULE", shown="popular")
    ] = None


@dataclass(frozen=True)
class TestOptions(OptionGroup):
    """What a test of a saved run is."""

    panel = "Data"
    test_kind: Annotated[Sample | None, option(TEST_KIND_HELP, metavar="KIND", shown="biased")] = None
    unknown_users: Annotated[UnknownInTest, option(UNKNOWN_HELP.format("user"), metavar="RULE")] = "error"
    unknown_items: Annotated[UnknownInTest, option(UNKNOWN_HELP.format("item"), metavar="RULE")] = "error"


@dataclass(frozen=True)
class MethodOptions(OptionGroup):
    """What is fitted."""

    panel = "Method"
    method: Annotated[
        str | None,
        option("Fit this method; `counterpoise methods` lists them.", metavar="NAME", shown="by kind of feedback"),
    ] = None
    config: Annotated[
        Path | None, option("Take options and settings from this TOML file or saved run.", metavar="FILE", shown="none")
    ] = None
    settings: Annotated[
        list[str] | None,
        option(
            "Change a setting of the method (`counterpoise methods NAME` lists them); may be repeated.",
            "--set",
            metavar="NAME=VALUE",
        ),
    ] = None
    seed: Annotated[int | None, option("Begin all random draws from this number.", metavar="NUMBER", shown="0")] = None


@dataclass(frozen=True)
class EvaluationOptions(OptionGroup):
    """How ranking metrics are computed."""

    panel = "Evaluation"
    k: Annotated[int | None, option("Evaluate lists of this length.", "--k", metavar="NUMBER", shown="5")] = None


@dataclass(frozen=True)
class ClusterOptions(OptionGroup):
    """Where the work is done."""

    panel = "Scale"
    engine: Annotated[EngineName | None, option(ENGINE_HELP, metavar="ENGINE", shown="local")] = None
    workers: Annotated[
        int | None, option("Use this many threads, or Ray workers.", metavar="NUMBER", shown="all cores")
    ] = None
    address: Address = None


@dataclass(frozen=True)
class ScaleOptions(ClusterOptions):
    """Where the work is done, and in how much memory."""

    memory: Annotated[
        str | None, option("Stream a log in many files that needs more memory than this.", metavar="SIZE", shown="4GB")
    ] = None
    cache: Annotated[
        str | None,
        option("Keep the shards of a streamed log in this folder.", metavar="FOLDER", shown="the user's cache"),
    ] = None


@dataclass(frozen=True)
class OutputOptions(OptionGroup):
    """What is printed."""

    panel = "Output"
    as_json: Json = False
    quiet: Quiet = False

    @property
    def visible(self) -> bool:
        """Whether text for people is printed."""
        return not (self.as_json or self.quiet)

    def show(self, facts: Any, text: str) -> None:
        """Print the facts with --json, nothing with --quiet, else the text."""
        if self.as_json:
            show_json(facts)
        elif self.visible:
            print_line(text)


def fit_config(method: MethodOptions, *groups: OptionGroup, settings: Sequence[str] = ()) -> FitConfig:
    """The configuration of a fit from the options of its command; `settings` are further name=value words."""
    from counterpoise.runs import FitConfig, parse_settings, resolve

    values = {name: value for group in (method, *groups) for name, value in group.given().items()}
    flags = {name: value for name, value in values.items() if name in FitConfig.model_fields and name != "settings"}
    return resolve(method.config, flags, parse_settings([*(method.settings or []), *settings]))


def words(text: str | None) -> list[str] | None:
    """The parts of a text separated by commas."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


NAME_IN_MESSAGE = r"`([a-z][a-z_0-9]*)`"
SETTING_IN_MESSAGE = r"""(?<!--set )(?<!--search )\b([a-z][a-z_0-9]*)=(?:"([^"]+)"|'([^']+)'|(-?\d[\w.]*))"""


def option_names(group: Any, arguments: Sequence[str]) -> dict[str, str]:
    """{name of the parameter in Python: option} of the command that these arguments call."""
    command = group
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {option.name: option.opts[0] for option in command.params if option.param_type_name == "option"}


def with_option_names(message: str, options: Mapping[str, str]) -> str:
    """An error message of the library with Python arguments replaced by options of the command.

    `user_col` becomes `--user-col`, duplicates="last" becomes --duplicates last, and a setting that is no option
    becomes --set name=value. A name of one word, such as `threshold`, stays: the option is spelled like it.
    """

    def name(found: re.Match[str]) -> str:
        return f"`{options[found[1]]}`" if "_" in found[1] and found[1] in options else found[0]

    def setting(found: re.Match[str]) -> str:
        value = found[2] or found[3] or found[4]
        if found[1] in options:
            return f"{options[found[1]]} {value}"
        return f"--set {found[1]}={value}" if options.get("settings") == "--set" else found[0]

    replaced = re.sub(SETTING_IN_MESSAGE, setting, re.sub(NAME_IN_MESSAGE, name, message))
    return re.sub(r"`(--[a-z-]+)` \(\1\)", r"`\1`", replaced)  # some messages name the option themselves
