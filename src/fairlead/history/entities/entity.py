"""Entities: state machines that are stored like workflows, but without a history of events.

A schedule, a standalone activity, a standalone Nexus operation and a batch job are entities of four archetypes. Their
rows have the namespace id "<namespace>#<archetype>", so that their ids and lists never mix with the ids and lists of
workflows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from fairlead.aio.admission import end_turn
from fairlead.api.entity_namespaces import entity_namespace_id
from fairlead.api.errors import NotFound
from fairlead.history.shard.context import OperationContext
from fairlead.history.state.tasks import EntityTask, EntityTimer, QueueRow
from fairlead.storage.commit import Absent, CurrentWrite, IsRun, NotOpen, RunWrite
from fairlead.storage.history import CurrentRun, RunKey, StoredRun, VisibilityRow

if TYPE_CHECKING:
    from fairlead.history.shard.shard import Shard

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

RUNNING = 1


class EntityKey(NamedTuple):
    """The ids of an entity. Users choose `entity_id`; `run_id` tells apart entities with the same `entity_id`."""

    namespace_id: str
    entity_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Archetype(Generic[S]):
    """A kind of entity. `run` executes one of its tasks, and may be called more than once for the same task."""

    name: str
    state: type[S]
    run: Callable[[OperationContext, EntityKey, bytes], Awaitable[None]]
    # Whether a timer with this data will have an effect at the time when it fires.
    is_pending: Callable[[S, bytes, int], bool]

    def namespace_id(self, namespace_id: str) -> str:
        """The namespace id of the entities' rows."""
        return entity_namespace_id(namespace_id, self.name)


# All archetypes, by name.
ARCHETYPES: dict[str, Archetype[Any]] = {}


def register(archetype: Archetype[S]) -> Archetype[S]:
    """Register an archetype, so that its tasks are executed."""
    ARCHETYPES[archetype.name] = archetype
    return archetype


@dataclass(slots=True)
class EntityStep(Generic[S]):
    """One step of an entity.

    If `row` is set, it is written to visibility. A `status` other than running closes the entity.
    """

    state: S
    now_ns: int
    status: int = RUNNING
    row: VisibilityRow | None = None
    tasks: list[tuple[bytes, int]] = field(default_factory=list)
    skip_write: bool = False
    # Makes random numbers from 0 to 1.
    uniform: Callable[[], float] = lambda: 0.0

    def add_task(self, data: bytes, fire_at_ns: int = 0) -> None:
        """Add a task that is executed after the commit, or at the time `fire_at_ns`."""
        self.tasks.append((data, fire_at_ns))


async def create(
    context: OperationContext,
    archetype: Archetype[S],
    entity_id: str,
    run_id: str,
    state: S,
    *,
    request_id: str = "",
    row: VisibilityRow | None = None,
    tasks: Sequence[tuple[bytes, int]] = (),
    replace_closed: bool = True,
) -> None:
    """Create an entity; raises `CurrentConflict` with the current entity if the id is in use."""
    shard = context.shard
    namespace_id = archetype.namespace_id(context.namespace.id)
    async with shard.lock(namespace_id, entity_id):
        condition = NotOpen() if replace_closed else Absent()
        current = CurrentWrite(namespace_id, entity_id, run_id, request_id, RUNNING, 0, condition)
        write = RunWrite(namespace_id, entity_id, run_id, msgspec.msgpack.encode(state), None, 1, RUNNING, 0)
        key = RunKey(namespace_id, entity_id, run_id)
        await shard.writer.write_entities(
            [write],
            current=[current],
            rows=_rows(archetype, key, tasks),
            visibility=[row] if row is not None else [],
        )


async def find(context: OperationContext, archetype: Archetype[S], entity_id: str) -> CurrentRun | None:
    """The current entity of this id."""
    namespace_id = archetype.namespace_id(context.namespace.id)
    async with context.shard.lock(namespace_id, entity_id):
        return await context.shard.current_runs.find(namespace_id, entity_id)


async def change(
    context: OperationContext,
    archetype: Archetype[S],
    entity_id: str,
    run_id: str,
    step: Callable[[EntityStep[S]], T],
    *,
    prepare: Callable[[RunKey, S], Awaitable[None]] | None = None,
) -> T:
    """Change an entity by one step; an empty `run_id` means the current run. The step is durable when this returns.

    `prepare` is called first, with the lock held; if it fails, no step is taken.
    """
    shard = context.shard
    namespace_id = archetype.namespace_id(context.namespace.id)
    async with shard.lock(namespace_id, entity_id):
        stored = await _load(context, namespace_id, entity_id, run_id)
        services = context.services
        taken = EntityStep(_decode(archetype, stored), services.clock_ns(), stored.status, uniform=services.uniform)
        key = RunKey(namespace_id, entity_id, stored.run_id)
        if prepare is not None:
            await prepare(key, taken.state)
        result = step(taken)
        if taken.skip_write:
            return result
        current = await shard.current_runs.find(namespace_id, entity_id)
        write = RunWrite(
            *key, msgspec.msgpack.encode(taken.state), stored.db_version, stored.next_event_id, taken.status, 0
        )
        changes_status = current is not None and current.run_id == stored.run_id and current.status != taken.status
        await shard.writer.write_entities(
            [write],
            current=(
                [CurrentWrite(*key, current.request_id, taken.status, 0, IsRun(stored.run_id))]
                if changes_status and current is not None
                else []
            ),
            rows=_rows(archetype, key, taken.tasks),
            visibility=[taken.row] if taken.row is not None else [],
        )
        return result


async def read(context: OperationContext, archetype: Archetype[S], entity_id: str, run_id: str = "") -> tuple[str, S]:
    """The run id and the stored state of an entity."""
    namespace_id = archetype.namespace_id(context.namespace.id)
    async with context.shard.lock(namespace_id, entity_id):
        stored = await _load(context, namespace_id, entity_id, run_id)
    return stored.run_id, _decode(archetype, stored)


async def delete(context: OperationContext, archetype: Archetype[S], entity_id: str, run_id: str = "") -> None:
    """Delete an entity and its visibility row."""
    namespace_id = archetype.namespace_id(context.namespace.id)
    async with context.shard.lock(namespace_id, entity_id):
        stored = await _load(context, namespace_id, entity_id, run_id)
        await context.shard.writer.delete_entity(RunKey(namespace_id, entity_id, stored.run_id))


async def wait_for_change(
    context: OperationContext, archetype: Archetype[S], entity_id: str, run_id: str, timeout_s: float
) -> None:
    """Wait until the entity changes or the timeout is over.

    Don't await between reading the entity and this call: a change in between would be missed.
    """
    key = RunKey(archetype.namespace_id(context.namespace.id), entity_id, run_id)
    changed = context.shard.watchers.watch(key)
    end_turn()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await changed.wait()
    finally:
        context.shard.watchers.unwatch(key, changed)


async def is_pending(shard: "Shard", row: QueueRow, timer: EntityTimer) -> bool:
    """Whether an entity's timer will have an effect when it fires."""
    archetype = ARCHETYPES[timer.archetype]
    stored = await shard.services.store.read_run(shard.shard_id, row.namespace_id, row.workflow_id, row.run_id)
    return stored is not None and archetype.is_pending(_decode(archetype, stored), timer.data, timer.fire_at_ns)


async def run_task(context: OperationContext, row: QueueRow, task: EntityTask | EntityTimer) -> None:
    """Execute a task of an entity."""
    archetype = ARCHETYPES[task.archetype]
    await archetype.run(context, EntityKey(context.namespace.id, row.workflow_id, row.run_id), task.data)


async def _load(context: OperationContext, namespace_id: str, entity_id: str, run_id: str) -> StoredRun:
    shard = context.shard
    if not run_id:
        current = await shard.current_runs.find(namespace_id, entity_id)
        if current is None:
            raise NotFound(f"{entity_id} not found")
        run_id = current.run_id
    stored = await context.services.store.read_run(shard.shard_id, namespace_id, entity_id, run_id)
    if stored is None:
        raise NotFound(f"{entity_id} not found")
    return stored


def _decode(archetype: Archetype[S], stored: StoredRun) -> S:
    return msgspec.msgpack.decode(stored.state, type=archetype.state)


def _rows(archetype: Archetype[Any], key: RunKey, tasks: Sequence[tuple[bytes, int]]) -> list[QueueRow]:
    return [
        QueueRow(
            *key,
            EntityTimer(0, fire_at_ns, archetype.name, data) if fire_at_ns else EntityTask(0, archetype.name, data),
        )
        for data, fire_at_ns in tasks
    ]
