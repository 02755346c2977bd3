"""The exceptions of the package, and checks of arguments.

A message names the argument, the rule, the value that came, and the way out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

HIDING = [False]  # whether backtraces that other libraries print are hidden: set by the command line
MAX_LISTED = 20  # choices in a message that has a nearest one to offer
RESUME_ADVICE = "the same command goes on from there."


class CounterpoiseError(Exception):
    """The root of every error that this package raises on purpose."""


class ConfigError(CounterpoiseError, ValueError):
    """A setting breaks its rule."""


class DataError(CounterpoiseError, ValueError):
    """The data cannot be used as it is."""


class RowError(DataError):
    """One value of the data breaks a rule; knows its column and its row (counted from 0)."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(f"column {column!r}, row {row}: {reason}")
        self.column, self.row, self.reason = column, row, reason

    def located(self, file: str, first_row: int) -> DataError:
        """The same error with the name of the file, whose first row of data has the number `first_row`."""
        return DataError(f"{file}: column {self.column!r}, row {self.row + first_row}: {self.reason}")


class NotFittedError(CounterpoiseError, AttributeError):
    """A fitted result was used before `fit`."""


class StoppedError(CounterpoiseError):
    """Ctrl-C; the message says what is kept and how to continue."""


@contextmanager
def stoppable(advice: str) -> Iterator[None]:
    """Ctrl-C inside the block is a `StoppedError` with this advice."""
    try:
        yield
    except KeyboardInterrupt:
        raise StoppedError(f"stopped before the end. {advice}") from None


class ConvergenceWarning(UserWarning):
    """An iterative method stopped early, or its weights collapsed; the message says what was reached."""


class ReadingWarning(UserWarning):
    """A guess about a file or a table: its separator, the names of its columns, which of them are used."""


def short_repr(value: Any) -> str:
    """A value as Python writes it; the middle of a long one is left out."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:80]} ... {text[-20:]}"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The end of a message: ` Did you mean 'rating'?` where a known name is close to this one, else empty."""
    from difflib import get_close_matches

    names = {other.casefold(): other for other in known}
    close = get_close_matches(str(name)[:100].casefold(), list(names), n=1)
    return f" Did you mean {short_repr(names[close[0]])}?" if close else ""


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    integer: bool = False,
    advice: str = "",
) -> None:
    """Raise `ConfigError` unless `value` is a finite number (or an integer) in the stated range."""
    is_number = not isinstance(value, bool) and (hasattr(value, "__index__") if integer else _is_finite(value))
    fits = not (integer and is_number and abs(value) >= 2**63)
    limits = ((">", operator.gt, above), (">=", operator.ge, at_least), ("<=", operator.le, at_most))
    bounds = [(sign, holds, bound) for sign, holds, bound in limits if bound is not None]
    if not (is_number and fits and all(holds(value, bound) for _, holds, bound in bounds)):
        limited = " and ".join(f"{sign} {bound:g}" for sign, _, bound in bounds) if fits else "< 2^63"
        rule = f"{'an integer' if integer else 'a number'} {limited}".strip()
        raise ConfigError(f"`{name}` must be {rule}, got {short_repr(value)}. {advice}".rstrip())


def _is_finite(value: Any) -> bool:
    try:
        return hasattr(value, "__float__") and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def check_flag(name: str, value: Any, advice: str = "") -> None:
    """Raise `ConfigError` unless `value` is True or False; a number or a text would silently count as one of them."""
    if not isinstance(value, bool):
        raise ConfigError(f"`{name}` must be true or false, got {short_repr(value)}.{advice and ' ' + advice}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise `ConfigError` unless `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(map(repr, choices))
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        if hint and len(choices) > MAX_LISTED:
            raise ConfigError(f"`{name}` is none of {len(choices)} known ones, got {short_repr(value)}.{hint}")
        raise ConfigError(f"`{name}` must be one of {listed}, got {short_repr(value)}.{hint}")
