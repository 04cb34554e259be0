"""Task queues that no host has loaded since the start are seen in the console."""

from typing import TYPE_CHECKING, cast

from temporalio.client import Client

from fairlead.aio.background import Background
from fairlead.console.directory import Directory, Loaded
from fairlead.console.stored_queues import LOAD_S, LOADED_MAX, StoredQueues, is_sticky_name
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.messages.inspection import LoadedQueue
from fairlead.telemetry import get_log
from tests.console.web import running_console
from tests.patience import until

if TYPE_CHECKING:
    from fairlead.matching.operator_client import OperatorClient


async def test_the_first_view_has_tasks_without_a_worker_that_their_host_has_unloaded() -> None:
    async with running_console() as (server, visitor):
        assert server.frontend_address is not None
        client = await Client.connect(server.frontend_address)
        await client.start_workflow("Nobody", id="waiting", task_queue="nobody-polls")
        assert server._host is not None
        engine = server._host.matching.engine

        async def is_stored() -> bool:
            return any(one.task_queue.name == "nobody-polls" for one in engine.loaded)

        await until(is_stored)
        for partition in engine.loaded:
            engine._unload(partition)
        await until(lambda: not engine.loaded)

        (attention,) = (await visitor.data("home"))["attention"]
        assert attention["sentence"] == "Task queue nobody-polls (workflow): 1 task and no worker that polls."
        rows = {row["name"]: row for row in (await visitor.data("task-queues"))["rows"]}
        assert rows["nobody-polls"]["backlog"] == 1
        assert rows["nobody-polls"]["held"]["cause"] == "no workers"


class Describer:
    """Notes the task queues that are described."""

    def __init__(self) -> None:
        self.described: list[str] = []

    async def describe(self, queue: TaskQueueId) -> None:
        self.described.append(queue.name)


def stored_queue(number: int) -> TaskQueueId:
    return TaskQueueId("n", f"queue-{number:04d}", TaskType.ACTIVITY)


async def test_every_stored_task_queue_is_loaded_in_turn_and_waiting_ones_stay_loaded() -> None:
    client, directory = Describer(), Directory()
    loads = StoredQueues(Background(get_log("test")))
    stored = {stored_queue(number): [0] for number in range(2 * LOADED_MAX)}

    async def read() -> dict[TaskQueueId, list[int]]:
        return stored

    await directory._stored.get("n", read)
    waiting = LoadedQueue("n", "waiting", int(TaskType.ACTIVITY), 1, 5, 100.0, 0.0, 0.0, 0)
    loaded = Loaded({("n", "waiting", 1): waiting}, {})
    for turn in range(2):
        client.described.clear()
        now_s = 1_000.0 + turn * LOAD_S
        assert await loads.load(cast("OperatorClient", client), directory, "n", loaded, now_s=now_s)
        names = [stored_queue(number).name for number in range(turn * LOADED_MAX, (turn + 1) * LOADED_MAX)]
        assert sorted(client.described) == [*names, "waiting"]
        # Not again before it is due.
        assert not await loads.load(cast("OperatorClient", client), directory, "n", loaded, now_s=now_s + 1)


def test_names_of_sticky_task_queues_are_recognized() -> None:
    assert is_sticky_name("4757@vm-fd8d334718044d22a068994536042e2e")
    assert is_sticky_name("host:7b2f6e0c-51c3-4b0e-9c5f-0a1b2c3d4e5f")
    assert not is_sticky_name("orders")
    assert not is_sticky_name("orders-2026-11-18")
