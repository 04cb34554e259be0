"""The grammar and the parser of Temporal's list filters.

The grammar accepts more of SQL than list filters support, so that errors can name the unsupported feature. Keywords are
not case-sensitive; a keyword can be used as a name only in backquotes.
"""

import re
from functools import lru_cache
from typing import Any, Final, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from fairlead.api.errors import ApiError, InvalidArgument
from fairlead.api.search.syntax import (
    All,
    Calculation,
    Comparison,
    Either,
    Is,
    Membership,
    Name,
    Node,
    Null,
    Number,
    Opposite,
    Ordered,
    Parentheses,
    Range,
    Sign,
    Statement,
    String,
    TooDeep,
    Truth,
    above,
)

QUERY_BYTES_MAX = 64 * 1024
# Maximum number of tokens. Parsing takes about 10 µs per token, which blocks the event loop.
TOKENS_MAX = 5000
# Maximum number of characters of a cached query; longer queries are parsed each time, which bounds the cache in bytes.
KEPT_CHARACTERS_MAX = 4096
KEPT_QUERIES_MAX = 512

_WORDS: Final = """
AND ASC BETWEEN BY DESC DIV ESCAPE FALSE GROUP HAVING IN IS LIKE LIMIT MOD NOT NULL OFFSET OR ORDER REGEXP STARTS_WITH
TRUE
"""
_OTHER_WORDS: Final = """
alter as case cast collate convert create default delete distinct drop else end exists explain for from if insert
interval into join key on select set show table then to union unique update use using values when where with xor
"""
_GRAMMAR: Final = (
    r"""
start: disjunction [group] [order] [limit] ";"?
     | group [order] [limit] ";"?       -> all_grouped
     | order [limit] ";"?               -> all_ordered

group: GROUP BY value ("," value)* [having]
having: HAVING disjunction
order: ORDER BY ordered ("," ordered)*
?ordered: value (ASC | DESC)?
limit: LIMIT value (("," | OFFSET) value)?

?disjunction: conjunction
            | conjunction ((OR | OR_SIGN) conjunction)+     -> either
?conjunction: negation
            | negation ((AND | AND_SIGN) negation)+          -> all
?negation: condition
         | NOT negation                                     -> opposite
?condition: value
          | value COMPARISON value                          -> comparison
          | value [NOT] STARTS_WITH value                   -> comparison_by_word
          | value [NOT] LIKE value (ESCAPE value)?          -> comparison_by_word
          | value [NOT] REGEXP value                        -> comparison_by_word
          | value [NOT] IN "(" value ("," value)* ")"       -> membership
          | value [NOT] BETWEEN value AND value             -> range
          | value IS [NOT] (NULL | TRUE | FALSE)            -> is_something

?value: signed
      | signed ((SIGN | BINARY | DIV | MOD) signed)+        -> calculation
?signed: atom
       | (SIGN | PREFIX) signed                             -> sign
?atom: NAME                                                 -> name
     | STRING                                               -> string
     | NUMBER                                               -> number
     | (TRUE | FALSE)                                       -> truth
     | NULL                                                 -> null
     | NAME "(" [value ("," value)*] ")"                    -> function
     | "(" disjunction ")"                                  -> parentheses

AND_SIGN.2: "&&"
OR_SIGN.2: "||"
COMPARISON.2: /<=>|<=|>=|<>|!=|=|<|>/
BINARY.1: /->>?|<<|>>|[*\/%^|&]/
SIGN.1: /[+-]/
PREFIX.1: /[!~]/
NUMBER.3: /0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]*)?/
STRING.3: /'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"/s
NAME.3: /(?:[A-Za-z_@][0-9A-Za-z_$@]*|`(?:[^`]|``)+`)(?:\.(?:[A-Za-z_@][0-9A-Za-z_$@]*|`(?:[^`]|``)+`))*/
COMMENT.4: /--[^\n]*|#[^\n]*|\/\*.*?\*\//s

%ignore COMMENT
%ignore /\s+/
"""
    f"%declare {' '.join(_WORDS.split())}"
)

_KEYWORDS: Final = {word.lower(): word for word in _WORDS.split()} | {"rlike": "REGEXP"}
# Reserved words of SQL that the grammar does not use.
_RESERVED: Final = frozenset(_OTHER_WORDS.split())
_BACKQUOTED: Final = re.compile(r"`((?:[^`]|``)+)`")
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_ESCAPE: Final = re.compile(r"\\(.)|''", re.DOTALL)
_ESCAPE_IN_DOUBLE: Final = re.compile(r'\\(.)|""', re.DOTALL)
# Length of the text that the reference server prepends to a filter; the positions in its errors include it.
_PREFIX_BYTES: Final = len("select * from table1 where ")
_PREFIX_BYTES_WITHOUT_FILTER: Final = len("select * from table1 ")


def parse_statement(text: str) -> Statement:
    """Parse a query that is not blank; raises an API error for a syntax error."""
    if len(text.encode(errors="replace")) > QUERY_BYTES_MAX:
        raise malformed(f"query is longer than {QUERY_BYTES_MAX} bytes")
    return _kept(text) if len(text) <= KEPT_CHARACTERS_MAX else _parse(text)


def malformed(problem: str) -> ApiError:
    """The API error for a query that can't be parsed."""
    return InvalidArgument(f"invalid query: malformed SQL query: {problem}")


def _parse(text: str) -> Statement:
    try:
        parsing = _PARSER.parse_interactive(text)
        for number, _ in enumerate(parsing.iter_parse()):
            if number == TOKENS_MAX:
                raise malformed(f"query has more than {TOKENS_MAX} tokens")
        statement = parsing.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedToken as wrong:
        raise _syntax_error(text, wrong.token) from None
    except UnexpectedCharacters as wrong:
        raise _unexpected_character(text, cast(int, wrong.pos_in_stream)) from None
    except TooDeep:
        raise malformed("max nesting level reached") from None
    assert isinstance(statement, Statement)  # noqa: S101 - the transformer's result for `start`
    return statement


_kept = lru_cache(KEPT_QUERIES_MAX)(_parse)


def _syntax_error(text: str, token: Token) -> ApiError:
    if token.type == "$END":
        return _error_at(text, len(text), "")
    near = str(token) if token.type in ("NAME", "NUMBER") else ""
    if token.type == "NAME":
        near = _unquoted(near)
    elif token.type == "STRING":
        near = _text_of(token)
    elif token.type.lower() in _KEYWORDS or token.type == "RESERVED":
        near = token.lower()
    assert token.end_pos is not None  # noqa: S101 - every token of a text has one
    return _error_at(text, token.end_pos, near)


def _unexpected_character(text: str, start: int) -> ApiError:
    if text[start] in "'\"`":
        return _error_at(text, len(text), text[start + 1 :])
    return _error_at(text, start + 1, text[start])


def prefix_bytes(text: str) -> int:
    """Length of the text before a query that the reference server counts in the positions of syntax errors."""
    without_filter = text.lower().startswith(("order by", "group by"))
    return _PREFIX_BYTES_WITHOUT_FILTER if without_filter else _PREFIX_BYTES


def _error_at(text: str, end: int, near: str) -> ApiError:
    """A syntax error after `end`: the reference server's parser is one byte further when it detects a wrong token."""
    position = prefix_bytes(text) + len(text[:end].encode(errors="replace")) + 1
    return malformed(f"syntax error at position {position}" + (f" near '{near}'" if near else ""))


def _unquoted(name: str) -> str:
    return _BACKQUOTED.sub(lambda found: found[1].replace("``", "`"), str(name)) if "`" in name else str(name)


def _text_of(token: Token) -> str:
    quote, inner = token[0], token[1:-1]
    if "\\" not in inner and quote not in inner:
        return inner
    escape = _ESCAPE if quote == "'" else _ESCAPE_IN_DOUBLE
    return escape.sub(lambda found: _ESCAPED.get(found[1], found[1]) if found[1] else quote, inner)


def _keyword_or_name(token: Token) -> Token:
    word = token.lower()
    if word in _KEYWORDS:
        token.type = _KEYWORDS[word]
    elif word in _RESERVED:
        token.type = "RESERVED"
    return token


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Builds the nodes during parsing, so that no code recurses into a tree that is too deep.

    Many methods, because lark calls one for each rule of the grammar.
    """

    def start(self, where: Node, group: Any, order: Any, limit: Any) -> Statement:
        return self._statement(where, group, order, limit)

    def all_grouped(self, group: Any, order: Any, limit: Any) -> Statement:
        return self._statement(None, group, order, limit)

    def all_ordered(self, order: Any, limit: Any) -> Statement:
        return self._statement(None, None, order, limit)

    def _statement(self, where: Node | None, group: Any, order: Any, limit: Any) -> Statement:
        names, has_having = group or ((), False)
        return Statement(where, names, order or (), limit is not None, has_having)

    def group(self, *parts: Any) -> tuple[tuple[Node, ...], bool]:
        *_, having = parts
        return _nodes(parts[:-1]), having is not None

    def having(self, *_parts: Any) -> bool:
        return True

    def order(self, *parts: Any) -> tuple[Ordered, ...]:
        found = (part for part in parts if not isinstance(part, Token))
        return tuple(part if isinstance(part, Ordered) else Ordered(part) for part in found)

    def ordered(self, value: Node, direction: Token) -> Ordered:
        return Ordered(value, descending=direction.lower() == "desc")

    def limit(self, *_parts: Any) -> bool:
        return True

    def either(self, *parts: Any) -> Node:
        nodes = _nodes(parts)
        return Either(above(*nodes), nodes)

    def all(self, *parts: Any) -> Node:
        nodes = _nodes(parts)
        return All(above(*nodes), nodes)

    def opposite(self, _not: Token, of: Node) -> Node:
        return Opposite(above(of), of)

    def comparison(self, left: Node, operator: Token, right: Node) -> Node:
        return Comparison(above(left, right), left, "!=" if operator == "<>" else str(operator), right)

    def comparison_by_word(self, left: Node, negation: Token | None, operator: Token, right: Node, *_: Any) -> Node:
        name = f"NOT {operator.type}" if negation else operator.type
        return Comparison(above(left, right), left, name, right)

    def membership(self, left: Node, negation: Token | None, _in: Token, *values: Node) -> Node:
        return Membership(above(left, *values), left, negation is not None, values)

    def range(self, left: Node, negation: Token | None, _between: Token, low: Node, _and: Token, high: Node) -> Node:
        return Range(above(left, low, high), left, negation is not None, low, high)

    def is_something(self, left: Node, _is: Token, negation: Token | None, what: Token) -> Node:
        return Is(
            above(left), left, negation is not None, Null() if what.type == "NULL" else Truth(what.type == "TRUE")
        )

    def calculation(self, *parts: Any) -> Node:
        return Calculation(above(*_nodes(parts)), "*sqlparser.BinaryExpr")

    def sign(self, operator: Token, of: Node) -> Node:
        if isinstance(of, Number) and operator in ("+", "-"):
            # A double minus cancels out.
            return Number(of.text.removeprefix("-") if operator == "+" or of.text[0] == "-" else f"-{of.text}")
        return Sign(above(of), str(operator), of)

    def name(self, token: Token) -> Node:
        return Name(_unquoted(token))

    def string(self, token: Token) -> Node:
        return String(_text_of(token))

    def number(self, token: Token) -> Node:
        return Number(str(token))

    def truth(self, token: Token) -> Node:
        return Truth(token.type == "TRUE")

    def null(self, _token: Token) -> Node:
        return Null()

    def function(self, _name: Token, *values: Any) -> Node:
        return Calculation(above(*_nodes(values)), "*sqlparser.FuncExpr")

    def parentheses(self, inner: Node) -> Node:
        return Parentheses(above(inner), inner)


def _nodes(parts: tuple[Any, ...]) -> tuple[Node, ...]:
    return tuple(part for part in parts if part is not None and not isinstance(part, Token))


_PARSER: Final = Lark(
    _GRAMMAR,
    parser="lalr",
    lexer="basic",
    transformer=_Builder(),
    maybe_placeholders=True,
    lexer_callbacks={"NAME": _keyword_or_name},
)
