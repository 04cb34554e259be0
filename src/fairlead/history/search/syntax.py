"""What the grammar makes of a query's text: conditions on names and values that nobody has looked at yet."""

from dataclasses import dataclass
from typing import ClassVar

from fairlead.core.errors import FixRequest

# Deeper ones are refused, so that whoever walks through them may call itself.
NESTING_MAX = 200


class TooDeep(FixRequest):
    """Parts of a query stand in each other more than `NESTING_MAX` deep."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What has no parts."""

    depth: ClassVar[int] = 0


@dataclass(frozen=True, slots=True)
class Name(Leaf):
    """A search attribute's, as it was written, without its quotes."""

    kind: ClassVar[str] = "*sqlparser.ColName"
    text: str


@dataclass(frozen=True, slots=True)
class String(Leaf):
    """A text in quotes."""

    kind: ClassVar[str] = "*sqlparser.SQLVal"
    text: str


@dataclass(frozen=True, slots=True)
class Number(Leaf):
    """A number, as it was written."""

    kind: ClassVar[str] = "*sqlparser.SQLVal"
    text: str


@dataclass(frozen=True, slots=True)
class Truth(Leaf):
    """True or false."""

    kind: ClassVar[str] = "sqlparser.BoolVal"
    value: bool


@dataclass(frozen=True, slots=True)
class Null(Leaf):
    """NULL as a value."""

    kind: ClassVar[str] = "*sqlparser.NullVal"


@dataclass(frozen=True, slots=True)
class Branch:
    """What has parts, and how deep they go."""

    depth: int


@dataclass(frozen=True, slots=True)
class Calculation(Branch):
    """Operators and functions that SQL has and this language does not."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sign(Branch):
    """An operator before a value."""

    kind: ClassVar[str] = "*sqlparser.UnaryExpr"
    operator: str
    of: "Node"


@dataclass(frozen=True, slots=True)
class Parentheses(Branch):
    """Anything in parentheses."""

    kind: ClassVar[str] = "*sqlparser.ParenExpr"
    inner: "Node"


@dataclass(frozen=True, slots=True)
class Comparison(Branch):
    """A name compared with a value."""

    kind: ClassVar[str] = "*sqlparser.ComparisonExpr"
    left: "Node"
    operator: str
    right: "Node"


@dataclass(frozen=True, slots=True)
class Membership(Branch):
    """A name that is one of some values, or none of them."""

    kind: ClassVar[str] = "*sqlparser.ComparisonExpr"
    left: "Node"
    is_negated: bool
    values: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Range(Branch):
    """A name between two values, or not."""

    kind: ClassVar[str] = "*sqlparser.RangeCond"
    left: "Node"
    is_negated: bool
    low: "Node"
    high: "Node"


@dataclass(frozen=True, slots=True)
class Is(Branch):
    """A name that is something, or is not."""

    kind: ClassVar[str] = "*sqlparser.IsExpr"
    left: "Node"
    is_negated: bool
    what: "Null | Truth"


@dataclass(frozen=True, slots=True)
class Opposite(Branch):
    """NOT."""

    kind: ClassVar[str] = "*sqlparser.NotExpr"
    of: "Node"


@dataclass(frozen=True, slots=True)
class All(Branch):
    """AND."""

    kind: ClassVar[str] = "*sqlparser.AndExpr"
    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Either(Branch):
    """OR."""

    kind: ClassVar[str] = "*sqlparser.OrExpr"
    parts: "tuple[Node, ...]"


Value = Name | String | Number | Truth | Null | Calculation | Sign
Node = Value | Parentheses | Comparison | Membership | Range | Is | Opposite | All | Either


@dataclass(frozen=True, slots=True)
class Statement:
    """A whole query."""

    where: Node | None
    group_by: tuple[Node, ...] = ()
    order_by: tuple[Node, ...] = ()
    has_limit: bool = False
    has_having: bool = False


def above(*parts: Node) -> int:
    """How deep something is that has these parts."""
    depth = 1 + max(part.depth for part in parts) if parts else 1
    if depth > NESTING_MAX:
        raise TooDeep
    return depth


def source_of(node: Node) -> str:
    """About how a value was written."""
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
