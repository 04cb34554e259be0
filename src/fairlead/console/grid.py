"""Plain tables, so that views that only list things need no template of their own."""

from typing import Final

from msgspec import Struct

from fairlead.console.problems import Problem

TEMPLATE: Final = "grids.html"


class Cell(Struct, frozen=True, kw_only=True):
    """A cell: a text, a number or a time. With a `path`, it is a link to that view.

    `kind` is the color of a status, such as good, warn or bad; empty for plain text.
    """

    text: str = ""
    number: float | None = None
    at_s: float | None = None
    path: str = ""
    parameters: dict[str, str] = {}
    kind: str = ""
    # Name of an action that the row offers; `parameters` are its hidden fields.
    action: str = ""


class Grid(Struct, frozen=True, kw_only=True):
    """A table with its heading. `empty` and `hint` are shown if it has no rows."""

    id: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    empty: str = ""
    hint: str = ""
    note: str = ""
    problem: Problem | None = None

    def is_figure(self, column: int) -> bool:
        """Whether all cells of a column are numbers, or empty."""
        cells = [row[column] for row in self.rows if len(row) > column]
        return any(one.number is not None for one in cells) and not any(one.text or one.at_s for one in cells)


class Filter(Struct, frozen=True, kw_only=True):
    """A link that shows another part of the same view, by the parameters that it changes; None removes one."""

    text: str
    changes: dict[str, str | None]
    is_current: bool = False


class Grids(Struct, frozen=True, kw_only=True):
    """The data of a view that consists of tables; `sentence` is its summary."""

    grids: list[Grid]
    # The page's heading, if it names its object; otherwise it is the title of the view.
    heading: str = ""
    sentence: str = ""
    kind: str = "calm"
    # Token of the next page of the first table; empty on the last.
    next: str = ""
    # Actions that are for the whole page, and not for a row.
    page_actions: list[str] = []
    # Label of a field for the parameter `search`; empty if the view has none.
    search: str = ""
    filters: list[Filter] = []


def text(value: str, kind: str = "") -> Cell:
    """A text, or a status if it has a kind."""
    return Cell(text=value, kind=kind)


def number(value: float | None) -> Cell:
    """A number."""
    return Cell(number=value)


def moment(at_s: float | None) -> Cell:
    """A time in seconds since 1970; 0 and None are empty."""
    return Cell(at_s=at_s or None)


def link(value: str, path: str, **parameters: str) -> Cell:
    """A link to a view."""
    return Cell(text=value, path=path, parameters=parameters)


def button(action: str, label: str = "", **fixed: str) -> Cell:
    """The button of an action for this row."""
    return Cell(text=label, action=action, parameters=fixed)
