"""The targets of a batch job: their number, and their pages."""

from dataclasses import dataclass
from typing import NamedTuple

from temporalio.api.workflowservice.v1 import StartBatchOperationRequest

from fairlead.api.batch_jobs import ACTIVITY, kind_of, where_of
from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.namespaces import Namespace
from fairlead.api.standalone_activities import ARCHETYPE as ACTIVITY_ARCHETYPE
from fairlead.history.entities.batch_jobs.kinds import named_targets
from fairlead.history.entities.batch_jobs.state import BatchState, Target
from fairlead.history.shard.context import OperationContext
from fairlead.history.shard.visibility_rows import PAUSE_INFO, pause_mark
from fairlead.storage.predicates import And, Compare, Contains, IsNull, Not, Operator, Or, Predicate
from fairlead.storage.visibility import LATEST_FIRST, Attribute, Column, cursor_of


class Page(NamedTuple):
    """A page of targets, and the position after them."""

    targets: list[Target]
    after: tuple[int, int, str] | None
    taken: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the targets of one job: the targets in its request, or the targets that match its query."""

    context: OperationContext
    request: StartBatchOperationRequest
    namespace_id: str
    where: Predicate | None

    async def count(self) -> int:
        """Number of targets."""
        if not self.request.visibility_query:
            return len(named_targets(self.request))
        groups = await self.context.services.store.count_visibility(self.namespace_id, self.where)
        return sum(group.rows for group in groups)

    async def next_page(self, state: BatchState, limit: int) -> Page:
        """The page of targets that follows the page in the job's state."""
        if not self.request.visibility_query:
            targets = named_targets(self.request)
            taken = state.taken + limit
            return Page(targets[state.taken : taken], None, taken, is_last=taken >= len(targets))
        rows = await self.context.services.store.list_visibility(
            self.namespace_id, self.where, after=state.after, limit=limit
        )
        after = cursor_of(rows[-1], LATEST_FIRST) if rows else state.after
        targets = [Target(row.workflow_id, row.run_id) for row in rows]
        return Page(targets, _position(after), state.taken + len(rows), is_last=len(rows) < limit)


def finder(context: OperationContext, request: StartBatchOperationRequest, started_ns: int) -> Finder:
    """A finder for the job; raises an API error for an invalid query."""
    kind = kind_of(request)
    namespace_id = context.namespace.id
    if kind.target == ACTIVITY:
        namespace_id = entity_namespace_id(namespace_id, ACTIVITY_ARCHETYPE)
    where = predicate_of(context.namespace, request, started_ns) if request.visibility_query else None
    return Finder(context, request, namespace_id, where)


def predicate_of(namespace: Namespace, request: StartBatchOperationRequest, started_ns: int) -> Predicate | None:
    """The predicate that a target must match: the query, and the conditions of the operation."""
    kind = kind_of(request)
    where = where_of(namespace, request)
    parts: list[Predicate] = [] if where is None else [where]
    if kind.only_open:
        parts.append(IsNull(Column.CLOSE_TIME_NS))
    if request.HasField("reset_operation"):
        # Exclude runs that this job's reset has terminated.
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


def _position(cursor: tuple[object, ...] | None) -> tuple[int, int, str] | None:
    if cursor is None:
        return None
    close_time_ns, start_time_ns, run_id = cursor
    assert isinstance(close_time_ns, int)  # noqa: S101 - so is the order of the list
    assert isinstance(start_time_ns, int)  # noqa: S101
    return close_time_ns, start_time_ns, str(run_id)
