"""Pieces of HTML and SVG. Plain strings are escaped as text: only this module creates markup."""

import re
from collections.abc import Iterable, Sequence
from html import escape

# Maximum characters of a text: names in the data may have any length.
TEXT_MAX = 160
NONE_SHOWN = "-"
# Times and durations, as the page shows them.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)")
_LENGTH = re.compile(r"[\d.e+-]+ (s|min|h|d)")


class Markup(str):
    """Markup: a separate type, so that a plain string is never taken for markup."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Children that are not markup are escaped; attributes without a value are left out.

    In attribute names, an underscore stands for a hyphen, and is dropped at the end: `text_anchor`, `class_`.
    """
    rendered = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{rendered}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Concatenate pieces; plain strings are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Return a table that scrolls if it is too wide; numbers are right-aligned."""
    head = tag("tr", *(tag("th", heading) for heading in headings))
    body = [tag("tr", *(_cell(value) for value in row)) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scrolls")


def cards(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Return a table whose rows become cards on a narrow screen, each value below its heading."""
    head = tag("tr", *(tag("th", heading) for heading in headings))
    body = [
        tag(
            "tr",
            *(tag("td", tag("div", value), data_label=heading) for heading, value in zip(headings, row, strict=True)),
        )
        for row in rows
    ]
    return tag("table", tag("thead", head), tag("tbody", *body), class_="cards")


def shown(value: object) -> str:
    """Return the display text of a value."""
    if value is None:
        return NONE_SHOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    text = str(value)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _cell(value: object) -> Markup:
    if isinstance(value, Markup):
        return tag("td", value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    text = shown(value)
    if (moment := _MOMENT.fullmatch(text)) is not None:
        # The line may break between date and time, but not at a hyphen.
        return tag("td", tag("span", moment[1], class_="whole"), " ", moment[2])
    return tag("td", text, class_="number" if is_number else "whole" if _LENGTH.fullmatch(text) else None)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
