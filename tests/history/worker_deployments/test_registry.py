"""The registry of deployments: the versions that workers register, and the copy that each host has."""

import asyncio

import pytest

from fairlead.api.errors import Exhausted
from fairlead.api.worker_deployments import Deployment, Deployments, steps
from fairlead.api.worker_deployments.registry import TASK_QUEUES_MAX, VERSIONS_MAX
from fairlead.api.worker_versions import Version
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.storage.memory.history import MemoryHistory
from tests.rpc.served import until

ORDERS = TaskQueueId("namespace", "orders", TaskType.WORKFLOW)
V1, V2 = Version("shop", "v1"), Version("shop", "v2")


class CountingStore(MemoryHistory):
    """Counts the writes."""

    writes = 0

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        self.writes += 1
        # Yield, so that writes of other tasks come in between.
        await asyncio.sleep(0)
        return await super().write_metadata(key, payload, expected_version=expected_version)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def registry(store: MemoryHistory) -> Deployments:
    return Deployments(store, clock_ns=lambda: 1000, refresh_s=0.01)


async def set_current(deployments: Deployments, build_id: str) -> None:
    def step(present: Deployment | None) -> tuple[Deployment | None, None]:
        assert present is not None
        steps.set_current(present, build_id, identity="", now_ns=2000)
        return present, None

    await deployments.change("namespace", "shop", step)


async def test_only_the_first_poll_is_stored(store: CountingStore) -> None:
    deployments = registry(store)
    for _ in range(5):
        await deployments.register(ORDERS, V1)
    assert store.writes == 1
    assert deployments.versions_of(ORDERS) == [V1]
    assert not deployments.has_task_queue(ORDERS, V2)


async def test_workers_that_register_concurrently_are_all_stored(store: CountingStore) -> None:
    hosts = [registry(store) for _ in range(3)]
    await asyncio.gather(
        *(
            host.register(ORDERS._replace(type=task_type), version)
            for host in hosts
            for version in (V1, V2)
            for task_type in (TaskType.WORKFLOW, TaskType.ACTIVITY)
        )
    )
    deployment = await registry(store).read("namespace", "shop")
    assert deployment is not None
    assert {one: state.task_queues for one, state in deployment.versions.items()} == {
        one: [("orders", 1), ("orders", 2)] for one in ("v1", "v2")
    }


async def test_another_host_follows_a_change_a_little_later(store: CountingStore) -> None:
    here, there = registry(store), registry(store)
    await there.open()
    try:
        await here.register(ORDERS, V1)
        await set_current(here, "v1")
        assert here.target(ORDERS, "workflow") == V1
        await until(lambda: there.target(ORDERS, "workflow") == V1)
        await here.change("namespace", "shop", lambda _: (None, None))
        await until(lambda: there.target(ORDERS, "workflow") is None)
        # A deployment of the same name starts again with version 1 of its row.
        await here.register(ORDERS, V2)
        await until(lambda: there.has_task_queue(ORDERS, V2))
        assert not there.has_task_queue(ORDERS, V1)
    finally:
        await there.close()


async def test_a_task_queue_added_to_the_current_version_takes_over_its_backlog(store: CountingStore) -> None:
    deployments = registry(store)
    await deployments.register(ORDERS, V1)
    await set_current(deployments, "v1")
    moved: list[Deployment] = []
    deployments.on_moved = moved.append
    await deployments.register(ORDERS._replace(name="invoices"), V1)
    assert ("invoices", int(TaskType.WORKFLOW), "") in moved[-1].moved


async def test_the_oldest_unused_version_is_deleted_at_the_limit(store: CountingStore) -> None:
    deployments = registry(store)
    await deployments.register(ORDERS, V1)
    await set_current(deployments, "v1")
    for number in range(VERSIONS_MAX):
        await deployments.register(ORDERS, Version("shop", f"build {number}"))
    deployment = await deployments.read("namespace", "shop")
    assert deployment is not None
    assert len(deployment.versions) == VERSIONS_MAX
    assert "v1" in deployment.versions
    assert "build 0" not in deployment.versions


async def test_the_number_of_task_queues_of_a_version_is_bounded(store: CountingStore) -> None:
    deployments = registry(store)
    for number in range(TASK_QUEUES_MAX):
        await deployments.register(ORDERS._replace(name=f"queue {number}"), V1)
    with pytest.raises(Exhausted, match="maximum number of task queues"):
        await deployments.register(ORDERS, V1)
