# ruff: noqa: D102 - the contract documents each method
"""The slots of the history contract on PostgreSQL; `take_activity_slot` is a function of the schema."""

from fairlead.core.concurrency import Full, Slot, SlotLimits
from fairlead.storage.history_conflicts import shard_lost
from fairlead.storage.postgres.connections import Connections

_COLUMNS = "token, shard_id, queue_namespace_id, task_queue, fairness_key, namespace_id, workflow_id, run_id, event_id"
TAKE_SLOT = """
SELECT take_activity_slot(
    %(range_id)s::bigint, %(key_max)s::integer, %(queue_max)s::integer, %(token)s::text, %(shard_id)s::integer,
    %(queue_namespace_id)s::text, %(task_queue)s::text, %(fairness_key)s::text, %(namespace_id)s::text,
    %(workflow_id)s::text, %(run_id)s::text, %(event_id)s::bigint
)
"""
FREE_SLOT = "DELETE FROM activity_slots WHERE token = %(token)s RETURNING 1"
LIST_SLOTS = f"SELECT {_COLUMNS} FROM activity_slots WHERE shard_id = %(shard_id)s ORDER BY token"  # noqa: S608
COUNT_BY_KEY = """
SELECT fairness_key, count(*) FROM activity_slots
WHERE queue_namespace_id = %(namespace_id)s AND task_queue = %(task_queue)s GROUP BY fairness_key
"""

_OUTCOMES = {"taken": None, "key": Full.KEY, "queue": Full.QUEUE}


class PostgresSlots:
    """The slots of a `HistoryStore` on the connections of a `PostgresStore`."""

    _connections: Connections

    async def take_slot(self, range_id: int, slot: Slot, limits: SlotLimits) -> Full | None:
        parameters = {"range_id": range_id, **limits._asdict(), **slot._asdict()}
        ((outcome,),) = await self._connections.write(TAKE_SLOT, parameters)
        if outcome not in _OUTCOMES:
            raise shard_lost(slot.shard_id, range_id)
        return _OUTCOMES[outcome]

    async def free_slot(self, token: str) -> None:
        await self._connections.write(FREE_SLOT, {"token": token})

    async def list_slots(self, shard_id: int) -> list[Slot]:
        return [Slot(*row) for row in await self._connections.read(LIST_SLOTS, {"shard_id": shard_id})]

    async def count_slots(self, namespace_id: str, task_queue: str) -> dict[str, int]:
        parameters = {"namespace_id": namespace_id, "task_queue": task_queue}
        return {key: int(count) for key, count in await self._connections.read(COUNT_BY_KEY, parameters)}
