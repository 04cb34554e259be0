"""The partitions of a task queue: the tree with what is forwarded, who is behind, and the first waiting tasks."""

import time
from typing import Any
from unittest.mock import patch

from fairlead.console.tree import Node, partition_tree
from fairlead.console.waiting_tasks import PEEKED_MAX
from fairlead.core.errors import RetryLater
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.matching.handlers import inspect_tasks
from fairlead.matching.messages import AddRequest, NewTask
from fairlead.matching.partition.config_manager import ConfigManager
from fairlead.server.process import Server
from tests.console.filled import load_queue, namespace_id_of, write_queue
from tests.console.web import Visitor, running_console
from tests.patience import until

QUEUE = {"name": "wide", "type": "activity"}


async def wide_queue(server: Server, visitor: Visitor, partitions: int) -> TaskQueueId:
    """A task queue with that many partitions."""
    queue = await write_queue(server, await namespace_id_of(server), QUEUE["name"], [])
    await load_queue(server, queue)
    await visitor.get("task-queue", **QUEUE)
    await change(visitor, partitions)
    return queue


async def change(visitor: Visitor, partitions: int) -> None:
    form = {"read": str(partitions), "write": str(partitions), "reason": "a test"}
    done = await visitor.post("task-queue/partitions?name=wide&type=activity", form)
    assert done.status == 303, done.body


async def add(server: Server, queue: TaskQueueId, number: int, *, priority: int = 3, key: str = "") -> None:
    """Add a task of a client to one partition."""
    assert server._host is not None
    task = NewTask(priority, key, 1.0, b"x", time.time())
    await server._host.matching.add(AddRequest(Partition(queue, number), task))


async def data_when(visitor: Visitor, holds: Any) -> dict[str, Any]:
    """The data of the page, as soon as a condition holds for it."""
    found: dict[str, Any] = {}

    async def is_there() -> bool:
        found.update(await visitor.data("task-queue", **QUEUE))
        return bool(holds(found))

    await until(is_there)
    return found


async def test_a_partition_that_has_not_confirmed_the_configuration_is_named_until_it_has() -> None:
    async with running_console() as (server, visitor):
        await wide_queue(server, visitor, 3)
        await data_when(visitor, lambda data: not data["behind"])
        push = ConfigManager.push

        def refuse(self: ConfigManager, *arguments: Any) -> Any:
            if self._partition_id.number == 2:
                raise RetryLater("the host is busy")
            return push(self, *arguments)

        with patch.object(ConfigManager, "push", refuse):
            await change(visitor, 4)
            behind = await data_when(visitor, lambda data: data["behind"] == [2])
            assert "have not confirmed version" in (await visitor.get("task-queue", **QUEUE)).body.decode()
            rows = {row["number"]: row for row in behind["rows"]}
            assert rows[2]["acknowledged"] < behind["version"]
            assert rows[3]["acknowledged"] == behind["version"]
            assert (await visitor.data("scaler", **QUEUE))["behind"] == [2]
        await data_when(visitor, lambda data: not data["behind"])


async def test_the_page_shows_what_each_partition_forwards_to_its_parent() -> None:
    async with running_console() as (server, visitor):
        queue = await wide_queue(server, visitor, 3)
        for _ in range(5):
            await add(server, queue, 2)
        found = await data_when(visitor, lambda data: data["rows"][2]["tasks_up_per_s"] > 0)
        assert found["rows"][2]["tasks_up"] > 0
        assert found["rows"][0]["tasks_up"] == 0
        page = (await visitor.get("task-queue", **QUEUE)).body.decode()
        assert "Partition 2 forwards" in page


def test_the_tree_has_figures_only_at_lines_on_which_something_moves() -> None:
    nodes = [
        Node(number=0, parent=None),
        Node(number=1, parent=0, tasks_up_per_s=3.0, polls_up_per_s=12.0),
        Node(number=2, parent=0),
    ]
    drawn = partition_tree(nodes)
    assert drawn.count('class="edge"') == 1
    assert "Partition 1 forwards 3 tasks and 12 polls a second" in drawn
    assert "</title>3 · 12</text>" in drawn


async def test_the_first_waiting_tasks_of_all_partitions_are_merged_in_their_order() -> None:
    async with running_console() as (server, visitor):
        queue = await wide_queue(server, visitor, 3)
        for number in range(3):
            for _ in range(PEEKED_MAX):
                await add(server, queue, number)
        await add(server, queue, 2, priority=1, key="urgent")
        found = await data_when(visitor, lambda data: data["stored"] == 3 * PEEKED_MAX + 1)
        tasks = found["tasks"]
        assert len(tasks) == PEEKED_MAX
        assert (tasks[0]["partition"], tasks[0]["key"]) == (2, "urgent")
        assert {task["partition"] for task in tasks} == {0, 1, 2}
        positions = [task["position"] for task in tasks[1:]]
        assert positions == sorted(positions)


async def test_a_partition_that_does_not_list_its_tasks_leaves_those_of_the_others() -> None:
    async with running_console() as (server, visitor):
        queue = await wide_queue(server, visitor, 2)
        for number in range(2):
            await add(server, queue, number)
        await data_when(visitor, lambda data: data["stored"] == 2)
        peek = inspect_tasks.peek_tasks

        async def fail(manager: Any, request: Any) -> Any:
            if manager.number == 1:
                raise RetryLater("the store is busy")
            return await peek(manager, request)

        with patch("fairlead.matching.inspection.peek_tasks", fail):
            found = await visitor.data("task-queue", **QUEUE)
        assert [task["partition"] for task in found["tasks"]] == [0]
        assert "the store is busy" in found["tasks_problem"]["message"]
