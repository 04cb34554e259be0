"""Builders of commits and other writes for the tests."""

from fairlead.storage.commit import Absent, BatchWrite, Commit, CurrentWrite, IsRun, NotOpen, RunWrite, TaskWrite
from fairlead.storage.history import HistoryStore, RunKey, StoredBatch, TaskKey, VisibilityRow

SHARD = 3
NAMESPACE = "11111111-1111-1111-1111-111111111111"
WORKFLOW = "order 1"
RUNNING = 1
COMPLETED = 2


def key(run_id: str = "run-1", workflow_id: str = WORKFLOW) -> RunKey:
    return RunKey(NAMESPACE, workflow_id, run_id)


def run(
    run_id: str = "run-1",
    *,
    expected: int | None = None,
    state: bytes = b"state",
    next_event_id: int = 3,
    status: int = RUNNING,
    workflow_id: str = WORKFLOW,
) -> RunWrite:
    return RunWrite(NAMESPACE, workflow_id, run_id, state, expected, next_event_id, status, 17)


def current(
    run_id: str, condition: Absent | IsRun | NotOpen, *, status: int = RUNNING, workflow_id: str = WORKFLOW
) -> CurrentWrite:
    return CurrentWrite(NAMESPACE, workflow_id, run_id, f"request of {run_id}", status, 17, condition)


def batch(
    first: int,
    last: int,
    *,
    tree: str = "tree",
    branch: str = "main",
    transaction_id: int = 1,
    payload: bytes | None = None,
) -> BatchWrite:
    content = f"{branch} {first}-{last}".encode() if payload is None else payload
    return BatchWrite(tree, branch, first, last, 17, transaction_id, content)


def task(task_id: int, *, queue: str = "transfer", fire_at_ns: int = 0, payload: bytes = b"task") -> TaskWrite:
    return TaskWrite(queue, fire_at_ns, task_id, payload)


def row(run_id: str = "run-1", **changes: object) -> VisibilityRow:
    plain = VisibilityRow(NAMESPACE, run_id, WORKFLOW, "Order", RUNNING, 1_000, 1_000, "orders", memo=b"memo")
    return plain._replace(**changes)  # type: ignore[arg-type]


def everything(number: int) -> Commit:
    """A commit with one write of each kind; every name in it contains `number`."""
    run_id = f"run-{number}"
    workflow_id = f"order {number}"
    return Commit(
        runs=[run(run_id, workflow_id=workflow_id, state=b"state %d" % number)],
        batches=[batch(1, 2, tree=run_id), batch(3, 5, tree=run_id)],
        current=[current(run_id, Absent(), workflow_id=workflow_id)],
        tasks=[task(2 * number), task(2 * number + 1, queue="timer", fire_at_ns=1000 * number)],
        visibility=[row(run_id, workflow_id=workflow_id)],
    )


async def assert_whole_or_absent(store: HistoryStore, number: int, *, shard_id: int = SHARD) -> bool:
    """Whether `everything(number)` is stored; fails if only a part of it is."""
    expected = everything(number)
    run_id, workflow_id = f"run-{number}", f"order {number}"
    tasks = await store.read_tasks(shard_id, "transfer", after=TaskKey(0, 2 * number - 1), until_ns=None, limit=1)
    timers = await store.read_tasks(
        shard_id, "timer", after=TaskKey(1000 * number, 2 * number), until_ns=1000 * number, limit=1
    )
    found = [
        await store.read_run(shard_id, NAMESPACE, workflow_id, run_id) is not None,
        await store.read_current(shard_id, NAMESPACE, workflow_id) is not None,
        len(await store.read_branch(run_id, "main", 1, 100, limit_bytes=10_000)) == len(expected.batches),
        bool(tasks) and tasks[0].key == TaskKey(0, 2 * number),
        bool(timers) and timers[0].key == TaskKey(1000 * number, 2 * number + 1),
    ]
    assert len(set(found)) == 1, f"commit {number} is there in part: {found}"
    return found[0]


async def read_all(
    store: HistoryStore, branch: str = "main", *, tree: str = "tree", limit_bytes: int = 1000, reverse: bool = False
) -> list[StoredBatch]:
    """All events of a branch, read page by page from its beginning or from its end."""
    found: list[StoredBatch] = []
    begin, end = 1, 10**9
    while page := await store.read_branch(tree, branch, begin, end, limit_bytes=limit_bytes, reverse=reverse):
        found += page
        if reverse:
            end = page[-1].first_event_id
        else:
            begin = page[-1].last_event_id + 1
    return found
