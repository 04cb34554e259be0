"""The targets of a batch job: how many there are, and page after page of them."""

from dataclasses import dataclass
from typing import NamedTuple

from temporalio.api.workflowservice.v1 import StartBatchOperationRequest

from fairlead.history.batches.kinds import ACTIVITY, kind_of, named_targets
from fairlead.history.batches.state import BatchState, Target
from fairlead.history.namespaces import Namespace
from fairlead.history.refusals import invalid
from fairlead.history.scope import Scope
from fairlead.history.search.query import parse_query
from fairlead.history.search.rows import PAUSE_INFO, pause_mark
from fairlead.history.standalone.answers import ARCHETYPE as ACTIVITY_ARCHETYPE
from fairlead.history.standalone.queries import parse_activity_query
from fairlead.storage.history_visibility import (
    LATEST_FIRST,
    And,
    Attribute,
    Column,
    Compare,
    Contains,
    IsNull,
    Not,
    Operator,
    Or,
    Predicate,
    cursor_of,
)


class Page(NamedTuple):
    """Targets, and where they end."""

    targets: list[Target]
    after: tuple[int, int, str] | None
    taken: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Finder:
    """Looks for the targets of one job: those that its request names, or those that its query finds."""

    scope: Scope
    request: StartBatchOperationRequest
    namespace_id: str
    where: Predicate | None

    async def count(self) -> int:
        """How many there are."""
        if not self.request.visibility_query:
            return len(named_targets(self.request))
        groups = await self.scope.services.store.count_visibility(self.namespace_id, self.where)
        return sum(group.rows for group in groups)

    async def next_page(self, state: BatchState, limit: int) -> Page:
        """The targets after those of the state's page."""
        if not self.request.visibility_query:
            targets = named_targets(self.request)
            taken = state.taken + limit
            return Page(targets[state.taken : taken], None, taken, is_last=taken >= len(targets))
        rows = await self.scope.services.store.list_visibility(
            self.namespace_id, self.where, after=state.after, limit=limit
        )
        after = cursor_of(rows[-1], LATEST_FIRST) if rows else state.after
        targets = [Target(row.workflow_id, row.run_id) for row in rows]
        return Page(targets, _place(after), state.taken + len(rows), is_last=len(rows) < limit)


def finder(scope: Scope, request: StartBatchOperationRequest, started_ns: int) -> Finder:
    """For the job that the request asks for. A query that can't be is refused."""
    kind = kind_of(request)
    namespace_id = scope.namespace.id
    if kind.target == ACTIVITY:
        namespace_id = f"{namespace_id}#{ACTIVITY_ARCHETYPE}"
    where = predicate_of(scope.namespace, request, started_ns) if request.visibility_query else None
    return Finder(scope, request, namespace_id, where)


def where_of(namespace: Namespace, request: StartBatchOperationRequest) -> Predicate | None:
    """What a job's query asks for, which may be refused."""
    parse = parse_activity_query if kind_of(request).target == ACTIVITY else parse_query
    parsed = parse(request.visibility_query, namespace.search_attributes)
    if parsed.group_by is not None:
        raise invalid("invalid visibility query: 'GROUP BY' finds no executions")
    return parsed.where


def predicate_of(namespace: Namespace, request: StartBatchOperationRequest, started_ns: int) -> Predicate | None:
    """What a target has to be."""
    kind = kind_of(request)
    where = where_of(namespace, request)
    parts: list[Predicate] = [] if where is None else [where]
    if kind.only_open:
        parts.append(IsNull(Column.CLOSE_TIME_NS))
    if request.HasField("reset_operation"):
        # A run that this job has ended by its reset is not to be reset again.
        parts.append(
            Or((IsNull(Column.CLOSE_TIME_NS), Compare(Column.CLOSE_TIME_NS, Operator.LESS, started_ns))),
        )
    if request.HasField("unpause_activities_operation"):
        activity_type = request.unpause_activities_operation.type
        paused = Attribute(PAUSE_INFO)
        parts.append(Contains(paused, pause_mark(activity_type)) if activity_type else Not(IsNull(paused)))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _place(cursor: tuple[object, ...] | None) -> tuple[int, int, str] | None:
    if cursor is None:
        return None
    close_time_ns, start_time_ns, run_id = cursor
    assert isinstance(close_time_ns, int)  # noqa: S101 - so is the order of the list
    assert isinstance(start_time_ns, int)  # noqa: S101
    return close_time_ns, start_time_ns, str(run_id)
