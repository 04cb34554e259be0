"""Syntax tree of a list filter: conditions on names and values that are not validated yet."""

from typing import ClassVar

from msgspec import Struct

from fairlead.core.errors import FixRequest

# Maximum depth of a tree; deeper queries are rejected, so that recursion over a tree is safe.
NESTING_MAX = 200


class TooDeep(FixRequest):
    """A query is nested more than `NESTING_MAX` deep."""


class Leaf(Struct, frozen=True):
    """A node without parts."""

    depth: ClassVar[int] = 0


class Name(Leaf, frozen=True):
    """The name of a search attribute as written, without backquotes."""

    kind: ClassVar[str] = "*sqlparser.ColName"
    text: str


class String(Leaf, frozen=True):
    """A quoted string."""

    kind: ClassVar[str] = "*sqlparser.SQLVal"
    text: str


class Number(Leaf, frozen=True):
    """A number as written."""

    kind: ClassVar[str] = "*sqlparser.SQLVal"
    text: str


class Truth(Leaf, frozen=True):
    """True or false."""

    kind: ClassVar[str] = "sqlparser.BoolVal"
    value: bool


class Null(Leaf, frozen=True):
    """NULL as a value."""

    kind: ClassVar[str] = "*sqlparser.NullVal"


class Branch(Struct, frozen=True):
    """A node with parts; `depth` is the depth of the tree below it."""

    depth: int


class Calculation(Branch, frozen=True):
    """An operator or function of SQL that list filters don't support."""

    kind: str


class Sign(Branch, frozen=True):
    """A unary operator before a value."""

    kind: ClassVar[str] = "*sqlparser.UnaryExpr"
    operator: str
    of: "Node"


class Parentheses(Branch, frozen=True):
    """A node in parentheses."""

    kind: ClassVar[str] = "*sqlparser.ParenExpr"
    inner: "Node"


class Comparison(Branch, frozen=True):
    """A name compared with a value."""

    kind: ClassVar[str] = "*sqlparser.ComparisonExpr"
    left: "Node"
    operator: str
    right: "Node"


class Membership(Branch, frozen=True):
    """IN or NOT IN."""

    kind: ClassVar[str] = "*sqlparser.ComparisonExpr"
    left: "Node"
    is_negated: bool
    values: "tuple[Node, ...]"


class Range(Branch, frozen=True):
    """BETWEEN or NOT BETWEEN."""

    kind: ClassVar[str] = "*sqlparser.RangeCond"
    left: "Node"
    is_negated: bool
    low: "Node"
    high: "Node"


class Is(Branch, frozen=True):
    """IS or IS NOT."""

    kind: ClassVar[str] = "*sqlparser.IsExpr"
    left: "Node"
    is_negated: bool
    what: "Null | Truth"


class Opposite(Branch, frozen=True):
    """NOT of a condition."""

    kind: ClassVar[str] = "*sqlparser.NotExpr"
    of: "Node"


class All(Branch, frozen=True):
    """AND of conditions."""

    kind: ClassVar[str] = "*sqlparser.AndExpr"
    parts: "tuple[Node, ...]"


class Either(Branch, frozen=True):
    """OR of conditions."""

    kind: ClassVar[str] = "*sqlparser.OrExpr"
    parts: "tuple[Node, ...]"


Value = Name | String | Number | Truth | Null | Calculation | Sign
Node = Value | Parentheses | Comparison | Membership | Range | Is | Opposite | All | Either


class Ordered(Struct, frozen=True):
    """A key of ORDER BY and its direction."""

    by: Node
    descending: bool = False


class Statement(Struct, frozen=True):
    """A whole query."""

    where: Node | None
    group_by: tuple[Node, ...] = ()
    order_by: tuple[Ordered, ...] = ()
    has_limit: bool = False
    has_having: bool = False


def above(*parts: Node) -> int:
    """The depth of a node with these parts; raises `TooDeep` if it is above `NESTING_MAX`."""
    depth = 1 + max(part.depth for part in parts) if parts else 1
    if depth > NESTING_MAX:
        raise TooDeep
    return depth


def source_of(node: Node) -> str:
    """The approximate source text of a value."""
    if isinstance(node, Name | Number):
        return node.text
    if isinstance(node, String):
        return "'" + node.text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(node, Truth):
        return "true" if node.value else "false"
    if isinstance(node, Parentheses):
        return f"({source_of(node.inner)})"
    if isinstance(node, Sign):
        return f"{node.operator}{source_of(node.of)}"
    return "null" if isinstance(node, Null) else "..."
