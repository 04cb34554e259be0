"""Adds tasks to a partition: each is matched with a poll, or stored."""

from fairlead.matching.forwarding.backlogged_tasks import FORWARDED_TASK_WAIT_S
from fairlead.matching.messages import ADD, AddRequest, AddResponse, NewTask
from fairlead.matching.partition.dependencies import CALL_S_MAX
from fairlead.matching.partition.manager import PartitionManager
from fairlead.matching.partition.matched_task import full_of, is_done
from fairlead.matching.partition.task_validation import InvalidTask, check_task
from fairlead.matching.partition.task_writer import AppendQueueFull
from fairlead.settings.dynamic import limits

# Maximum seconds that a query task waits for a poll, regardless of the caller's `wait_s`.
TRANSIENT_WAIT_S_MAX = 60.0


async def add_task(manager: PartitionManager, request: AddRequest) -> AddResponse:
    """Add a task. When this returns, the task was started or is durable; a forwarded task may be neither."""
    task = request.task
    _check(manager, task)
    if request.forwarded_from is not None:
        return await _add_forwarded(manager, request)
    configs, adds, queue, counts = manager.configs, manager.adds, manager.queue, manager.counts
    if request.config is not None and request.config.version > configs.config.version:
        await manager.catch_up(request.config)
    # From this check on, the drain rule counts the task as in flight: no await between the check and the count.
    if manager.number >= configs.config.write:
        raise configs.stale("writable")
    adds.in_flight += 1
    try:
        now_s = manager.clock()
        if not task.created_s:
            task = NewTask(task.priority, task.fairness_key, task.weight, task.payload, now_s, task.owner)
        note_added(manager, task, now_s)
        if queue.polls_waiting and is_done(await queue.dispatcher.offer(task)):
            return AddResponse(is_started=True, config=configs.config)
        if manager.parent is not None and await manager.backlogged_tasks.offer_up(task):
            return AddResponse(is_started=True, config=configs.config, was_forwarded=True)
        if not queue.pollers.has_recent:
            counts.no_poller_tasks += 1
        await _store(manager, task, now_s)
        return AddResponse(is_started=False, config=configs.config)
    finally:
        adds.in_flight -= 1


def note_added(manager: PartitionManager, task: NewTask, now_s: float) -> None:
    """Count a new task, and record it in the journal."""
    manager.counts.tasks_added += 1
    if manager.journal is not None:
        weight = manager.queue.weights.of(task.fairness_key, task.weight)
        manager.journal.added(now_s, task.fairness_key, weight, task.priority)
    manager.adds.add(task.priority, now_s)


async def offer_query_task(manager: PartitionManager, request: AddRequest) -> AddResponse:
    """Match a query task with a poll, before all other tasks and within its time; the task is never stored."""
    _check(manager, request.task)
    wait_s = min(request.wait_s, TRANSIENT_WAIT_S_MAX)
    dispatcher, configs = manager.queue.dispatcher, manager.configs
    if manager.parent is None:
        return AddResponse(await dispatcher.offer_query(request.task, wait_s=wait_s), configs.config)
    if await dispatcher.offer_query(request.task, wait_s=0.0):
        return AddResponse(is_started=True, config=configs.config)
    # Idle polls of all partitions end up at the root, so the query waits there.
    root = manager.dependencies.sibling(0)
    forwarded = AddRequest(root, request.task, wait_s=wait_s, is_transient=True)
    answer = await manager.dependencies.peers.ask(root, ADD, forwarded, timeout_s=wait_s + CALL_S_MAX)
    return AddResponse(answer.is_started, configs.config, was_forwarded=True)


def _check(manager: PartitionManager, task: NewTask) -> None:
    check_task(task)
    size_bytes, size_bytes_max = len(task.payload), manager.dependencies.get(limits.BLOB_SIZE_ERROR)
    if size_bytes > size_bytes_max:
        raise InvalidTask(
            f"payload has {size_bytes} bytes, more than limit.blobSize.error allows ({size_bytes_max}): "
            "send less, or a reference to it"
        )


async def _store(manager: PartitionManager, task: NewTask, began_s: float) -> None:
    try:
        await manager.queue.backlog.writer.append(task)
    except AppendQueueFull:
        manager.counts.appends_refused += 1
        raise
    manager.counts.task_write_latency.observe(manager.clock() - began_s)
    if manager.parent is not None:
        manager.idle_polls.call_back_one()


async def _add_forwarded(manager: PartitionManager, request: AddRequest) -> AddResponse:
    """Match a task that a child offers, at this partition or at its ancestors; the task is never stored."""
    manager.counts.forwarded += 1
    dispatcher, configs = manager.queue.dispatcher, manager.configs
    if manager.parent is None:
        wait_s = min(request.wait_s, FORWARDED_TASK_WAIT_S)
        result = await dispatcher.offer(request.task, wait_s=wait_s, is_limited=False, is_backlog=request.wait_s > 0)
        return AddResponse(is_done(result), configs.config, full=full_of(result))
    result = await dispatcher.offer(request.task, is_limited=False, is_backlog=request.wait_s > 0)
    if is_done(result) or full_of(result) is not None:
        return AddResponse(is_done(result), configs.config, full=full_of(result))
    forwarded = await manager.backlogged_tasks.pass_on(manager.parent, request)
    if forwarded is None:
        return AddResponse(is_started=False, config=configs.config, was_forwarded=True)
    return AddResponse(forwarded.is_started, configs.config, was_forwarded=True, full=forwarded.full)
