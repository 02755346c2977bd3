"""The search space: settings of a method with their ranges, around the defaults, from the paper, or the user's own."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from counterpoise.config import Space
from counterpoise.errors import ConfigError, check_choice
from counterpoise.methods import make, short_names
from counterpoise.recommender import DebiasedRecommender

SYNTAX = "name=low:high, name=low:high:log or name=a,b,c"
NOT_SEARCHED = ("seed", "device")
# Settings of weights and imputations that no kernel method has.
BASELINES_OWN = (
    *("weights__clip", "weights__observation", "weights__labels", "weights__balance", "weights__stability"),
    *("weights__cap", "weights__transform", "weights__experts"),
    *("imputation__mix", "imputation__ridge", "imputation__threshold", "imputation__max_variation"),
    *("imputation__experts", "imputation__base__experts", "imputation__strength", "imputation__l2_distance"),
    *("weights__imputed_strength", "weights__look_ahead", "weights__meta_rate"),
    *("closed_form__confidence", "closed_form__exposure", "closed_form__precision"),
)
# The paper's grid of C: 1e-6, 5e-6, 1e-5, ..., 0.5, 1.
PAPER_TOLERANCES = (*(round(digit * 10.0**power, 6) for power in range(-6, 0) for digit in (1, 5)), 1.0)


@dataclass(frozen=True)
class Dimension:
    """One searched quantity: one of `choices`, or a number from `low` to `high`.

    `sets`: the settings that get the value times `factor`, by default the one of this name.
    """

    name: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    sets: tuple[str, ...] = ()
    factor: float = 1.0

    def suggest(self, trial: Any) -> Any:
        """The value that an Optuna trial proposes."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        draw = trial.suggest_int if self.integer else trial.suggest_float
        return draw(self.name, self.low, self.high, log=self.log)

    def settings(self, value: Any) -> dict[str, Any]:
        """The settings for a value; numbers from a range are rounded to four digits, to be readable."""
        if not self.choices and not self.integer:
            value = float(f"{value * self.factor:.4g}")
        return dict.fromkeys(self.sets or (self.name,), value)

    def contains(self, value: Any) -> bool:
        """Whether a value is in the space."""
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def full_names(self, model: DebiasedRecommender) -> list[str]:
        """The full names of the settings that get the value."""
        names = short_names(model)
        return [names.get(name, name) for name in self.sets or (self.name,)]


def _around(below: float, above: float, integer: bool = False) -> Callable[[Any], Dimension]:
    """The range from default / below to default x above, on a log scale."""

    def dimension(default: float) -> Dimension:
        low, high = default / below, default * above
        ends = (max(1, round(low)), round(high)) if integer else (low, high)
        return Dimension("", low=ends[0], high=ends[1], log=True, integer=integer)

    return dimension


def _fixed(**range_or_choices: Any) -> Callable[[Any], Dimension]:
    return lambda default: Dimension("", **range_or_choices)


def _priors(*numbers: float) -> Callable[[Any], Dimension]:
    """These precisions, and "auto" where that is the default: not all backbones estimate theirs."""
    return lambda default: Dimension("", choices=(*(["auto"] if default == "auto" else []), *numbers))


# Full name of a setting -> its dimension, given its default. Settings that a method does not have are skipped; those of
# a wrapped backbone go by the names that they have unwrapped.
DEFAULT_SPACE: dict[str, Callable[[Any], Dimension]] = {
    "training__learning_rate": _around(5, 4),
    "training__epochs": _around(3, 2, integer=True),
    "backbone__dim": _around(8, 2, integer=True),
    "backbone__l2": _around(16, 16),
    "backbone__l2_biases": _priors(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
    "backbone__l2_exposure": _priors(0.1, 1.0, 10.0),
    "imputation__strength": _around(4, 2),
    "weights__tolerance": _fixed(choices=(None, 0.0, 0.01, 0.03, 0.1)),
    "weights__kept": _fixed(choices=(None, 0.999, 0.99, 0.97, 0.9, 0.7)),
    "weights__functions__n": _around(8, 2, integer=True),
    "weights__functions__order": _fixed(low=1, high=3, integer=True),
    "weights__functions__kernel__bandwidth": _fixed(choices=("median", 1.0, 3.0, 10.0, 30.0)),
    "weights__clip": _around(5, 10),
    "weights__observation": _around(10, 10),
    "weights__labels": _around(10, 10),
    "weights__balance": _around(10, 10),
    "weights__stability": _around(10, 10),
    "weights__cap": _around(8, 4),
    "weights__transform": _fixed(choices=("identity", "log", "sine", "tanh")),
    "weights__experts": _around(5, 2, integer=True),
    "imputation__experts": _around(5, 2, integer=True),
    "imputation__base__experts": _around(5, 2, integer=True),
    "imputation__max_variation": _around(10, 10),
    "imputation__mix": _fixed(low=0.1, high=0.9),
    "imputation__ridge": _around(10, 10),
    "imputation__threshold": _around(4, 3),
    "imputation__l2_distance": _around(16, 16),
    "weights__imputed_strength": _around(10, 10),
    "weights__look_ahead": _around(10, 10),
    "weights__meta_rate": _around(10, 10),
    # of methods for clicks
    "weights__power": _fixed(low=0.0, high=1.0),
    "closed_form__confidence": _around(10, 10),
    "closed_form__exposure": _around(10, 2),
    "closed_form__precision": _around(10, 10),
    "imputation__floor": _fixed(choices=(0.0, 0.01, 0.1, 1.0)),
    "imputation__start": _fixed(low=0.1, high=0.9),
}
PAPER_SPACE: dict[str, Callable[[Any], Dimension]] = {
    "training__learning_rate": _fixed(choices=(0.01, 0.03, 0.05, 0.1)),
    "weights__units": _fixed(choices=("raw",)),  # those of its C and gamma
    "weights__tolerance": _fixed(choices=PAPER_TOLERANCES),
    "weights__strength": _fixed(choices=(1.0, 2.0, 5.0, 10.0, 20.0, 50.0)),
    "weights__functions__kernel__bandwidth": _fixed(choices=("median", 0.5, 1.0, 5.0)),
    # The paper does not say how its baselines' own settings were searched: around their defaults.
    **{name: dimension for name, dimension in DEFAULT_SPACE.items() if name.startswith(BASELINES_OWN)},
}
WORST_CASE_STRENGTH = Dimension("", low=1.0, high=1e5, log=True)  # of a squared bias, in all units and spaces


def search_space(
    method: str,
    fixed: Mapping[str, Any],
    rows: int,
    space: str = "default",
    own: Mapping[str, Any] | None = None,
    build: Callable[..., DebiasedRecommender] = make,
) -> list[Dimension]:
    """The dimensions of a search for a method on a log of `rows` rows, with the settings in `fixed` left out.

    "default": ranges around the defaults. "paper": the grid of the paper's experiments; its weight decay d, which adds
    d x parameter to the gradient of the mean loss, is `l2` = `l2_biases` = d x rows here, where the loss has
    (l2 / 2 rows) |parameters|^2. "own": only the dimensions in `own`. With the other two, `own` adds dimensions or
    replaces those of the same setting; for its syntax see `parse`. `build`: makes the model, as `make` does.
    """
    check_choice("space", space, get_args(Space))
    model = build(method, **fixed)
    params, full_names = model.get_params(), short_names(model)
    short = {full: name for name, full in full_names.items()}
    dimensions = [_own_dimension(partial(build, method), fixed, name, given) for name, given in (own or {}).items()]
    taken = {full_names.get(name, name) for name in (*fixed, *(dimension.name for dimension in dimensions))}
    worst_case = getattr(getattr(model.weights, "functions", None), "select", None) == "worst_case"
    if worst_case:
        taken |= {"weights__tolerance", "weights__functions__n"}  # it has no tolerance and uses all candidates
    if (params.get("weights__strength"), params.get("weights__solver")) != ("auto", "dual"):
        taken.add("weights__kept")
    if model.closed_form is not None:
        taken |= {"training__learning_rate", "backbone__l2_biases"}  # it takes no steps, and learns no biases
    if getattr(model.imputation, "weighting", None) != "mse":
        taken.add("imputation__mix")  # which no other weighting looks at
    if getattr(model.weights, "method", None) != "experts":
        taken.add("weights__experts")
    # settings that can be searched: {name, as if a wrapped backbone stood alone: full name}
    free = {full.replace("backbone__backbone__", "backbone__"): full for full in params if full not in taken}
    for name, dimension in {"default": DEFAULT_SPACE, "paper": PAPER_SPACE, "own": {}}[space].items():
        if name in free:
            found = WORST_CASE_STRENGTH if worst_case and name == "weights__strength" else dimension(params[free[name]])
            if not found.log or found.high > 0:  # what a method switches off by 0, such as a loss, stays off
                dimensions.append(replace(found, name=short[free[name]]))
    decayed = tuple(short[free[name]] for name in ("backbone__l2", "backbone__l2_biases") if name in free)
    if space == "paper" and decayed:
        dimensions.append(Dimension("weight_decay", low=1e-6, high=5e-3, log=True, sets=decayed, factor=float(rows)))
    return dimensions


def default_values(
    method: str,
    fixed: Mapping[str, Any],
    dimensions: Sequence[Dimension],
    build: Callable[..., DebiasedRecommender],
) -> dict[str, Any]:
    """The default value of each dimension that contains it."""
    model, found = build(method, **fixed), {}
    for dimension in dimensions:
        values = [model.get_params()[full] for full in dimension.full_names(model)]
        value = values[0] / dimension.factor if dimension.sets else values[0]
        if len(set(map(repr, values))) == 1 and dimension.contains(value):
            found[dimension.name] = value
    return found


def _own_dimension(
    build: Callable[..., DebiasedRecommender], fixed: Mapping[str, Any], name: str, given: Any
) -> Dimension:
    """The user's dimension, checked: of an existing setting that is not fixed, with values that it takes."""
    dimension = given if isinstance(given, Dimension) else parse(name, given)
    if name.rpartition("__")[2] in NOT_SEARCHED:
        raise ConfigError(f"`{name}` is not searched: it does not make a better model.")
    if name in fixed:
        raise ConfigError(f"`{name}` is both fixed (--set) and searched (--search). Choose one.")
    for value in dimension.choices or (dimension.low, dimension.high):
        build(**{**fixed, name: value})  # raises for an unknown setting or value
    return dimension


def parse(name: str, given: Any) -> Dimension:
    """A dimension from "low:high", "low:high:log" or "a,b,c", or from a sequence of choices.

    A range between two integers has integers only.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _choices(name, tuple(given))
    text = str(given)
    low, colon, rest = text.partition(":")
    if not colon:
        return _choices(name, tuple(_value(word.strip()) for word in text.split(",")))
    high, _, scale = rest.partition(":")
    ends, log = (_value(low), _value(high)), scale == "log"
    if scale not in ("", "log") or rest.endswith(":") or not all(type(end) in (int, float) for end in ends):
        raise ConfigError(f"`search` takes {SYNTAX}, got {f'{name}={text}'!r}.")
    if not ends[0] < ends[1] or (log and ends[0] <= 0) or not all(map(math.isfinite, ends)):
        rule = "0 < low < high" if log else "low < high"
        raise ConfigError(f"`search` needs {rule} (both finite) for {name!r}, got {ends[0]:g} and {ends[1]:g}.")
    return Dimension(name, low=ends[0], high=ends[1], log=log, integer=all(isinstance(end, int) for end in ends))


def _choices(name: str, values: tuple[Any, ...]) -> Dimension:
    if len(set(map(repr, values))) < 2 or "" in values:
        raise ConfigError(f"`search` needs at least two choices for {name!r}, got {values!r}. One value: --set.")
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        raise ConfigError(f"`search` takes numbers and words as choices, got {values!r} for {name!r}.")
    return Dimension(name, choices=values)


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """`name=...` arguments of the command line as {name: ...}."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise ConfigError(f"`--search` takes {SYNTAX}, got {word!r}. For example --search l2=1:64:log.")
        found[name] = text
    return found


def _value(word: str) -> Any:
    """A value in TOML, or else text."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word
