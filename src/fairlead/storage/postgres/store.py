# ruff: noqa: D102 - the contract documents each method
import hashlib
from collections.abc import Sequence
from typing import Self

import psycopg

from fairlead.core.fairness import LEVEL_ZERO, Level, StoredKey
from fairlead.core.partitions import RESERVED_PREFIX, PartitionConfig, TaskType, parse_partition_name
from fairlead.storage.migrations import load_migrations, pending
from fairlead.storage.postgres import statements
from fairlead.storage.postgres.appends import Appends, lease_lost, level_parameters
from fairlead.storage.postgres.connections import Connections, Unstorable
from fairlead.storage.postgres.history import PostgresHistory
from fairlead.storage.tasks import (
    MEMBER_FORGOTTEN_AFTER_S,
    Lease,
    Levels,
    Member,
    OutcomeUnknown,
    QueueId,
    StoredTask,
    StoreUnavailable,
    partitions_of,
)

CONNECTIONS_MAX = 16
STATEMENT_S_MAX = 10.0
MIGRATION_S_MAX = 600.0
# Advisory lock key: an arbitrary constant that other programs are unlikely to use.
MIGRATION_LOCK = int.from_bytes(b"fairlead")


class PostgresStore:
    """A `TaskStore` for several hosts. Acknowledged writes are committed; the lock on the queue's row is the fence."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._appends = Appends(connections)
        # The history store, in the same database and on the same connections.
        self.history = PostgresHistory(connections)

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        application_name: str = "fairlead",
        connections_max: int = CONNECTIONS_MAX,
        statement_s_max: float = STATEMENT_S_MAX,
    ) -> Self:
        """Connect, and migrate the schema to the version of this release."""
        connections = await Connections.open(
            dsn, application_name=application_name, connections_max=connections_max, statement_s_max=statement_s_max
        )
        try:
            await _migrate(connections)
        except psycopg.OperationalError as failed:
            await connections.close()
            raise StoreUnavailable(f"the schema could not be migrated, nothing was changed: {failed}") from failed
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def take_lease(self, queue: QueueId) -> Lease:
        identity = {"namespace_id": queue.namespace_id, "name": queue.name, "type": int(queue.type)}
        ((range_id, number, *config),) = await self._connections.write(
            statements.TAKE_LEASE, {"digest": _digest(queue), "root_digest": _root_digest(queue), **identity}
        )
        # A separate statement, which begins after the commit of the new range id. The row's lock delays that commit
        # until the last write with the old range id is committed, so this statement sees all such writes. If another
        # owner takes the lease in between, the levels belong to a lost lease, with which nothing can be written.
        try:
            levels = await self._connections.read(statements.LOAD_LEVELS, {"number": number})
        except StoreUnavailable as failed:
            raise OutcomeUnknown(f"{queue} was taken, but its levels could not be read: take it again") from failed
        return Lease(
            range_id,
            {priority: Levels(Level(*reached[:2]), Level(*reached[2:])) for priority, *reached in levels},
            _config(*config),
        )

    async def renew_lease(self, queue: QueueId, range_id: int) -> int:
        rows = await self._connections.write(statements.RENEW_LEASE, {"digest": _digest(queue), "range_id": range_id})
        if not rows:
            raise lease_lost(queue, range_id)
        return int(rows[0][0])

    async def append(
        self, queue: QueueId, range_id: int, priority: int, tasks: Sequence[StoredTask], levels: Levels
    ) -> None:
        await self._appends.append(
            queue, _digest(queue), range_id=range_id, priority=priority, tasks=tasks, levels=levels
        )

    async def read(self, queue: QueueId, priority: int, *, after: Level, limit: int) -> list[StoredTask]:
        rows = await self._connections.read(statements.READ, {**_above(queue, priority, after), "limit": limit})
        return [
            StoredTask(Level(pass_number, task_id), key.decode(), weight, payload, created_s)
            for pass_number, task_id, key, weight, payload, created_s in rows
        ]

    async def stored_keys(self, queue: QueueId, priority: int, *, after: Level) -> list[StoredKey]:
        return await self._connections.scan(
            statements.STORED_KEYS, _above(queue, priority, after), lambda row: StoredKey(row[0].decode(), *row[1:])
        )

    async def delete_through(self, queue: QueueId, range_id: int, priority: int, *, through: Level, limit: int) -> int:
        rows = await self._connections.write(
            statements.DELETE_THROUGH,
            {
                **_above(queue, priority, through),
                "range_id": range_id,
                "limit": limit,
                **level_parameters([(priority, Levels(through, LEVEL_ZERO))]),
            },
        )
        if not rows:
            raise lease_lost(queue, range_id)
        return int(rows[0][0])

    async def save_levels(self, queue: QueueId, range_id: int, levels: dict[int, Levels]) -> None:
        parameters = {"digest": _digest(queue), "range_id": range_id, **level_parameters(levels.items())}
        if not await self._connections.write(statements.SAVE_LEVELS, parameters):
            raise lease_lost(queue, range_id)

    async def save_config(self, queue: QueueId, range_id: int, config: PartitionConfig) -> None:
        parameters = {
            "digest": _digest(queue),
            "range_id": range_id,
            "version": config.version,
            "read": config.read,
            "write": config.write,
        }
        if not await self._connections.write(statements.SAVE_CONFIG, parameters):
            raise lease_lost(queue, range_id)

    async def load_config(self, queue: QueueId) -> PartitionConfig | None:
        rows = await self._connections.read(statements.LOAD_CONFIG, {"digest": _digest(queue)})
        return _config(*rows[0]) if rows else None

    async def save_rules(self, queue: QueueId, range_id: int, config: PartitionConfig, rules: bytes) -> None:
        parameters = {
            "digest": _digest(queue),
            "range_id": range_id,
            "version": config.version,
            "read": config.read,
            "write": config.write,
            "rules": rules,
        }
        if not await self._connections.write(statements.SAVE_RULES, parameters):
            raise lease_lost(queue, range_id)

    async def load_rules(self, queue: QueueId) -> bytes | None:
        rows = await self._connections.read(statements.LOAD_RULES, {"digest": _digest(queue)})
        return rows[0][0] if rows else None

    async def count(self, queue: QueueId, range_id: int) -> int:
        counts = await self._connections.scan(
            statements.COUNT, {"digest": _digest(queue), "range_id": range_id}, lambda row: int(row[0])
        )
        if not counts:
            raise lease_lost(queue, range_id)
        return counts[0]

    async def list_partitions(self, root: QueueId) -> dict[int, bool]:
        return partitions_of(root, await self._connections.read(statements.LIST_PARTITIONS, {"digest": _digest(root)}))

    async def list_queues(self, namespace_id: str | None, *, after: QueueId | None, limit: int) -> list[QueueId]:
        rows = await self._connections.read(
            statements.LIST_QUEUES,
            {
                "namespace_id": namespace_id,
                "after_namespace_id": after and after.namespace_id,
                "after_name": after and after.name,
                "after_type": after and int(after.type),
                "limit": limit,
            },
        )
        return [QueueId(namespace, name, TaskType(type_number)) for namespace, name, type_number in rows]

    async def heartbeat(self, member: Member, *, now_s: float = 0.0) -> list[Member]:
        forgotten_s = member.expires_s - MEMBER_FORGOTTEN_AFTER_S
        rows = await self._connections.write(
            statements.HEARTBEAT,
            {"host": member.host, "expires_s": member.expires_s, "forgotten_s": forgotten_s, "now_s": now_s},
        )
        return [Member(host, expires_s) for host, expires_s in rows]

    async def leave(self, host: str) -> None:
        await self._connections.write(statements.LEAVE, {"host": host})

    async def members(self, *, now_s: float) -> list[Member]:
        rows = await self._connections.read(statements.MEMBERS, {"now_s": now_s})
        return [Member(host, expires_s) for host, expires_s in rows]

    async def close(self) -> None:
        await self._appends.close()
        await self.history.close()
        await self._connections.close()


async def _migrate(connections: Connections) -> None:
    """Run all pending migrations or none: PostgreSQL changes a schema within a transaction."""
    async with connections.connection() as connection, connection.transaction():
        await connection.execute(statements.ALLOW_TIME, {"limit": f"{MIGRATION_S_MAX:.0f}s"})
        await connection.execute(statements.LOCK_SCHEMA, {"lock": MIGRATION_LOCK})
        has_table = await (await connection.execute(statements.HAS_MIGRATIONS_TABLE)).fetchone() == (True,)
        applied: list[int] = []
        if has_table:
            applied = [version async for (version,) in await connection.execute(statements.APPLIED_MIGRATIONS)]
        database = f"PostgreSQL database {connection.info.dbname!r}"
        steps = pending(load_migrations("postgres"), applied=applied, database=database)
        if not has_table:
            await connection.execute(statements.CREATE_MIGRATIONS_TABLE)
        for step in steps:
            await connection.execute(step.sql.encode())
            await connection.execute(statements.RECORD_MIGRATION, {"version": step.version, "name": step.name})


def _digest(queue: QueueId) -> bytes:
    """The key of the queue's row."""
    try:
        parts = [queue.namespace_id.encode(), queue.name.encode(), b"%d" % queue.type]
    except UnicodeEncodeError as wrong:
        raise Unstorable(f"{queue} has no UTF-8 form: {wrong.reason}") from wrong
    # No part contains the separator, so two queues never have the same bytes.
    if any(b"\0" in part for part in parts):
        raise Unstorable(f"{queue} contains a NUL character, which PostgreSQL can't store: remove it")
    return hashlib.sha256(b"\0".join(parts)).digest()


def _root_digest(queue: QueueId) -> bytes | None:
    """The digest of the queue's root partition; None if the queue is a root itself."""
    if not queue.name.startswith(RESERVED_PREFIX):
        return None
    return _digest(queue._replace(name=parse_partition_name(queue.name)[0]))


def _above(queue: QueueId, priority: int, level: Level) -> dict[str, object]:
    return {
        "digest": _digest(queue),
        "priority": priority,
        "pass": level.pass_number,
        "task_id": level.task_id,
    }


def _config(version: int | None, read: int | None, write: int | None) -> PartitionConfig | None:
    if version is None or read is None or write is None:
        return None
    return PartitionConfig(version=version, read=read, write=write)
