"""Pictures as inline SVG, drawn by the server in the colors of the page; no script, no style attribute."""

from collections.abc import Callable, Sequence
from typing import Final

from markupsafe import Markup

from fairlead.console.series import Point
from fairlead.console.text import duration, number
from fairlead.console.text import size as bytes_as_text
from fairlead.console.timeline import Span
from fairlead.console.timescale import Timescale

# Width and height of a curve, and of a small one within a row of a table, in pixels.
CURVE_SIZE: Final = (260, 56)
SPARK_SIZE: Final = (96, 20)
# Width and height of a picture with several curves, in pixels.
LINES_SIZE: Final = (760, 120)
# Points of one curve.
POINTS_MAX: Final = 240
# Width of a row of a timeline, in its own units.
SPAN_WIDTH: Final = 1_000


def curve(
    points: Sequence[Point], label: str, *, shown: Callable[[float], str] = number, size: tuple[int, int] = CURVE_SIZE
) -> Markup:
    """A curve over time from zero up to its highest value. Screen readers get the label and the last value."""
    kept = _thinned(points)
    values = [point.value for point in kept if point.value is not None]
    last = f"{shown(values[-1])}, at most {shown(max(values))}" if values else "nothing recorded yet"
    width, height = size
    lines = "".join(_lines(kept, width, height))
    return Markup(
        '<svg class="curve" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" preserveAspectRatio="none">'
        "<title>{label}: {last}</title>{lines}</svg>"
    ).format(w=width, h=height, label=label, last=last, lines=Markup(lines))  # noqa: S704 - numbers only


def chart(points: Sequence[Point], label: str, unit: str = "") -> Markup:
    """A curve above its scale: how long ago it begins, and its highest value."""
    shown = bytes_as_text if unit == "bytes" else number
    return curve(points, label, shown=shown) + _scale(points, shown)


def _scale(points: Sequence[Point], shown: Callable[[float], str]) -> Markup:
    values = [point.value for point in points if point.value is not None]
    if len(values) < 2:
        return Markup("")
    length = duration(round(points[-1].at_s - points[0].at_s))
    return Markup('<span class="scale"><span>last {}</span><span>highest {}</span></span>').format(
        length, shown(max(values))
    )


def lines(series: Sequence[tuple[Sequence[Point], str, str]], label: str) -> Markup:
    """Several curves over the same time and on the same scale, each as (points, class, name), with a legend."""
    kept = [(_thinned(points), kind, name) for points, kind, name in series if points]
    values = [point.value for points, _, _ in kept for point in points if point.value is not None]
    if not values:
        return Markup('<p class="empty">Nothing recorded yet.</p>')
    width, height = LINES_SIZE
    span = (min(points[0].at_s for points, _, _ in kept), max(points[-1].at_s for points, _, _ in kept))
    highest = max(values) or 1.0
    paths = Markup("").join(
        Markup('<g class="{}">{}</g>').format(
            kind,
            Markup("").join(map(Markup, _lines(points, width, height, highest=highest, span=span))),
        )
        for points, kind, _ in kept
    )
    legend = Markup("").join(
        Markup('<li class="{}">{}: {}</li>').format(
            kind, name, number(next((point.value for point in reversed(points) if point.value is not None), None))
        )
        for points, kind, name in kept
    )
    return Markup(
        '<svg class="curve lines" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" preserveAspectRatio="none">'
        '<title>{label}: at most {highest}</title>{paths}</svg>{scale}<ul class="legend">{legend}</ul>'
    ).format(
        w=width,
        h=height,
        label=label,
        highest=number(highest),
        paths=paths,
        scale=_scale([Point(span[0], highest), Point(span[1], highest)], number),
        legend=legend,
    )


def spark(points: Sequence[Point], label: str) -> Markup:
    """A small curve for a row of a table."""
    return curve(points, label, size=SPARK_SIZE)


def bar(share: float, label: str, *, kind: str = "") -> Markup:
    """A horizontal bar that is filled by a share of 0 to 1; `kind` is a class of the style sheet, such as bad."""
    filled = round(min(1.0, max(0.0, share)) * 100, 1)
    return Markup(
        '<svg class="bar {kind}" viewBox="0 0 100 8" width="100" height="8" role="img" preserveAspectRatio="none">'
        '<title>{label}</title><rect class="all" width="100" height="8"/><rect width="{filled}" height="8"/></svg>'
    ).format(kind=kind, label=label, filled=filled)


def span(one: Span, scale: Timescale) -> Markup:
    """A row of a timeline: thin while it waited, thick while it ran, also for a failed attempt; a signal is a dot."""

    def x(at_s: float) -> float:
        return round(scale.place(at_s) * SPAN_WIDTH, 1)

    until_s = scale.knots[-1][0]
    began, ended = x(one.began_s), x(until_s if one.ended_s is None else one.ended_s)
    ran = ended if one.ran_s is None else x(one.ran_s)
    parts = [
        f'<rect class="idle" x="{first * SPAN_WIDTH:.1f}" y="0" width="{(last - first) * SPAN_WIDTH:.1f}" height="16"/>'
        for first, last in scale.idle
    ]
    parts.append(f'<rect class="waited" x="{began}" y="6" width="{max(ran - began, 0)}" height="4"/>')
    if one.failed_s is not None:
        failed = x(one.failed_s)
        tried = failed if one.ran_s is None else ran
        parts.append(f'<rect class="ran failed" x="{tried}" y="3" width="{max(failed - tried, 4)}" height="10"/>')
        parts.append(f'<rect class="waited" x="{failed + 4}" y="6" width="{max(ended - failed - 4, 0)}" height="4"/>')
    elif one.ran_s is not None:
        parts.append(f'<rect class="ran" x="{ran}" y="3" width="{max(ended - ran, 4)}" height="10"/>')
    return Markup(
        '<svg class="span {kind}" viewBox="0 0 {w} 16" height="16" preserveAspectRatio="none" role="img">'
        "<title>{label}: {outcome}</title>{parts}</svg>"
    ).format(
        kind=f"{one.kind} {one.outcome.replace(' ', '-')}",
        w=SPAN_WIDTH,
        label=one.label,
        outcome=one.outcome,
        parts=Markup("".join(parts)),  # noqa: S704 - numbers only
    )


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Reduce the points to at most `POINTS_MAX`; each keeps the highest value of its group of neighbors."""
    if len(points) <= POINTS_MAX:
        return points
    step = -(-len(points) // POINTS_MAX)
    groups = (points[first : first + step] for first in range(0, len(points), step))
    return [max(group, key=lambda point: -1.0 if point.value is None else point.value) for group in groups]


def _lines(
    points: Sequence[Point],
    width: int,
    height: int,
    *,
    highest: float | None = None,
    span: tuple[float, float] | None = None,
) -> list[str]:
    """One path for each stretch without a missing point, and the area below it."""
    known = [point for point in points if point.value is not None]
    if not known:
        return [f'<path class="rest" d="M0 {height - 1}H{width}"/>']
    if highest is None:
        highest = max(point.value or 0.0 for point in known) or 1.0
    first_s, last_s = span or (points[0].at_s, points[-1].at_s)
    span_s = max(last_s - first_s, 1.0)
    found: list[str] = []
    stretch: list[str] = []
    for point in [*points, Point(last_s, None)]:
        if point.value is None:
            if stretch:
                found.append(_stretch(stretch, height))
            stretch = []
            continue
        x = (point.at_s - first_s) / span_s * width if last_s > first_s else width
        stretch.append(f"{x:.1f} {height - 1 - point.value / highest * (height - 4):.1f}")
    return found


def _stretch(places: Sequence[str], height: int) -> str:
    if len(places) == 1:
        x, y = places[0].split()
        return f'<circle cx="{x}" cy="{y}" r="1.5"/>'
    first_x, last_x = places[0].split()[0], places[-1].split()[0]
    path = "L".join(places)
    return f'<path class="area" d="M{first_x} {height}L{path}L{last_x} {height}Z"/><path d="M{path}"/>'
