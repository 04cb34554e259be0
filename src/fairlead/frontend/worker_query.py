"""The language in which workers are listed: comparisons of what a worker says of itself, with AND, OR and brackets.

As in Temporal's server, a comparison that makes no sense holds for no worker. What this can't read is refused, also
where Temporal's server reads it and then finds nobody (IN, LIKE, NOT, BETWEEN), or leaves it out (ORDER BY).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from temporalio.api.enums.v1 import WorkerStatus

from fairlead.history.refusals import Refused, invalid

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from temporalio.api.worker.v1 import WorkerHeartbeat

QUERY_CHARACTERS_MAX = 10_000
DEPTH_MAX = 50
# Temporal counts from the beginning of the statement that it puts around the query.
_POSITION_OFFSET = 28

Predicate: TypeAlias = "Callable[[WorkerHeartbeat], bool]"

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|`(?P<quoted>\w+)`|(?P<word>\w+(?:\.\w+)?)|(?P<sign><=|>=|!=|<>|[=<>(),]))"
)
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


def _nobody(_: WorkerHeartbeat) -> bool:
    return False


def parse_query(query: str) -> Predicate | None:
    """Whom the query is about; None: everybody."""
    if not query.strip():
        return None
    if len(query) > QUERY_CHARACTERS_MAX:
        raise invalid(f"malformed query: {len(query)} characters are more than {QUERY_CHARACTERS_MAX}")
    reader = _Reader(query)
    predicate = reader.any_of(0)
    if reader.peek() is not None:
        raise reader.problem()
    return predicate


class _Reader:
    """Reads a query from left to right."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._tokens: list[tuple[str, str, int]] = []
        position = 0
        end = len(query.rstrip())
        while position < end:
            match = _TOKEN.match(query, position)
            if match is None:
                raise _problem(position, query[position:][:20])
            kind = str(match.lastgroup)
            self._tokens.append((kind, match.group(kind), match.end()))
            position = match.end()
        self._next = 0

    def peek(self) -> str | None:
        """The next word or sign, words in capitals."""
        if self._next >= len(self._tokens):
            return None
        kind, text, _ = self._tokens[self._next]
        return text.upper() if kind == "word" else text if kind == "sign" else ""

    def problem(self) -> Refused:
        """What is wrong where the reader is."""
        if self._next >= len(self._tokens):
            return invalid(f"malformed query: syntax error at position {len(self._query) + _POSITION_OFFSET}")
        _, text, position = self._tokens[self._next]
        return _problem(position, text)

    def any_of(self, depth: int) -> Predicate:
        """Parts joined by OR."""
        parts = [self._all_of(depth)]
        while self.peek() == "OR":
            self._next += 1
            parts.append(self._all_of(depth))
        return parts[0] if len(parts) == 1 else lambda worker: any(part(worker) for part in parts)

    def _all_of(self, depth: int) -> Predicate:
        parts = [self._one(depth)]
        while self.peek() == "AND":
            self._next += 1
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda worker: all(part(worker) for part in parts)

    def _one(self, depth: int) -> Predicate:
        if self.peek() != "(":
            return self._comparison()
        if depth >= DEPTH_MAX:
            raise invalid(f"malformed query: more than {DEPTH_MAX} brackets within each other")
        self._next += 1
        inner = self.any_of(depth + 1)
        self._take(")")
        return inner

    def _comparison(self) -> Predicate:
        field = self._take_name()
        sign = self._take_sign()
        if sign in ("IS", "IS NOT"):
            self._take("NULL")
            read = _FIELDS.get(field)
            if read is None:
                return _nobody
            return lambda worker: bool(read(worker)) is (sign == "IS NOT")
        return _compared(field, sign, *self._take_value())

    def _take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise self.problem()
        self._next += 1

    def _take_name(self) -> str:
        if self._next >= len(self._tokens) or self._tokens[self._next][0] not in ("word", "quoted"):
            raise self.problem()
        self._next += 1
        return self._tokens[self._next - 1][1]

    def _take_sign(self) -> str:
        sign = self.peek()
        if sign in ("IS", "NOT"):
            self._next += 1
            second = self.peek()
            if sign == "IS" and second != "NOT":
                return sign
            sign = f"{sign} {second}"
        if sign not in _COMPARISONS and sign != "IS NOT":
            raise self.problem()
        self._next += 1
        return str(sign)

    def _take_value(self) -> tuple[str, bool]:
        """The value, and whether it is a text."""
        if self._next >= len(self._tokens) or self._tokens[self._next][0] == "sign":
            raise self.problem()
        kind, text, _ = self._tokens[self._next]
        self._next += 1
        if kind != "text":
            return text, False
        return text[1:-1].replace(text[0] * 2, text[0]), True


def _problem(position: int, text: str) -> Refused:
    return invalid(f"malformed query: syntax error at position {position + _POSITION_OFFSET} near '{text}'")


def _compared(field: str, sign: str, value: str, is_text: bool) -> Predicate:  # noqa: FBT001 - as the reader gives it
    read = _FIELDS.get(field)
    if field in _TIMES:
        match = _TIME.fullmatch(value)
        value = "" if match is None else f"{match[1]}.{(match[2] or '.')[1:]:0<9}"
    elif sign not in _OF_TEXTS:
        read = None
    if read is None or not is_text or not value:
        return _nobody
    compare = _COMPARISONS[sign]
    # What a worker does not say of itself differs from every text, but is at no time.
    return lambda worker: (bool(own := read(worker)) or field not in _TIMES) and compare(own, value)


def _time_text(time: Timestamp) -> str:
    """In a form in which the order of the texts is that of the times."""
    if not time.seconds:
        return ""
    return f"{time.ToDatetime():%Y-%m-%dT%H:%M:%S}.{time.nanos:09}"
