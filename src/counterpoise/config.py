"""The convention that all configurable parts share: settings in the constructor, `repr` is the configuration.

Follows scikit-learn (`get_params`, `set_params`, `clone` work) without importing it: that import alone takes longer
than fitting a small model.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

import counterpoise
from counterpoise.errors import ConfigError, did_you_mean


@dataclasses.dataclass(eq=False)
class Configurable:
    """A dataclass whose fields are its settings; what `fit` learns lies in attributes that end in `_`."""

    _known: ClassVar[dict[str, type[Configurable]]] = {}

    def __init_subclass__(cls) -> None:
        """Remember the class, so that `from_config` can name it; nothing else is ever constructed from a file."""
        Configurable._known[cls.__name__] = cls

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The settings; with `deep`, also those of nested parts, as `part__setting`."""
        params = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        parts = {name: part for name, part in params.items() if deep and isinstance(part, Configurable)}
        for name, part in parts.items():
            params |= {f"{name}__{inner}": value for inner, value in part.get_params().items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Change settings in place, nested ones as `part__setting`."""
        names = {field.name for field in dataclasses.fields(self)}
        for name, value in sorted(params.items(), key=lambda pair: "__" in pair[0]):  # parts before their settings
            outer, _, inner = name.partition("__")
            part = getattr(self, outer, None)
            if outer not in names or (inner and not isinstance(part, Configurable)):
                known, hint = ", ".join(sorted(names)), did_you_mean(name, names)
                raise ConfigError(f"{type(self).__name__} has no setting `{name}`. Its settings: {known}.{hint}")
            if isinstance(part, Configurable) and inner:
                part.set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def to_config(self) -> dict[str, Any]:
        """The configuration as JSON-able values: `{"part": class name, setting: value, ...}`."""
        settings = self.get_params(deep=False).items()
        return {"part": type(self).__name__} | {name: _plain(value) for name, value in settings}


def _plain(value: Any) -> Any:
    """A part as its configuration, also in a tuple; a numpy number as a Python one."""
    if isinstance(value, Configurable):
        return value.to_config()
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return value.item() if hasattr(value, "item") else value


def from_config(config: Mapping[str, Any]) -> Configurable:
    """The part that `to_config` described. Only classes that are parts of this package can be named."""
    settings = dict(config)
    name = settings.pop("part", None)
    if name not in Configurable._known and name in counterpoise.__all__:
        getattr(counterpoise, name)  # imports its module, which makes it known
    if name not in Configurable._known:
        raise ConfigError(f"`part` must name a part of counterpoise, got {name!r}. Was it written by a newer version?")
    values = {setting: _rich(value) for setting, value in settings.items()}
    try:
        return Configurable._known[name](**values)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be configured with {sorted(settings)}: {error}.") from error


def _rich(value: Any) -> Any:
    """The inverse of `_plain`, up to lists, which become tuples."""
    if isinstance(value, Mapping):
        return from_config(value)
    return tuple(map(_rich, value)) if isinstance(value, list | tuple) else value


# The words that settings are chosen from, in one place and without heavy imports.

Feedback = Literal["ratings", "clicks", "impressions"]  # labels of both kinds; positives alone; shown, clicked or not
Duplicates = Literal["auto", "error", "last", "mean", "sum"]  # a pair that occurs twice: refuse, keep the last row, its
# mean or sum; "auto" adds up clicks and refuses others
Error = Literal[
    "log", "squared", "linear"
]  # of a pair: log loss; squared error of the probability; of the logit itself
Sample = Literal["uniform", "biased"]  # how the pairs of a log were collected: drawn uniformly from D, or not
Holdout = Literal["random", "user", "time", "leave-last"]  # which rows of a log are held out
Unknown = Literal["error", "popular"]  # an id the log does not have: refuse, or score by what is known of the others
UnknownInTest = Literal["error", "drop", "popular"]  # the same in a test, where rows can be left out
MissingValues = Literal["indicator", "mean", "error"]  # in a column of numbers: mean + a feature, the mean, refuse
Target = Literal["ate", "att", "atc"]  # whom treated and controls should resemble: all, the treated, the controls
KernelName = Literal["gaussian", "exponential"]
Select = Literal["random", "worst_case", "greedy", "adaptive", "spectral"]
SelectForSamples = Literal["random", "worst_case", "greedy", "spectral"]  # rules that need no error
Weighting = Literal["error", "variance", "bias", "mse"]  # what an imputation is trained for: see `residual_weights`
Solver = Literal["dual", "gradient"]  # exact over the whole log, or the paper's Algorithm 1
StrengthName = Literal["auto", "exact"]  # of balancing: for training, or for estimates
Units = Literal["sd", "raw"]  # of tolerance and strength: population SDs of each function, or its own values
Prior = Literal["uniform", "naive-bayes"]  # the weights that balancing starts from
Covariate = Literal["odds", "weight"]  # what an imputation is targeted along: 1 / propensity - 1, or 1 / propensity
Transform = Literal["identity", "log", "sine", "tanh"]  # f of a capped weight 1 / f(propensity)
Calibration = Literal["platt", "temperature", "isotonic", "experts"]  # how propensities are calibrated
BenchPreset = Literal["default", "paper"]  # settings of an experiment: our defaults, or the paper's
Measure = Literal["log loss", "1 - AUC"]  # of held-out ratings, by which a search judges settings
Space = Literal["default", "paper", "own"]  # what `tune` searches: around the defaults, the paper's grid, what is named
EngineName = Literal["local", "ray"]  # who works on a log in shards: threads, or workers of a Ray cluster


Function = TypeVar("Function", bound=Callable[..., Any])
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def takes_options(options: type, defaults: Mapping[str, Any], *, more: bool = False) -> Callable[[Function], Function]:
    """A decorator of functions with **options of a `TypedDict`: help, editors and notebooks show each of them.

    A name that is no parameter is a `ConfigError` that suggests the nearest one, unless the function takes `more`.
    """

    def decorated(function: Function) -> Function:
        signature = inspect.signature(function)
        rest = [p for p in signature.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
        own = [p for p in signature.parameters.values() if p not in rest]
        named = [
            inspect.Parameter(name, KEYWORD, default=defaults.get(name), annotation=annotation.__forward_arg__)
            for name, annotation in options.__annotations__.items()
            if name not in signature.parameters
        ]
        known = [parameter.name for parameter in [*own, *named] if parameter.name not in ("self", "cls")]

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in () if more else given:
                if name not in known:
                    hint, listed = did_you_mean(name, known), ", ".join(known)
                    raise ConfigError(f"{function.__name__} has no argument `{name}`.{hint} Arguments: {listed}.")
            return function(*args, **given)

        shown = signature.replace(parameters=[*own, *named, *(rest if more else ())])
        setattr(checked, "__signature__", shown)  # noqa: B010  mypy knows no such attribute
        return cast(Function, checked)

    return decorated
