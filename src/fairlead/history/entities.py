"""Entities: state machines that are kept as workflows are, but without a history of events.

A schedule, an activity that stands alone and a batch job are entities of three archetypes. Their rows are under the
namespace id "<namespace>#<archetype>", so that their ids and lists never mix with those of workflows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from fairlead.history.refusals import not_found
from fairlead.history.scope import Scope
from fairlead.history.state.tasks import EntityTask, EntityTimer, QueueRow
from fairlead.storage.history_contract import (
    Absent,
    CurrentRun,
    CurrentWrite,
    IsRun,
    NotOpen,
    RunKey,
    RunWrite,
    StoredRun,
    VisibilityRow,
)

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

RUNNING = 1


class EntityKey(NamedTuple):
    """Which entity of an archetype: `entity_id` is the users' name for it, `run_id` tells it from others before."""

    namespace_id: str
    entity_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Archetype(Generic[S]):
    """A kind of entity. `run` does what one of its tasks says, any number of times."""

    name: str
    state: type[S]
    run: Callable[[Scope, EntityKey, bytes], Awaitable[None]]

    def namespace_id(self, namespace_id: str) -> str:
        """Under which namespace id the rows are."""
        return f"{namespace_id}#{self.name}"


# Every archetype that this server has, by its name.
ARCHETYPES: dict[str, Archetype[Any]] = {}


def register(archetype: Archetype[S]) -> Archetype[S]:
    """Make an archetype's tasks find who does them."""
    ARCHETYPES[archetype.name] = archetype
    return archetype


@dataclass(slots=True)
class EntityStep(Generic[S]):
    """One step of an entity. `row` is written to the list if it is set; `status` other than running closes it."""

    state: S
    now_ns: int
    status: int = RUNNING
    row: VisibilityRow | None = None
    tasks: list[tuple[bytes, int]] = field(default_factory=list)
    skip_write: bool = False

    def add_task(self, data: bytes, fire_at_ns: int = 0) -> None:
        """Have something done when the step is durable, or at a time."""
        self.tasks.append((data, fire_at_ns))


async def create(
    scope: Scope,
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
    """Begin an entity. `CurrentConflict` says what has its id."""
    shard = scope.shard
    namespace_id = archetype.namespace_id(scope.namespace.id)
    async with shard.lock(namespace_id, entity_id):
        condition = NotOpen() if replace_closed else Absent()
        current = CurrentWrite(namespace_id, entity_id, run_id, request_id, RUNNING, 0, condition)
        write = RunWrite(namespace_id, entity_id, run_id, msgspec.msgpack.encode(state), None, 1, RUNNING, 0)
        key = RunKey(namespace_id, entity_id, run_id)
        await shard.write_rows(
            [write],
            current=[current],
            rows=_rows(archetype, key, tasks),
            visibility=[row] if row is not None else [],
        )


async def find(scope: Scope, archetype: Archetype[S], entity_id: str) -> CurrentRun | None:
    """What has the id now."""
    namespace_id = archetype.namespace_id(scope.namespace.id)
    async with scope.shard.lock(namespace_id, entity_id):
        return await scope.shard.current(namespace_id, entity_id)


async def change(
    scope: Scope, archetype: Archetype[S], entity_id: str, run_id: str, step: Callable[[EntityStep[S]], T]
) -> T:
    """Take one step of an entity, the current one if no run is named. When this returns, it is durable."""
    shard = scope.shard
    namespace_id = archetype.namespace_id(scope.namespace.id)
    async with shard.lock(namespace_id, entity_id):
        stored = await _load(scope, namespace_id, entity_id, run_id)
        taken = EntityStep(_decode(archetype, stored), scope.services.clock_ns(), stored.status)
        result = step(taken)
        if taken.skip_write:
            return result
        key = RunKey(namespace_id, entity_id, stored.run_id)
        current = await shard.current(namespace_id, entity_id)
        write = RunWrite(
            *key, msgspec.msgpack.encode(taken.state), stored.db_version, stored.next_event_id, taken.status, 0
        )
        changes_status = current is not None and current.run_id == stored.run_id and current.status != taken.status
        await shard.write_rows(
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


async def read(scope: Scope, archetype: Archetype[S], entity_id: str, run_id: str = "") -> tuple[str, S]:
    """An entity as it is in the store, and its run id."""
    namespace_id = archetype.namespace_id(scope.namespace.id)
    async with scope.shard.lock(namespace_id, entity_id):
        stored = await _load(scope, namespace_id, entity_id, run_id)
    return stored.run_id, _decode(archetype, stored)


async def delete(scope: Scope, archetype: Archetype[S], entity_id: str, run_id: str = "") -> None:
    """Delete an entity with its row."""
    namespace_id = archetype.namespace_id(scope.namespace.id)
    async with scope.shard.lock(namespace_id, entity_id):
        stored = await _load(scope, namespace_id, entity_id, run_id)
        await scope.shard.delete_entity(RunKey(namespace_id, entity_id, stored.run_id))


async def wait_for_change(scope: Scope, archetype: Archetype[S], entity_id: str, run_id: str, timeout_s: float) -> None:
    """Until the entity changes, or the time is over. Look at it first, and wait without a pause after that."""
    key = RunKey(archetype.namespace_id(scope.namespace.id), entity_id, run_id)
    changed = scope.shard.watch(key)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await changed.wait()
    finally:
        scope.shard.unwatch(key, changed)


async def run_task(scope: Scope, row: QueueRow, task: EntityTask | EntityTimer) -> None:
    """Do what an entity's task says."""
    archetype = ARCHETYPES[task.archetype]
    await archetype.run(scope, EntityKey(scope.namespace.id, row.workflow_id, row.run_id), task.data)


async def _load(scope: Scope, namespace_id: str, entity_id: str, run_id: str) -> StoredRun:
    shard = scope.shard
    if not run_id:
        current = await shard.current(namespace_id, entity_id)
        if current is None:
            raise not_found(f"{entity_id} is not there")
        run_id = current.run_id
    stored = await scope.services.store.read_run(shard.shard_id, namespace_id, entity_id, run_id)
    if stored is None:
        raise not_found(f"{entity_id} is not there")
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
