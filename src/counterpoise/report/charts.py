"""Dot, line and bar charts as inline SVG. Every mark has its values as a tooltip; all text is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 300  # of the view box, in its units, as all lengths here
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 12, 44  # margins around the axes
ROW_HEIGHT = 24
LABEL_WIDTH, LETTER_WIDTH = 150, 7.2  # room for the labels of rows, and the mean width of a letter


def tag(name: str, *children: Any, **attributes: Any) -> Markup:
    """<name attribute="value">children</name>, everything escaped; `class_` is class, `text_anchor` text-anchor.

    Numbers are written with at most one decimal.
    """
    written = ""
    for key, value in attributes.items():
        text = f"{value:.1f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else value
        written += f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"'
    opened = Markup(name), Markup(written)  # our own names; values are escaped above  # nosec B704
    return Markup("<{0}{1}>{2}</{0}>").format(*opened, Markup("").join(children))


@dataclass(frozen=True)
class Scale:
    """A map from values in [low, high] to positions in [start, end], linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high, here = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        share = (here - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """About five multiples of 1, 2 or 5 times a power of ten; on a long logarithmic scale powers of ten."""
        low, high = self.low, self.high
        if self.logarithmic:
            factors = (1,) if math.log10(high / low) >= 3 else (1, 2, 5)
            powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
            found = [f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001]
            if len(found) > 1:
                return found
        raw = (high - low) / 5
        if raw <= 0:
            return [low]
        power = 10 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.75)
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [round(place * step, 12) for place in range(first, last + 1)]


def short(value: float) -> str:
    """The label of a tick: 20k for 20,000."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def domain(
    values: Sequence[float], include: tuple[float, ...] = (), margin: float = 0.04, least: float = 0.0
) -> tuple[float, float]:
    """The range of values with a margin; no shorter than `least`, so that a small difference looks small."""
    known = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = max(margin * (high - low), (least - high + low) / 2) or max(abs(high), 1.0) * margin
    return low - room, high + room


@dataclass(frozen=True)
class Mark:
    """A value with its tooltip, and its interval where it has one."""

    value: float
    tip: str
    style: str = "after"  # before, after, or another class of the style sheet
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """Points (x, y) with a tooltip each, and a band (low, high) around them where there is one."""

    points: Sequence[tuple[float, float]]
    tips: Sequence[str]
    style: str = "after"
    band: Sequence[tuple[float, float]] = ()
    whiskers: bool = False  # the band as an interval at each point
    dots: bool = False  # visible points, as those with whiskers are


@dataclass(frozen=True)
class Bar:
    """A bar over the interval from low to high, with its tooltip."""

    low: float
    high: float
    value: float
    tip: str
    style: str = "after"


def row_chart(
    rows: Sequence[tuple[str, Sequence[Mark]]],
    x_name: str,
    alt: str,
    guides: tuple[float, ...] = (0.0,),
    least: float = 0.0,
) -> Markup:
    """One row per label with its marks along x, which spans `least` or more; `guides` are dashed vertical lines."""
    ends = [end for _, marks in rows for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
    x = Scale(*domain(ends, guides, least=least), LABEL_WIDTH + 8, WIDTH - RIGHT)
    bottom = TOP + ROW_HEIGHT * len(rows)
    drawn = _x_axis(x, bottom, x_name) + [_line(x(guide), TOP, x(guide), bottom, "guide") for guide in guides]
    longest = int(LABEL_WIDTH / LETTER_WIDTH)
    for place, (label, marks) in enumerate(rows):
        y = TOP + ROW_HEIGHT * (place + 0.5)
        cut = label if len(label) <= longest else label[: longest - 1] + "…"
        drawn.append(tag("text", cut, tag("title", label), x=LABEL_WIDTH, y=y + 4, class_="label end"))
        if len(marks) > 1:
            places = [x(mark.value) for mark in marks]
            drawn.append(_line(min(places), y, max(places), y, "link"))
        for mark in marks:
            if mark.low is not None and mark.high is not None:
                drawn.append(_line(x(mark.low), y, x(mark.high), y, f"span {mark.style}"))
            drawn.append(_mark("circle", mark.tip, f"dot {mark.style}", cx=x(mark.value), cy=y, r=5))
    return _picture(bottom + BOTTOM, alt, drawn)


def line_chart(
    lines: Sequence[Line],
    x_name: str,
    y_name: str,
    alt: str,
    *,
    include_y: tuple[float, ...] = (),
    logarithmic_x: bool = False,
    diagonal: bool = False,
    guide: float | None = None,
) -> Markup:
    """Lines over a common x axis; `diagonal` draws x = y, `guide` a horizontal line."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [end for line in lines for pair in line.band for end in pair]
    across = (min(xs), max(xs)) if logarithmic_x else domain(xs, margin=0.02)
    x = Scale(*across, LEFT, WIDTH - RIGHT, logarithmic_x and min(xs) > 0)
    y = Scale(*domain(ys, include_y), HEIGHT - BOTTOM, TOP)
    drawn = _x_axis(x, HEIGHT - BOTTOM, x_name) + _y_axis(y, y_name)
    if guide is not None:
        drawn.append(_line(LEFT, y(guide), WIDTH - RIGHT, y(guide), "guide"))
    if diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        drawn.append(_line(x(low), y(low), x(high), y(high), "guide"))
    for line in lines:
        places = [(x(a), y(b)) for a, b in line.points]
        if line.whiskers:
            ends = zip(places, line.band, strict=True)
            drawn += [_line(a, y(low), a, y(high), f"span {line.style}") for (a, _), (low, high) in ends]
        elif line.band:
            lower, upper = (
                [(a, y(pair[end])) for (a, _), pair in zip(places, line.band, strict=True)] for end in (0, 1)
            )
            drawn.append(tag("polygon", points=_path(upper + lower[::-1]), class_=f"band {line.style}"))
        drawn.append(tag("polyline", points=_path(places), class_=f"line {line.style}"))
        style = f"{'dot' if line.whiskers or line.dots else 'point'} {line.style}"
        for (a, b), tip in zip(places, line.tips, strict=True):
            drawn.append(_mark("circle", tip, style, cx=a, cy=b, r=4))
    return _picture(HEIGHT, alt, drawn)


def bar_chart(bars: Sequence[Bar], x_name: str, y_name: str, alt: str, *, logarithmic_x: bool = False) -> Markup:
    """Bars of at least one unit of height."""
    x = Scale(bars[0].low, bars[-1].high, LEFT, WIDTH - RIGHT, logarithmic_x)
    values = [bar.value for bar in bars]
    y = Scale(min(0.0, min(values) * 1.04), max(0.0, max(values) * 1.04) or 1.0, HEIGHT - BOTTOM, TOP)
    drawn = _x_axis(x, HEIGHT - BOTTOM, x_name) + _y_axis(y, y_name)
    for bar in bars:
        left, right, top, foot = x(bar.low), x(bar.high), y(max(bar.value, 0)), y(min(bar.value, 0))
        box = {"x": left, "y": top, "width": max(0.5, right - left - 0.6), "height": max(1.0, foot - top)}
        drawn.append(_mark("rect", bar.tip, f"bar {bar.style}", **box))
    return _picture(HEIGHT, alt, drawn)


def _picture(height: float, alt: str, drawn: Sequence[Markup]) -> Markup:
    options = {"role": "img", "aria_label": alt, "class_": "chart", "xmlns": "http://www.w3.org/2000/svg"}
    return tag("svg", tag("title", alt), *drawn, viewBox=f"0 0 {WIDTH} {height:g}", **options)


def _mark(shape: str, tip: str, style: str, **place: float) -> Markup:
    return tag(shape, tag("title", tip), **place, class_=f"mark {style}", data_tip=tip)


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in places)


def _x_axis(x: Scale, bottom: float, name: str) -> list[Markup]:
    drawn = []
    for tick in x.ticks():
        drawn.append(_line(x(tick), TOP, x(tick), bottom, "grid"))
        drawn.append(tag("text", short(tick), x=x(tick), y=bottom + 16, class_="tick middle"))
    return [*drawn, tag("text", name, x=(x.start + x.end) / 2, y=bottom + 36, class_="axis middle")]


def _y_axis(y: Scale, name: str) -> list[Markup]:
    drawn = []
    for tick in y.ticks():
        drawn.append(_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        drawn.append(tag("text", short(tick), x=LEFT - 6, y=y(tick) + 4, class_="tick end"))
    middle = (y.start + y.end) / 2
    return [*drawn, tag("text", name, x=12, y=middle, transform=f"rotate(-90 12 {middle:g})", class_="axis middle")]
