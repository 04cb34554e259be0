"""SVG plots in the colors of the page: they follow its light and dark mode, and load no other files.

All plots have the width of a phone screen and scale with the page. Callers bound the number of elements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead.pipeline.report.markup import Markup, join, shown, tag

WIDTH, HEIGHT = 420.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 16.0, 30.0
COLORS = 7
BAR_HEIGHT, BAR_LEFT = 22.0, 150.0
CELL_HEIGHT, CELL_LEFT = 20.0, 130.0
LABEL_MAX = 22
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with points sorted by x; a threshold is drawn dashed."""

    name: str
    points: Sequence[tuple[float, float]]
    color: int
    is_threshold: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A point with its tooltip; a point with a mark is drawn larger, with the mark as label."""

    x: float
    y: float
    caption: str
    color: int
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Axis:
    """The range and the name of an axis."""

    low: float
    high: float
    name: str
    is_time: bool = False

    def at(self, value: float, *, begin: float, end: float) -> float:
        """Return the position of a value between two positions of the picture."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return begin + share * (end - begin)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the round values to label on the axis, with their texts."""
        if self.is_time:
            form = "%H:%M:%S" if self.high - self.low < 600_000_000 else "%H:%M"
            form = form if self.high - self.low <= _DAY_US else "%d %b %H:%M"
            parts = range(4) if self.high > self.low else (0,)
            steps = [self.low + (self.high - self.low) * part / 3 for part in parts]
            return [(at, datetime.fromtimestamp(at / 1e6, tz=UTC).strftime(form)) for at in steps]
        span = self.high - self.low
        if span <= 0:
            return [(self.low, shown(float(self.low)))]
        step = 10 ** math.floor(math.log10(span / 3))
        step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 5)
        first = math.ceil(self.low / step - 1e-9)
        return [
            (number * step, shown(number * step)) for number in range(first, math.floor(self.high / step + 1e-9) + 1)
        ]


def lines(curves: Sequence[Line], *, caption: str) -> Markup:
    """Draw curves over time; the y axis begins at zero. Without any point, there is no picture."""
    times = [x for curve in curves for x, _ in curve.points]
    values = [y for curve in curves for _, y in curve.points]
    if not times:
        return Markup()
    x, y = Axis(min(times), max(times), "", is_time=True), Axis(0.0, max(*values, 1e-9) * 1.05, "")
    drawn = [
        tag(
            "polyline",
            points=" ".join(f"{_x(x, at):.1f},{_y(y, value):.1f}" for at, value in curve.points),
            class_=f"line c{curve.color % COLORS}" + (" threshold" if curve.is_threshold else ""),
        )
        for curve in curves
        if len(curve.points) > 1
    ]
    # A curve of one point would be invisible.
    drawn += [
        tag("circle", cx=_x(x, at), cy=_y(y, value), r=3.0, class_=f"dot c{curve.color % COLORS}")
        for curve in curves
        if len(curve.points) == 1
        for at, value in curve.points
    ]
    legend = [
        tag("span", tag("i", class_=f"key c{curve.color % COLORS}"), shown(curve.name), class_="entry")
        for curve in curves
        if curve.points
    ]
    return _figure(_frame(x, y), drawn, caption=caption, legend=legend)


def plots_of(plots: Sequence[Markup]) -> list[Markup]:
    """Return the pictures side by side, without the empty ones; nothing if all are empty."""
    drawn = [plot for plot in plots if plot]
    return [tag("div", *drawn, class_="plots")] if drawn else []


def scatter(dots: Sequence[Dot], *, x: Axis, y: Axis, caption: str, diagonal: bool = False) -> Markup:
    """Draw points, marked ones on top; `diagonal` adds the line of equal x and y."""
    drawn: list[Markup] = []
    if diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        ends = {"x1": _x(x, low), "y1": _y(y, low), "x2": _x(x, high), "y2": _y(y, high)}
        drawn.append(tag("line", **ends, class_="diagonal"))
    for dot in sorted(dots, key=lambda one: bool(one.mark)):
        place = {"cx": _x(x, dot.x), "cy": _y(y, dot.y)}
        title = tag("title", dot.caption)
        drawn.append(tag("circle", title, **place, r=6.0 if dot.mark else 3.0, class_=f"dot c{dot.color % COLORS}"))
        if dot.mark:
            is_right = place["cx"] > WIDTH * 0.6
            at = {"x": place["cx"] + (-9 if is_right else 9), "y": place["cy"] + 4}
            drawn.append(tag("text", dot.mark, **at, text_anchor="end" if is_right else "start", class_="mark"))
    return _figure(_frame(x, y), drawn, caption=caption)


def bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]]]], *, caption: str, parts: Sequence[str]) -> Markup:
    """Draw a stacked bar of the named parts for each row, with its sum."""
    most = max((sum(value for _, value in row) for _, row in rows), default=0.0) or 1.0
    room = WIDTH - BAR_LEFT - 50
    drawn: list[Markup] = []
    for number, (name, row) in enumerate(rows):
        top, left = number * BAR_HEIGHT, BAR_LEFT
        drawn.append(
            tag("text", _short(name), tag("title", shown(name)), x=BAR_LEFT - 6, y=top + 15, text_anchor="end")
        )
        for part, value in row:
            width = room * value / most
            if value:
                title = tag("title", f"{shown(name)}: {part} {shown(value)}")
                color = f"bar c{parts.index(part) % COLORS}"
                drawn.append(tag("rect", title, x=left, y=top + 3, width=width, height=BAR_HEIGHT - 6, class_=color))
            left += width
        drawn.append(tag("text", shown(sum(value for _, value in row)), x=left + 5, y=top + 15))
    present = [part for part in parts if any(value for _, row in rows for name, value in row if name == part)]
    legend = [
        tag("span", tag("i", class_=f"key c{parts.index(part) % COLORS}"), part, class_="entry") for part in present
    ]
    return _figure([], drawn, caption=caption, legend=legend, height=len(rows) * BAR_HEIGHT + 4)


def heat(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[tuple[float, str, str]]], *, caption: str
) -> Markup:
    """Draw a heat map; each cell has its heat (0 to 1), its text and its tooltip."""
    width = (WIDTH - CELL_LEFT) / max(1, len(columns))
    drawn = [
        tag("text", _short(name), x=CELL_LEFT + (place + 0.5) * width, y=14, text_anchor="middle")
        for place, name in enumerate(columns)
    ]
    for number, (name, row) in enumerate(zip(rows, cells, strict=True)):
        top = 20 + number * CELL_HEIGHT
        drawn.append(
            tag("text", _short(name), tag("title", shown(name)), x=CELL_LEFT - 6, y=top + 14, text_anchor="end")
        )
        for place, (share, text, said) in enumerate(row):
            at = {"x": CELL_LEFT + place * width, "y": top}
            size = {"width": width - 1, "height": CELL_HEIGHT - 1}
            opacity = 0.08 + 0.92 * min(1.0, max(0.0, share))
            drawn.append(tag("rect", tag("title", said), **at, **size, class_="cell", fill_opacity=opacity))
            middle = {"x": at["x"] + width / 2, "y": top + 14}
            hot = "hot" if opacity > 0.55 else None
            drawn.append(tag("text", text, **middle, text_anchor="middle", class_=hot))
    return _figure([], drawn, caption=caption, height=24 + len(rows) * CELL_HEIGHT)


def _frame(x: Axis, y: Axis) -> list[Markup]:
    drawn: list[Markup] = []
    for value, text in y.ticks():
        at = _y(y, value)
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        drawn.append(tag("text", text, x=LEFT - 5, y=at + 4, text_anchor="end"))
    ticks = x.ticks()
    for number, (value, text) in enumerate(ticks):
        is_end = len(ticks) > 1 and number in {0, len(ticks) - 1}
        anchor = "middle" if not is_end else "start" if number == 0 else "end"
        drawn.append(tag("text", text, x=_x(x, value), y=HEIGHT - BOTTOM + 14, text_anchor=anchor))
    if y.name:
        drawn.append(tag("text", y.name, x=2, y=9, class_="axis"))
    if x.name:
        drawn.append(tag("text", x.name, x=WIDTH - RIGHT, y=HEIGHT - 3, text_anchor="end", class_="axis"))
    return drawn


def _figure(
    frame: Sequence[Markup],
    drawn: Sequence[Markup],
    *,
    caption: str,
    legend: Sequence[Markup] = (),
    height: float = HEIGHT,
) -> Markup:
    box = f"0 0 {WIDTH:g} {height:g}"
    picture = tag("svg", join([*frame, *drawn]), viewBox=box, role="img", aria_label=caption)
    entries = [tag("div", *legend, class_="legend")] if legend else []
    return tag("figure", tag("figcaption", caption), picture, *entries)


def _x(axis: Axis, value: float) -> float:
    return axis.at(value, begin=LEFT, end=WIDTH - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return axis.at(value, begin=HEIGHT - BOTTOM, end=TOP)


def _short(name: str) -> str:
    return name if len(name) <= LABEL_MAX else name[: LABEL_MAX - 1] + "…"
