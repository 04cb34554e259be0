"""Task queues that no host has loaded since the start are seen in the console."""

from temporalio.client import Client

from fairlead.console.queues import is_sticky_name
from tests.console.web import running_console
from tests.patience import until


async def test_tasks_without_a_worker_are_seen_after_their_host_has_unloaded_them() -> None:
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

        async def is_seen() -> bool:
            attention = (await visitor.data("home"))["attention"]
            return any("nobody-polls" in one["sentence"] for one in attention)

        await until(is_seen)
        rows = {row["name"]: row for row in (await visitor.data("task-queues"))["rows"]}
        assert rows["nobody-polls"]["backlog"] == 1
        assert rows["nobody-polls"]["held"]["cause"] == "no workers"


def test_names_of_sticky_task_queues_are_recognized() -> None:
    assert is_sticky_name("4757@vm-fd8d334718044d22a068994536042e2e")
    assert is_sticky_name("host:7b2f6e0c-51c3-4b0e-9c5f-0a1b2c3d4e5f")
    assert not is_sticky_name("orders")
    assert not is_sticky_name("orders-2026-11-18")
