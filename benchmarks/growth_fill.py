"""Fills a store with many runs, task queues or fairness keys, by the store's own writers and without a server.

A server writes one open and one closed run first. Every other run is a copy of one of them with its own ids, so that
the server can load, signal and describe each of them.
"""

import asyncio
import itertools
import time
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from temporalio.client import Client

from benchmarks.growth_stores import NAMESPACE, Place
from fairlead.core.fairness import BlockExhausted, IdBlock, Level
from fairlead.core.partitions import PartitionConfig, TaskType
from fairlead.history.client import shard_of
from fairlead.history.state import codec
from fairlead.server.stores import open_store
from fairlead.storage.commit import Absent, BatchWrite, Commit, CurrentWrite, RunWrite, TaskWrite
from fairlead.storage.history import TASK_KEY_ZERO, HistoryStore, StoredHistoryTask, StoredRun
from fairlead.storage.predicates import Compare, Operator
from fairlead.storage.tasks import Levels, QueueId, StoredTask, TaskStore
from fairlead.storage.visibility import Column, VisibilityRow

# Runs of a commit, and commits at the same time.
RUNS_A_COMMIT = 500
COMMITS_AT_ONCE = 8
TASKS_AN_APPEND = 2_000
QUEUES_AT_ONCE = 200
# Number of runs that share a value of the search attribute, that have the rare type, and that have the rare status.
RUNS_A_CUSTOMER = 10
RARE_RUNS = 10
RARE_TYPE, COMMON_TYPE = "Rare", "Grow"
FAILED = 3
TASK_QUEUE = "nobody"
EVENT_BYTES_MAX = 1 << 20
SECOND_NS = 10**9
PRIORITY = 3
STRIDE = 1_000
PAYLOAD = bytes(100)


class Template(NamedTuple):
    """All rows of one run."""

    run: StoredRun
    request_id: str
    tree_id: str
    branch_id: str
    batches: list[BatchWrite]
    # Queue and task.
    tasks: list[tuple[str, StoredHistoryTask]]
    row: VisibilityRow


class Runs(NamedTuple):
    """The ids in a filled store: run number `n` is open if `n` is even."""

    namespace_id: str
    total: int

    def workflow_id(self, number: int) -> str:
        """The workflow id of a run."""
        return f"grow-{number:08d}"


def write_templates(place: Place) -> None:
    """Let a server write the two runs to an empty store; all other runs are copies of these."""

    async def start(address: str) -> None:
        client = await Client.connect(address)
        await client.start_workflow(COMMON_TYPE, "x", id=Runs("", 0).workflow_id(0), task_queue=TASK_QUEUE)
        closed = await client.start_workflow(COMMON_TYPE, "x", id=Runs("", 0).workflow_id(1), task_queue=TASK_QUEUE)
        await closed.terminate("done")

    with place.serving() as measured:
        asyncio.run(start(measured.server.address))


async def fill_runs(place: Place, present: int, count: int) -> Runs:
    """Add runs to a store with `present` runs until it has `count`; half of them are open."""
    store = await open_store(place.config)
    try:
        history = store.history
        metadata = await history.read_metadata("history.shards")
        namespace = await history.read_namespace(name=NAMESPACE)
        if metadata is None or namespace is None:
            raise AssertionError("a server has never been started on this store")
        shards, namespace_id = int(metadata.payload), namespace.namespace_id
        runs = Runs(namespace_id, count)
        templates = [await _read_template(history, runs, number, shards) for number in (0, 1)]
        leases = [(await history.take_shard(shard_id)).range_id for shard_id in range(shards)]
        by_shard: dict[int, list[int]] = {}
        for number in range(max(present, 2), count):
            by_shard.setdefault(shard_of(namespace_id, runs.workflow_id(number), shards), []).append(number)
        commits = (
            (shard_id, numbers[begin : begin + RUNS_A_COMMIT])
            for shard_id, numbers in by_shard.items()
            for begin in range(0, len(numbers), RUNS_A_COMMIT)
        )

        async def write() -> None:
            for shard_id, numbers in commits:
                await history.commit(shard_id, leases[shard_id], _copies(templates, runs, numbers))

        await asyncio.gather(*(write() for _ in range(COMMITS_AT_ONCE)))
        return runs
    finally:
        await store.close()


async def _read_template(history: HistoryStore, runs: Runs, number: int, shards: int) -> Template:
    namespace_id, workflow_id = runs.namespace_id, runs.workflow_id(number)
    shard_id = shard_of(namespace_id, workflow_id, shards)
    current = await history.read_current(shard_id, namespace_id, workflow_id)
    assert current is not None  # noqa: S101 - a server has written it
    run = await history.read_run(shard_id, namespace_id, workflow_id, current.run_id)
    (row,) = await history.list_visibility(
        namespace_id, Compare(Column.WORKFLOW_ID, Operator.EQUAL, workflow_id), limit=1
    )
    assert run is not None  # noqa: S101 - as above
    ids = codec.decode(run.state).identity
    tree_id, branch_id = ids.tree_id, ids.branch_id
    stored = await history.read_branch(tree_id, branch_id, 1, 1 << 40, limit_bytes=EVENT_BYTES_MAX)
    batches = [BatchWrite(tree_id, branch_id, *batch) for batch in stored]
    tasks = [
        (queue, task)
        for queue in ("timer",)
        for task in await history.read_tasks(shard_id, queue, after=TASK_KEY_ZERO, until_ns=None, limit=100)
        if workflow_id.encode() in task.payload
    ]
    return Template(run, current.request_id, tree_id, branch_id, batches, tasks, row)


def _copies(templates: list[Template], runs: Runs, numbers: list[int]) -> Commit:
    written: tuple[list[RunWrite], list[BatchWrite], list[CurrentWrite], list[TaskWrite], list[VisibilityRow]]
    written = ([], [], [], [], [])
    for number in numbers:
        template = templates[number % 2]
        for rows, row in zip(written, _copy(template, runs, number), strict=True):
            rows.extend(row)  # type: ignore[attr-defined]
    run_writes, batches, currents, tasks, rows = written
    return Commit(runs=run_writes, batches=batches, current=currents, tasks=tasks, visibility=rows)


def _copy(
    template: Template, runs: Runs, number: int
) -> tuple[list[RunWrite], list[BatchWrite], list[CurrentWrite], list[TaskWrite], list[VisibilityRow]]:
    run, row = template.run, template.row
    workflow_id, run_id, branch_id = runs.workflow_id(number), str(uuid.uuid4()), str(uuid.uuid4())
    ids = [(run.run_id, run_id), (template.branch_id, branch_id), (run.workflow_id, workflow_id)]

    def renamed(blob: bytes) -> bytes:
        for old, new in ids:
            blob = blob.replace(old.encode(), new.encode())
        return blob

    namespace_id = runs.namespace_id
    is_rare = number < 2 + 2 * RARE_RUNS
    write = RunWrite(namespace_id, workflow_id, run_id, renamed(run.state), None, run.next_event_id, run.status, 0)
    batches = [
        batch._replace(tree_id=run_id, branch_id=branch_id, payload=renamed(batch.payload))
        for batch in template.batches
    ]
    current = CurrentWrite(namespace_id, workflow_id, run_id, str(uuid.uuid4()), run.status, 0, Absent())
    tasks = [
        TaskWrite(queue, task.key.fire_at_ns + number * 1_000, task.key.task_id + number, renamed(task.payload))
        for queue, task in template.tasks
    ]
    # Earlier than the templates, in steps of a millisecond; closed runs end at their start.
    started_ns = row.start_time_ns - (number + 1) * 1_000_000
    seen = row._replace(
        run_id=run_id,
        workflow_id=workflow_id,
        root_workflow_id=workflow_id,
        root_run_id=run_id,
        start_time_ns=started_ns,
        execution_time_ns=started_ns,
        close_time_ns=None if row.close_time_ns is None else started_ns + 1_000,
        workflow_type=RARE_TYPE if is_rare else row.workflow_type,
        status=FAILED if is_rare and row.close_time_ns is not None else row.status,
        search_attributes={"Customer": f"c-{number // RUNS_A_CUSTOMER}"},
    )
    return [write], batches, [current], tasks, [seen]


async def fill_queues(place: Place, present: int, count: int) -> None:
    """Add task queues for activities until there are `count`, each with one task in its backlog."""
    store = await open_store(place.config)
    try:
        numbers = iter(range(present, count))

        async def write() -> None:
            for number in numbers:
                await _write_queue(store, _queue(f"queue-{number}"), [f"key-{number}"])

        await asyncio.gather(*(write() for _ in range(QUEUES_AT_ONCE)))
    finally:
        await store.close()


async def fill_keys(place: Place, name: str, count: int) -> None:
    """Add a task queue whose backlog has one task of each of `count` fairness keys."""
    store = await open_store(place.config)
    try:
        await _write_queue(store, _queue(name), (f"key-{number}" for number in range(count)))
    finally:
        await store.close()


def _queue(name: str) -> QueueId:
    return QueueId(NAMESPACE, name, TaskType.ACTIVITY)


async def _write_queue(store: TaskStore, queue: QueueId, keys: "Iterator[str] | list[str]") -> None:
    range_id = (await store.take_lease(queue)).range_id
    await store.save_config(queue, range_id, PartitionConfig(1, 1, 1))
    ids = IdBlock(range_id)
    now_s = time.time()
    pending = iter(keys)
    while chunk := list(itertools.islice(pending, TASKS_AN_APPEND)):
        try:
            taken = ids.take(len(chunk))
        except BlockExhausted:
            # A server opens a task queue only if all task ids are below those of its own lease.
            range_id = await store.renew_lease(queue, range_id)
            ids = IdBlock(range_id)
            taken = ids.take(len(chunk))
        tasks = [
            StoredTask(Level(STRIDE, id_), key, 1.0, PAYLOAD, now_s) for id_, key in zip(taken, chunk, strict=True)
        ]
        await store.append(queue, range_id, PRIORITY, tasks, Levels(Level(0, 0), tasks[-1].level))
