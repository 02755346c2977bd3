"""Pieces of SVG, escaped, and scales from numbers to places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """<name attribute="value">children</name>, everything escaped; `class_` is class, `text_anchor` text-anchor."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_written(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = Markup(name), Markup(written)  # our own names; values are escaped above  # nosec B704
    return Markup("<{0}{1}>{2}</{0}>").format(*opened, join(*children))


def join(*children: Any) -> Markup:
    """Pieces one after the other; text is escaped, None is nothing."""
    return Markup("").join(child for child in children if child is not None)


def _written(value: Any) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Scale:
    """From values in [low, high] to places in [start, end], linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, here = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Round values inside."""
        return _powers(self.low, self.high) if self.logarithmic else _steps(self.low, self.high, about)


def _steps(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about so many."""
    raw = (high - low) / max(1, about)
    if raw <= 0:
        return [low]
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.75)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Powers of ten; between them 2 and 5 times these where there would be few."""
    factors = (1,) if math.log10(high / low) >= 3 else (1, 2, 5)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    return [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]


def short(value: float) -> str:
    """A tick's label: 20k for 20,000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def domain(values: list[float], include: tuple[float, ...] = (), margin: float = 0.04) -> tuple[float, float]:
    """The range of values, widened a little."""
    known = [value for value in (*values, *include) if value is not None and math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = margin * (high - low) or max(abs(high), 1.0) * margin
    return low - room, high + room
