"""What is searched: the settings of a method with their ranges, by default, as in the paper, or one's own."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from counterpoise.config import Space
from counterpoise.errors import ConfigError, check_choice
from counterpoise.methods import make, short_names
from counterpoise.recommender import DebiasedRecommender

SYNTAX = "name=low:high, name=low:high:log or name=a,b,c"
NOT_SEARCHED = ("seed", "device")
PAPER_MARGINS = (*(round(digit * 10.0**power, 6) for power in range(-6, 0) for digit in (1, 5)), 1.0)


@dataclass(frozen=True)
class Dimension:
    """One thing that is searched: one of `choices`, or a number from `low` to `high`.

    `sets`: the settings that get the value, times `factor`; by default the one of this name.
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
        """The settings that a value stands for; numbers from a range have four digits, so that people can read them."""
        if not self.choices and not self.integer:
            value = float(f"{value * self.factor:.4g}")
        return dict.fromkeys(self.sets or (self.name,), value)

    def contains(self, value: Any) -> bool:
        """Whether a value could be proposed."""
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def full_names(self, model: DebiasedRecommender) -> list[str]:
        """The settings of a model that get the value, by their full names."""
        names = short_names(model)
        return [names.get(name, name) for name in self.sets or (self.name,)]


def _around(below: float, above: float, integer: bool = False) -> Callable[[Any], Dimension]:
    """From the default / below to the default x above, in equal ratios."""

    def dimension(default: float) -> Dimension:
        low, high = default / below, default * above
        ends = (max(1, round(low)), round(high)) if integer else (low, high)
        return Dimension("", low=ends[0], high=ends[1], log=True, integer=integer)

    return dimension


def _fixed(**range_or_choices: Any) -> Callable[[Any], Dimension]:
    return lambda default: Dimension("", **range_or_choices)


# By full name, that of a backbone inside another by the inner one's. A rule is asked where the setting exists, with its
# default.
DEFAULT_RULES: dict[str, Callable[[Any], Dimension]] = {
    "training__learning_rate": _around(5, 4),
    "training__epochs": _around(3, 2, integer=True),
    "backbone__dim": _around(8, 2, integer=True),
    "backbone__l2": _around(16, 16),
    "backbone__l2_biases": _around(16, 16),
    "backbone__l2_voices": _around(16, 16),
    "imputation__strength": _around(4, 2),
    "weights__tolerance": _fixed(choices=(0.0, 0.001, 0.01, 0.03, 0.1)),
    "weights__strength": _fixed(low=1.0, high=1000.0, log=True),
    "weights__functions__n": _around(4, 4, integer=True),
    "weights__functions__order": _fixed(low=1, high=3, integer=True),
    "weights__functions__kernel__bandwidth": _fixed(choices=("median", 1.0, 3.0, 10.0, 30.0)),
    "weights__clip": _around(5, 10),
    "weights__observation": _around(10, 10),
    "weights__labels": _around(10, 10),
    "weights__balance": _around(10, 10),
    "weights__stability": _around(10, 10),
    "imputation__ridge": _around(10, 10),
    "imputation__threshold": _around(4, 3),
}
PAPER_RULES: dict[str, Callable[[Any], Dimension]] = {
    "training__learning_rate": _fixed(choices=(0.01, 0.03, 0.05, 0.1)),
    "weights__tolerance": _fixed(choices=PAPER_MARGINS),
    "weights__strength": _fixed(choices=(1.0, 2.0, 5.0, 10.0, 20.0, 50.0)),
    "weights__functions__kernel__bandwidth": _fixed(choices=(0.5, 1.0, 5.0)),
}


def search_space(
    method: str,
    fixed: Mapping[str, Any],
    rows: int,
    space: str = "default",
    own: Mapping[str, Any] | None = None,
) -> list[Dimension]:
    """What is searched for a method on a log of so many rows, when the settings in `fixed` stay as they are.

    "default": ranges around the defaults. "paper": the grid of the paper's experiments; its weight decay d, which adds
    d x parameter to the gradient of the mean loss, is `l2` = `l2_biases` = d x rows here, where the loss has
    (l2 / 2 rows) |parameters|^2. "own": nothing but `own`, which otherwise is added, and comes first where both name a
    setting. For `own` see `parse`.
    """
    check_choice("space", space, get_args(Space))
    model = make(method, **fixed)
    full_names, short = short_names(model), {full: name for name, full in short_names(model).items()}
    dimensions = [_own(method, model, fixed, name, given) for name, given in (own or {}).items()]
    taken = {full_names.get(name, name) for name in (*fixed, *(dimension.name for dimension in dimensions))}
    rules = {"default": DEFAULT_RULES, "paper": PAPER_RULES, "own": {}}[space]
    free = {_inside(full): full for full in short if full not in taken and _matters(model, full)}
    for name, rule in rules.items():
        if name in free:
            dimensions.append(replace(rule(model.get_params()[free[name]]), name=short[free[name]]))
    decayed = tuple(short[free[name]] for name in ("backbone__l2", "backbone__l2_biases") if name in free)
    if space == "paper" and decayed:
        decay = Dimension("weight_decay", low=1e-6, high=5e-3, log=True, sets=decayed, factor=float(rows))
        dimensions.append(decay)
    if not dimensions:
        raise ConfigError(f"there is nothing to search: name settings of {method!r} with --search {SYNTAX}.")
    return dimensions


def _inside(full: str) -> str:
    """The name of a setting of a backbone inside another, as if it stood alone."""
    return full.replace("backbone__backbone__", "backbone__")


def _matters(model: DebiasedRecommender, full: str) -> bool:
    """The worst-case problem has no tolerance and takes all candidates; its strength is on another scale."""
    functions = getattr(model.weights, "functions", None)
    worst_case = getattr(functions, "select", None) == "worst_case"
    return not (worst_case and full in ("weights__tolerance", "weights__strength", "weights__functions__n"))


def _own(method: str, model: DebiasedRecommender, fixed: Mapping[str, Any], name: str, given: Any) -> Dimension:
    """The user's dimension, which must be of a setting that there is and that is free."""
    dimension = given if isinstance(given, Dimension) else parse(name, given)
    if name.rpartition("__")[2] in NOT_SEARCHED:
        raise ConfigError(f"`{name}` is not searched: it does not make a better model.")
    if name in fixed:
        raise ConfigError(f"`{name}` is both fixed (--set) and searched (--search). Choose one.")
    values = dimension.choices or (dimension.low, dimension.high)
    for value in values:
        make(method, **{**fixed, name: value})  # an error for a name or a word that there is not
    return dimension


def parse(name: str, given: Any) -> Dimension:
    """A dimension from "low:high", "low:high:log" or "a,b,c"; a sequence holds choices. Two integers make integers."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _choices(name, tuple(given))
    text = str(given)
    if ":" not in text:
        return _choices(name, tuple(_value(word.strip()) for word in text.split(",")))
    words = text.split(":")
    ends, log = [_value(word) for word in words[:2]], words[2:] == ["log"]
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if not numbers or (words[2:] and not log):
        raise ConfigError(f"`search` takes {SYNTAX}, got {f'{name}={text}'!r}.")
    low, high = ends
    if not low < high or (log and low <= 0) or abs(low) == float("inf") or high == float("inf"):
        rule = "0 < low < high" if log else "low < high"
        raise ConfigError(f"`search` needs {rule} (both finite) for {name!r}, got {low:g} and {high:g}.")
    return Dimension(name, low=low, high=high, log=log, integer=isinstance(low, int) and isinstance(high, int))


def _choices(name: str, values: tuple[Any, ...]) -> Dimension:
    if len(set(map(repr, values))) < 2 or "" in values:
        raise ConfigError(f"`search` needs at least two choices for {name!r}, got {values!r}. One value: --set.")
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        raise ConfigError(f"`search` takes numbers and words as choices, got {values!r} for {name!r}.")
    return Dimension(name, choices=values)


def parse_words(words: Sequence[str]) -> dict[str, str]:
    """`name=...` words of the command line as {name: ...}."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals and text):
            raise ConfigError(f"`--search` takes {SYNTAX}, got {word!r}. For example --search l2=1:64:log.")
        found[name] = text
    return found


def _value(word: str) -> Any:
    """A word as TOML reads it, or as text."""
    try:
        return tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        return word
