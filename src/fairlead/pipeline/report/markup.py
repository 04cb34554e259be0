"""Pieces of HTML and SVG. What is a plain string is text, and is escaped: only what was made here is markup."""

from collections.abc import Iterable, Sequence
from html import escape

# Names from the data may be of any length, and a page should not be.
TEXT_MAX = 160
NONE_SHOWN = "-"


class Markup(str):
    """Markup: a type of its own, so that no plain string is taken for it."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. A child that is not markup is text; attributes without a value are left out.

    Of attributes, an underscore stands for a hyphen, and one at the end for nothing: `class_`, `text_anchor`.
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Pieces one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that scrolls by itself where it is too wide; numbers stand to the right."""
    head = tag("tr", *(tag("th", heading) for heading in headings))
    body = [tag("tr", *(_cell(value) for value in row)) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scrolls")


def shown(value: object) -> str:
    """A value as people read it."""
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
    return tag("td", shown(value), class_="number" if is_number else None)


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
