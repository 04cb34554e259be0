"""Appends to the queues of a host: the tasks of a batch as columns, and a result for each append."""

from collections.abc import Iterable, Sequence
from typing import Final

import psycopg
from psycopg import errors

from fairlead.storage.postgres.arrays import blobs, numbers
from fairlead.storage.postgres.connections import Connections, Unstorable, translated
from fairlead.storage.postgres.group_commit import WRITES_WAITING_MAX, GroupCommit, Write
from fairlead.storage.postgres.pipeline import Parameter, Prepared, Row
from fairlead.storage.postgres.verdicts import BUSY, DONE, Verdict
from fairlead.storage.tasks import LeaseLost, Levels, LevelTaken, QueueId, StoredTask

# Maximum tasks and bytes of a transaction: larger transactions are no faster, and later appends would wait longer.
GROUP_TASKS_MAX: Final = 1000
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
APPENDS_WAITING_MAX: Final = WRITES_WAITING_MAX

# Levels never decrease, because an owner's writes may arrive out of order. The result lists the fences that were not
# met.
_APPEND: Final = """
WITH fence AS MATERIALIZED (
    SELECT given.place, queue.number
    FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS given (digest, range_id, place),
        LATERAL (
            SELECT number FROM queues WHERE queues.digest = given.digest AND queues.range_id = given.range_id
            FOR UPDATE {lock}
        ) AS queue
), saved AS (
    INSERT INTO queue_levels AS old (queue_number, priority, ack_pass, ack_id, max_pass, max_id)
    SELECT fence.number, reached.priority, reached.ack_pass, reached.ack_id, reached.max_pass, reached.max_id
    FROM unnest($3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
        AS reached (place, priority, ack_pass, ack_id, max_pass, max_id)
    JOIN fence ON fence.place = reached.place
    ON CONFLICT (queue_number, priority) DO UPDATE SET
        (ack_pass, ack_id) = (
            SELECT pass, id FROM (VALUES (old.ack_pass, old.ack_id), (excluded.ack_pass, excluded.ack_id))
                AS both_levels (pass, id) ORDER BY pass DESC, id DESC LIMIT 1
        ),
        (max_pass, max_id) = (
            SELECT pass, id FROM (VALUES (old.max_pass, old.max_id), (excluded.max_pass, excluded.max_id))
                AS both_levels (pass, id) ORDER BY pass DESC, id DESC LIMIT 1
        )
), stored AS (
    INSERT INTO tasks (queue_number, priority, pass, task_id, fairness_key, weight, payload, created_s)
    SELECT fence.number, new.priority, new.pass, new.task_id, new.fairness_key, new.weight, new.payload, new.created_s
    FROM unnest(
        $9::bigint[], $10::integer[], $11::bigint[], $12::bigint[], $13::bytea[], $14::double precision[],
        $15::bytea[], $16::double precision[]
    ) AS new (place, priority, pass, task_id, fairness_key, weight, payload, created_s)
    JOIN fence ON fence.place = new.place
)
SELECT given.place, given.range_id = (SELECT range_id FROM queues WHERE queues.digest = given.digest) IS TRUE
FROM unnest($1::bytea[], $2::bigint[]) WITH ORDINALITY AS given (digest, range_id, place)
LEFT JOIN fence ON fence.place = given.place
WHERE fence.place IS NULL
"""
APPEND: Final = Prepared("fairlead_append", _APPEND.replace("{lock}", "SKIP LOCKED"))
APPEND_WAITING: Final = Prepared("fairlead_append_waiting", _APPEND.replace("{lock}", ""))


class Append(Write):
    """The append of one caller."""

    __slots__ = ("digest", "fairness_keys", "levels", "priority", "queue", "tasks")

    def __init__(
        self,
        queue: QueueId,
        digest: bytes,
        *,
        range_id: int,
        priority: int,
        tasks: Sequence[StoredTask],
        levels: Levels,
    ) -> None:
        """Raises `Unstorable` for a fairness key without a UTF-8 form."""
        try:
            self.fairness_keys = [task.fairness_key.encode() for task in tasks]
        except UnicodeEncodeError as wrong:
            raise Unstorable(f"fairness key {wrong.object!r} has no UTF-8 form: {wrong.reason}") from wrong
        size_bytes = sum(len(task.payload) for task in tasks) + sum(map(len, self.fairness_keys))
        super().__init__(digest, range_id, keys=(), rows=len(tasks), size_bytes=size_bytes)
        self.queue = queue
        self.digest = digest
        self.priority = priority
        self.tasks = tasks
        self.levels = levels


class Appends:
    """Joins the waiting appends of all queues into one transaction.

    The lock on a queue's row admits one transaction at a time: without joining, each append would wait for a commit of
    its own.
    """

    def __init__(self, connections: Connections) -> None:
        self._writes = GroupCommit(AppendBatches(), connections)

    async def append(
        self,
        queue: QueueId,
        digest: bytes,
        *,
        range_id: int,
        priority: int,
        tasks: Sequence[StoredTask],
        levels: Levels,
    ) -> None:
        """Store the tasks together with other waiting appends.

        If the caller is cancelled, the tasks may still be stored.
        """
        await self._writes.write(
            Append(queue, digest, range_id=range_id, priority=priority, tasks=tasks, levels=levels)
        )

    async def close(self) -> None:
        """Reject new appends, and wait for the outcomes of all accepted ones."""
        await self._writes.close()


class AppendBatches:
    """Appends in batches: one statement for many appends."""

    rows_max = GROUP_TASKS_MAX
    bytes_max = GROUP_BYTES_MAX

    def statement(self, *, waits: bool) -> Prepared:
        """The SQL statement. It waits for queues that other transactions have locked, or skips them."""
        return APPEND_WAITING if waits else APPEND

    def parameters(self, batch: Sequence[Append], *, waits: bool) -> list[Parameter]:  # noqa: ARG002 - see above
        """The fences, the levels of each fence and priority, and the tasks, as columns."""
        places = _places(batch)
        levels: dict[tuple[int, int], Levels] = {}
        for append in batch:
            key = (places[append.digest, append.range_id], append.priority)
            ack_level, max_level = levels.get(key, append.levels)
            levels[key] = Levels(max(ack_level, append.levels.ack_level), max(max_level, append.levels.max_level))
        tasks = [task for append in batch for task in append.tasks]
        return [
            blobs([digest for digest, _ in places]),
            numbers([range_id for _, range_id in places]),
            numbers([place for place, _ in levels]),
            *level_columns([(priority, reached) for (_, priority), reached in levels.items()]),
            numbers([places[append.digest, append.range_id] for append in batch for _ in append.tasks]),
            numbers([append.priority for append in batch for _ in append.tasks]),
            numbers([task.level.pass_number for task in tasks]),
            numbers([task.level.task_id for task in tasks]),
            blobs([key for append in batch for key in append.fairness_keys]),
            numbers([task.weight for task in tasks]),
            blobs([task.payload for task in tasks]),
            numbers([task.created_s for task in tasks]),
        ]

    def verdicts(self, batch: Sequence[Append], rows: Sequence[Row]) -> list[Verdict]:
        """The result of each append; `rows` lists only the fences that were not met."""
        if not rows:
            return [DONE] * len(batch)
        places = _places(batch)
        unmet: dict[int, bool] = dict(rows)
        verdicts: list[Verdict] = []
        for append in batch:
            is_busy = unmet.get(places[append.digest, append.range_id])
            verdicts.append(DONE if is_busy is None else BUSY if is_busy else lease_lost(append.queue, append.range_id))
        return verdicts

    def error(self, write: Append, failure: psycopg.Error) -> Exception | None:
        """The error of one append; None if another transaction won a conflict, so that the append is tried again."""
        if isinstance(failure, errors.DeadlockDetected | errors.SerializationFailure):
            return None
        if isinstance(failure, errors.UniqueViolation):
            detail = failure.diag.message_detail
            return LevelTaken(f"{write.queue}: a level is stored already, nothing was changed: {detail}")
        return translated(failure)


def lease_lost(queue: QueueId, range_id: int) -> LeaseLost:
    """The error for a write that the fence rejected."""
    return LeaseLost(f"{queue}: range id {range_id} no longer has the lease: nothing was changed")


def level_parameters(levels: Iterable[tuple[int, Levels]]) -> dict[str, object]:
    """The levels of several distinct priorities, as named columns."""
    names = ("priorities", "ack_passes", "ack_ids", "max_passes", "max_ids")
    return dict(zip(names, level_columns(list(levels)), strict=True))


def level_columns(levels: Sequence[tuple[int, Levels]]) -> list[str]:
    """The levels of several priorities, as columns."""
    return [
        numbers([priority for priority, _ in levels]),
        numbers([reached.ack_level.pass_number for _, reached in levels]),
        numbers([reached.ack_level.task_id for _, reached in levels]),
        numbers([reached.max_level.pass_number for _, reached in levels]),
        numbers([reached.max_level.task_id for _, reached in levels]),
    ]


def _places(batch: Sequence[Append]) -> dict[tuple[bytes, int], int]:
    """Number the fences of a batch, from 1, in the order in which all hosts lock them."""
    return {fence: place for place, fence in enumerate(sorted({(one.digest, one.range_id) for one in batch}), start=1)}
