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
from counterpoise.config import Duplicates, EngineName, Feedback, Holdout, Protocol, Sample, Unknown, UnknownInTest

if TYPE_CHECKING:
    from counterpoise.runs import FitConfig

KEYWORD = inspect.Parameter.KEYWORD_ONLY


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

    def expanded(**values: Any) -> None:
        given = dict(values)
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
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


def option(text: str, *names: str, shown: str | bool = True, panel: str | None = None) -> Any:
    """An option with its help text; `shown` is what --help shows as the default where that is None."""
    return typer.Option(*names, help=text, show_default=shown, rich_help_panel=panel)


def _parameters(group: type[OptionGroup]) -> Iterator[inspect.Parameter]:
    """A keyword parameter for each field of a group, with the group's panel in its Typer annotation."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        kind, info = get_args(hints[field.name])
        if isinstance(info, OptionInfo):
            info = copy(info)
            info.rich_help_panel = group.panel
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(field.name, KEYWORD, default=default, annotation=Annotated[kind, info])


Json = Annotated[bool, option("Print the result as one JSON document.", "--json")]
Quiet = Annotated[bool, option("Print nothing but errors.", "--quiet")]
Run = Annotated[Path, typer.Argument(help="Folder of a saved run, written by `fit`.", show_default=False)]
RatingCol = Annotated[str | None, option("Name of the column of ratings.", shown="rating")]
TimestampCol = Annotated[str | None, option("Name of the column of timestamps, if there is one.")]
REPEATED_HELP = "What to do with a pair that occurs more than once; auto counts clicks and refuses others."
Repeated = Annotated[Duplicates | None, option(REPEATED_HELP, shown="auto")]
FEEDBACK_HELP = "What the rows are: ratings, clicks (positives alone) or impressions (shown, clicked or not)."
Kind = Annotated[Feedback | None, option(FEEDBACK_HELP, shown="told by the labels")]
ENGINE_HELP = "Where out-of-core passes run: threads of this process, or Ray."
Address = Annotated[str | None, option("Address of a Ray cluster: auto or HOST:PORT.", shown="start one here")]
UNKNOWN_USERS_HELP = "Users that the log does not have: an error, or scored by the items' rates of positive labels."
UnknownUsers = Annotated[Unknown, option(UNKNOWN_USERS_HELP)]
UNKNOWN_ITEMS_HELP = "Items that the log does not have: an error, or scored by the user's mean over all items."
UnknownItems = Annotated[Unknown, option(UNKNOWN_ITEMS_HELP)]
TEST_KIND_HELP = "How the pairs of the test were collected: drawn at random from all pairs (uniform), or not (biased)."
COLD_HELP = "Test rows of {0}s without rows in the log: an error, left out, or scored by what is known of the rest."
UNKNOWN_HELP = "Test rows of {0}s unknown to the run: an error, left out, or scored by what is known of the rest."
OUT_HELP = "File to write, ending in .parquet, .csv or .tsv."


@dataclass(frozen=True)
class PairColumns(OptionGroup):
    """How a file of user-item pairs is read."""

    panel = "Data"
    user_col: Annotated[str | None, option("Name of the column of user ids.", shown="user_id")] = None
    item_col: Annotated[str | None, option("Name of the column of item ids.", shown="item_id")] = None
    separator: Annotated[
        str | None,
        option("What is between the fields of a text file: ';', tab, '::', ...", shown="by ending and content"),
    ] = None
    header: Annotated[
        str | None,
        option("Names of the columns of a text file without header: user_id,item_id,...", shown="the first row"),
    ] = None


@dataclass(frozen=True)
class RatingColumns(PairColumns):
    """How a file of ratings is read."""

    rating_col: RatingCol = None
    feedback: Kind = None
    threshold: Annotated[float | None, option("Ratings at or above this value are positive labels.")] = None
    duplicates: Repeated = None


@dataclass(frozen=True)
class LogColumns(RatingColumns):
    """How a training log is read."""

    timestamp_col: TimestampCol = None
    propensity_col: Annotated[
        str | None, option("Name of the column of known propensities, for --set weights=known.")
    ] = None


@dataclass(frozen=True)
class DataOptions(OptionGroup):
    """The log to learn from and the files that go with it."""

    panel = "Data"
    data: Annotated[str | None, typer.Argument(help="Name of a dataset, or a log: a file, folder or glob.")] = None
    test: Annotated[str | None, option("File of ratings to evaluate on.")] = None
    probe: Annotated[
        str | None, option("File of a small uniform sample to learn from; without it one is drawn from a uniform test.")
    ] = None
    users: Annotated[str | None, option("File of users: a column of ids, and columns of any kind.")] = None
    items: Annotated[str | None, option("File of items: a column of ids, and columns of any kind.")] = None
    categorical: Annotated[
        str | None, option("Columns of both whose numbers are codes, separated by commas.", shown="none")
    ] = None
    item_names: Annotated[
        str | None, option("File of item ids and their names, which lists, the report and the page show.")
    ] = None
    item_name_col: Annotated[
        str | None, option("Name of the column of names there, or else in --items.", shown="name or title")
    ] = None
    path: Annotated[str | None, option("Folder with the files of a named dataset.")] = None
    protocol: Annotated[Protocol | None, option("How probe and test are split.", shown="honest")] = None
    probe_fraction: Annotated[
        float | None, option("Share of the ratings of a uniform test to use as probe.", shown="0.05")
    ] = None


@dataclass(frozen=True)
class HoldoutOptions(OptionGroup):
    """What a model is evaluated on."""

    panel = "Evaluation"
    test_kind: Annotated[Sample | None, option(TEST_KIND_HELP, shown="biased")] = None
    holdout: Annotated[float | None, option("Share of the log to hold out and evaluate on, if there is no test.")] = (
        None
    )
    by: Annotated[
        Holdout | None,
        option("Rows to hold out: random ones, those of each user, the latest, or the last of each user."),
    ] = None
    unknown_users: Annotated[UnknownInTest | None, option(COLD_HELP.format("user"), shown="popular")] = None
    unknown_items: Annotated[UnknownInTest | None, option(COLD_HELP.format("item"), shown="popular")] = None


@dataclass(frozen=True)
class TestOptions(OptionGroup):
    """What a test of a saved run is."""

    panel = "Data"
    test_kind: Annotated[Sample | None, option(TEST_KIND_HELP, shown="biased")] = None
    unknown_users: Annotated[UnknownInTest, option(UNKNOWN_HELP.format("user"))] = "error"
    unknown_items: Annotated[UnknownInTest, option(UNKNOWN_HELP.format("item"))] = "error"


@dataclass(frozen=True)
class MethodOptions(OptionGroup):
    """What is fitted."""

    panel = "Method"
    method: Annotated[str | None, option("Method, see `counterpoise methods`.", shown="by kind of feedback")] = None
    config: Annotated[Path | None, option("TOML file or saved run to take options and settings from.")] = None
    settings: Annotated[list[str] | None, option("Any setting, as name=value; may be repeated.", "--set")] = None
    seed: Annotated[int | None, option("Seed of all random draws.", shown="0")] = None


@dataclass(frozen=True)
class EvaluationOptions(OptionGroup):
    """How ranking metrics are computed."""

    panel = "Evaluation"
    k: Annotated[int | None, option("Length of the lists that are evaluated.", "--k", shown="5")] = None


@dataclass(frozen=True)
class ClusterOptions(OptionGroup):
    """Where the work is done."""

    panel = "Scale"
    engine: Annotated[EngineName | None, option(ENGINE_HELP, shown="local")] = None
    workers: Annotated[int | None, option("Number of threads, or of Ray workers.", shown="all cores")] = None
    address: Address = None


@dataclass(frozen=True)
class ScaleOptions(ClusterOptions):
    """Where the work is done, and in how much memory."""

    memory: Annotated[str | None, option("Memory budget; larger logs in many files are streamed.", shown="4GB")] = None
    cache: Annotated[str | None, option("Folder for the shards of a streamed log.", shown="the user's cache")] = None


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
