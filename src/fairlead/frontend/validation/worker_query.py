"""The query language of lists of workers: comparisons of a worker's fields, with AND, OR and brackets.

It is smaller than the language of list filters (`fairlead.api.search.grammar`). A keyword is reserved only where the
grammar expects it. As in Temporal's server, a comparison that makes no sense selects no worker. Other operators and
clauses are rejected; Temporal's server selects no worker for some of them (IN, LIKE, NOT, BETWEEN) and ignores others
(ORDER BY).

Importing this module builds the parser, so the server imports it after its start, see `fairlead.server.warm_up`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args
from temporalio.api.enums.v1 import WorkerStatus

from fairlead.api.errors import ApiError, InvalidArgument

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from temporalio.api.worker.v1 import WorkerHeartbeat

QUERY_CHARACTERS_MAX = 10_000
# Maximum depth of nested brackets, which is also the depth of the calls between predicates.
DEPTH_MAX = 50
# Temporal's server parses a statement with the query at its end, and its positions count from the statement's start.
_POSITION_OFFSET = 28

Predicate: TypeAlias = "Callable[[WorkerHeartbeat], bool]"

_GRAMMAR: Final = r"""
?start: disjunction
?disjunction: conjunction
            | conjunction (_OR conjunction)+    -> any_of
?conjunction: condition
            | condition (_AND condition)+       -> all_of
?condition: name COMPARISON value               -> comparison
          | name [NOT] STARTS_WITH value        -> prefix
          | name _IS [NOT] _NULL                -> null
          | "(" disjunction ")"                 -> brackets
name: WORD | QUOTED
?value: STRING                                  -> text
      | name                                    -> no_text

_AND: /AND(?![\w.])/i
_OR: /OR(?![\w.])/i
_IS: /IS(?![\w.])/i
_NULL: /NULL(?![\w.])/i
NOT: /NOT(?![\w.])/i
STARTS_WITH: /STARTS_WITH(?![\w.])/i
COMPARISON: /<=|>=|!=|<>|=|<|>/
STRING: /'(?:[^']|'')*'|"(?:[^"]|"")*"/
QUOTED: /`\w+`/
WORD: /\w+(?:\.\w+)?/
%ignore /\s+/
"""

_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")
_STATUSES = {number: name.removeprefix("WORKER_STATUS_") for name, number in WorkerStatus.items()}
_STATUS_TEXTS = {
    number: "".join(part.capitalize() for part in name.split("_")) if number else ""
    for number, name in _STATUSES.items()
}
_FIELDS: dict[str, Callable[[WorkerHeartbeat], str]] = {
    "WorkerInstanceKey": lambda worker: worker.worker_instance_key,
    "WorkerIdentity": lambda worker: worker.worker_identity,
    "HostName": lambda worker: worker.host_info.host_name,
    "TaskQueue": lambda worker: worker.task_queue,
    "DeploymentName": lambda worker: worker.deployment_version.deployment_name,
    "BuildId": lambda worker: worker.deployment_version.build_id,
    "SdkName": lambda worker: worker.sdk_name,
    "SdkVersion": lambda worker: worker.sdk_version,
    "Status": lambda worker: _STATUS_TEXTS.get(worker.status, ""),
    "StartTime": lambda worker: _time_text(worker.start_time),
    "HeartbeatTime": lambda worker: _time_text(worker.heartbeat_time),
}
_TIMES = ("StartTime", "HeartbeatTime")
_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<>": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "STARTS_WITH": lambda left, right: left.startswith(right),
    "NOT STARTS_WITH": lambda left, right: not left.startswith(right),
}
_OF_TEXTS = ("=", "!=", "<>", "STARTS_WITH", "NOT STARTS_WITH")


class _Value(NamedTuple):
    text: str
    is_quoted: bool


class _Condition(NamedTuple):
    holds: Predicate
    depth: int = 0


def parse_query(query: str) -> Predicate | None:
    """Parse a query into a predicate; None if it is blank and so selects all workers."""
    text = query.strip()
    if not text:
        return None
    if len(query) > QUERY_CHARACTERS_MAX:
        raise InvalidArgument(f"malformed query: {len(query)} characters are more than {QUERY_CHARACTERS_MAX}")
    try:
        condition = cast(_Condition, _PARSER.parse(text))
    except UnexpectedToken as wrong:
        token = wrong.token
        if token.type == "$END":
            raise _error_at(len(text), "") from None
        assert token.end_pos is not None  # noqa: S101 - every token of a text has one
        raise _error_at(token.end_pos, token.strip("`")) from None
    except UnexpectedCharacters as wrong:
        start = cast(int, wrong.pos_in_stream)
        is_open = text[start] in "'\"`"
        end = len(text) if is_open else start + 1
        raise _error_at(end, text[start + is_open : end]) from None
    return condition.holds


def _error_at(end: int, near: str) -> ApiError:
    position = f"malformed query: syntax error at position {end + _POSITION_OFFSET}"
    return InvalidArgument(f"{position} near '{near}'" if near else position)


def _nobody(_: WorkerHeartbeat) -> bool:
    return False


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Builds the predicates during parsing: no function has to walk a tree, which may be deep."""

    def any_of(self, *parts: _Condition) -> _Condition:
        holds = [part.holds for part in parts]
        return _Condition(lambda worker: any(one(worker) for one in holds), max(part.depth for part in parts))

    def all_of(self, *parts: _Condition) -> _Condition:
        holds = [part.holds for part in parts]
        return _Condition(lambda worker: all(one(worker) for one in holds), max(part.depth for part in parts))

    def brackets(self, inner: _Condition) -> _Condition:
        if inner.depth >= DEPTH_MAX:
            raise InvalidArgument(f"malformed query: more than {DEPTH_MAX} brackets within each other")
        return inner._replace(depth=inner.depth + 1)

    def comparison(self, name: str, operator: Token, value: _Value) -> _Condition:
        return _Condition(_compared(name, str(operator), value))

    def prefix(self, name: str, negation: Token | None, _starts_with: Token, value: _Value) -> _Condition:
        return _Condition(_compared(name, "NOT STARTS_WITH" if negation else "STARTS_WITH", value))

    def null(self, name: str, negation: Token | None) -> _Condition:
        read = _FIELDS.get(name)
        if read is None:
            return _Condition(_nobody)
        return _Condition(lambda worker: bool(read(worker)) is (negation is not None))

    def name(self, token: Token) -> str:
        return token.strip("`")

    def text(self, token: Token) -> _Value:
        quote = token[0]
        return _Value(token[1:-1].replace(quote * 2, quote), is_quoted=True)

    def no_text(self, word: str) -> _Value:
        return _Value(word, is_quoted=False)


def _compared(field: str, operator: str, compared: _Value) -> Predicate:
    read = _FIELDS.get(field)
    value = compared.text
    if field in _TIMES:
        match = _TIME.fullmatch(value)
        value = "" if match is None else f"{match[1]}.{(match[2] or '.')[1:]:0<9}"
    elif operator not in _OF_TEXTS:
        read = None
    if read is None or not compared.is_quoted or not value:
        return _nobody
    compare = _COMPARISONS[operator]
    # If a worker does not report a text field, the field differs from every text. If it does not report a time, the
    # time is neither before nor after any other.
    return lambda worker: (bool(own := read(worker)) or field not in _TIMES) and compare(own, value)


def _time_text(time: Timestamp) -> str:
    """Format a time so that texts sort as the times do."""
    if not time.seconds:
        return ""
    return f"{time.ToDatetime():%Y-%m-%dT%H:%M:%S}.{time.nanos:09}"


_PARSER: Final = Lark(_GRAMMAR, parser="lalr", transformer=_Builder(), maybe_placeholders=True)
