import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import InvalidName, NotDrained, Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.client_retries import PastDeadline
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import (
    DESCRIBE,
    EXPLAIN,
    LIST,
    UPDATE,
    BacklogReport,
    DescribeRequest,
    DescribeResponse,
    ExplainRequest,
    ExplainResponse,
    ListRequest,
    ListResponse,
    QueueKind,
    ScalerIsOn,
    UpdateRequest,
    UpdateResponse,
)
from fairlead.matching.operator_client import ASKED_AT_ONCE_MAX, NobodyToAsk, OperatorClient, TooManyToList
from fairlead.membership.ring import RING, RingRequest, RingResponse
from fairlead.rpc.hosts.caller import CallLost, Handlers, Method, Request, Response, Unreachable
from fairlead.rpc.hosts.local import LocalNetwork
from fairlead.simulations.virtual_loop import run
from fairlead.storage.tasks import StoreUnavailable
from tests.matching.fake_matching import TASK_QUEUE, FakeMatching, FakeRing, now_s
from tests.virtual_time import on_virtual_time


class Cluster:
    """Two fake hosts. `failures` lists the errors that the next calls to a partition raise."""

    def __init__(self, read: int = 3) -> None:
        self.config = PartitionConfig(4, read, 1)
        self.failures: dict[int, list[FairleadError]] = {}
        self.asked: list[Any] = []
        self.at_once = self.at_once_max = 0
        self.queues: list[tuple[str, str, int]] = []
        self.takes_s = 0.1
        # A host that joins while the hosts are asked for their ring.
        self.joins = ""
        network = LocalNetwork()
        self.handlers = {host: self.answers(host) for host in ("a", "b")}
        for host, handlers in self.handlers.items():
            network.register(host, handlers)
        self.network = network
        matching = FakeMatching()
        matching.owners = {number: "ab"[number % 2] for number in range(100)}
        self.ring = FakeRing(matching, "a", "b")
        self.client = OperatorClient(network.caller(), self.ring, random=Random(1).random)

    def answers(self, host: str) -> Handlers:
        handlers = Handlers()

        def add(method: Method[Request, Response], handle: Callable[[str, Request], Awaitable[Response]]) -> None:
            handlers.add(method, lambda request: self.counted(host, handle, request))

        add(DESCRIBE, self.describe)
        add(UPDATE, self.update)
        add(EXPLAIN, self.explain)
        add(LIST, self.list)
        add(RING, self.ring_of)
        return handlers

    async def counted(
        self, host: str, handle: Callable[[str, Request], Awaitable[Response]], request: Request
    ) -> Response:
        self.asked.append(request)
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await asyncio.sleep(self.takes_s)
            number = request.partition.number if hasattr(request, "partition") else 0
            answer = await handle(host, request)
            if self.failures.get(number):
                raise self.failures[number].pop(0)
            return answer
        finally:
            self.at_once -= 1

    async def describe(self, host: str, request: DescribeRequest) -> DescribeResponse:
        number = request.partition.number
        return DescribeResponse(
            partition=number,
            host=host,
            config=self.config,
            report=BacklogReport(number, 10 * number, 0.0, 0.0, 0.0),
            dispatches_per_s=0.0,
            polls_waiting=0,
            tasks_loaded=0,
            range_id=1,
            pollers=[],
            priorities=[],
            scaler_adds_per_s=0.0,
            rate_limit_per_s=0.0,
        )

    async def update(self, host: str, request: UpdateRequest) -> UpdateResponse:
        before = self.config
        if (before.read, before.write) != (request.read, request.write):
            self.config = PartitionConfig(before.version + 1, request.read, request.write)
        return UpdateResponse(before, self.config)

    async def explain(self, host: str, request: ExplainRequest) -> ExplainResponse:
        return ExplainResponse(enabled=True, config=self.config, latest=None, changes=[], acknowledged={1: 4})

    async def list(self, host: str, request: ListRequest) -> ListResponse:
        queues = [queue for queue in self.queues if request.namespace_id in {None, queue[0]}]
        if request.after is not None:
            queues = [queue for queue in queues if queue > request.after]
        return ListResponse(queues[: request.limit])

    async def ring_of(self, host: str, request: RingRequest) -> RingResponse:
        if self.joins and self.joins not in self.ring.hosts:
            self.ring.hosts += (self.joins,)
        return RingResponse(host, ["a", "b"], loaded=7)


@on_virtual_time
async def test_every_read_partition_is_described_with_bounded_concurrency() -> None:
    cluster = Cluster(read=40)
    description = await cluster.client.describe(TASK_QUEUE, with_drain=True, keys_max=5)
    assert description.config == PartitionConfig(4, 40, 1)
    assert sorted(description.partitions) == list(range(40))
    assert all(answer.report.tasks == 10 * number for number, answer in description.partitions.items())
    assert {answer.host for answer in description.partitions.values()} == {"a", "b"}
    assert description.missing == {}
    assert cluster.at_once_max == ASKED_AT_ONCE_MAX
    assert now_s() == pytest.approx(0.4)
    assert all(request.with_drain and request.keys_max == 5 for request in cluster.asked)


@on_virtual_time
async def test_a_partition_that_cannot_be_reached_is_listed_as_missing() -> None:
    cluster = Cluster(read=4)
    cluster.failures = {1: [StoreUnavailable("away")] * 100, 2: [NotOwner("moved")]}
    description = await cluster.client.describe(TASK_QUEUE, timeout_s=5)
    assert sorted(description.partitions) == [0, 2, 3]
    assert list(description.missing) == [1]
    reason = description.missing[1]
    assert "StoreUnavailable: away" in f"{type(reason).__name__}: {reason} {reason.__notes__}"
    assert now_s() <= 5


@on_virtual_time
async def test_a_description_has_no_partitions_if_the_root_cannot_be_reached() -> None:
    cluster = Cluster()
    cluster.network.unregister("a")
    description = await cluster.client.describe(TASK_QUEUE, timeout_s=5)
    assert (description.config, description.partitions) == (None, {})
    assert isinstance(description.missing[0], Unreachable)


@on_virtual_time
async def test_an_invalid_request_is_rejected_before_any_call() -> None:
    cluster = Cluster()
    with pytest.raises(InvalidName):
        await cluster.client.describe(TaskQueueId("namespace", "/_sys/orders/1", TaskType.ACTIVITY))
    with pytest.raises(PastDeadline):
        await cluster.client.describe(TASK_QUEUE, timeout_s=0)
    with pytest.raises(PastDeadline):
        await cluster.client.rings(timeout_s=-1)
    assert cluster.asked == []


@on_virtual_time
async def test_a_sticky_task_queue_is_described_by_its_one_partition() -> None:
    cluster = Cluster(read=1)
    description = await cluster.client.describe(TASK_QUEUE, kind=QueueKind.STICKY)
    assert list(description.partitions) == [0]
    assert [request.kind for request in cluster.asked] == [QueueKind.STICKY]


@on_virtual_time
async def test_an_update_follows_the_root_to_its_new_owner() -> None:
    cluster = Cluster()
    cluster.failures = {0: [NotOwner("moved")]}
    answer = await cluster.client.update(TASK_QUEUE, read=3, write=2, force=True)
    assert answer.after == PartitionConfig(5, 3, 2)
    assert cluster.asked[-1] == UpdateRequest(Partition(TASK_QUEUE, 0), 3, 2, True)
    assert len(cluster.ring.refreshes) == 1


@pytest.mark.parametrize(
    "failure", [ScalerIsOn("on"), NotDrained("not yet"), CallLost("lost"), StoreUnavailable("away")]
)
def test_a_failed_update_is_raised_without_a_retry(failure: FairleadError) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.failures = {0: [failure]}
        with pytest.raises(type(failure)):
            await cluster.client.update(TASK_QUEUE, read=2, write=1)
        assert len(cluster.asked) == 1

    run(main())


@on_virtual_time
async def test_explain_asks_the_root_and_retries() -> None:
    cluster = Cluster()
    cluster.failures = {0: [CallLost("lost")]}
    assert (await cluster.client.explain(TASK_QUEUE)).acknowledged == {1: 4}
    assert cluster.asked[-1] == ExplainRequest(Partition(TASK_QUEUE, 0))


@on_virtual_time
async def test_a_silent_host_leaves_time_for_the_next_owner() -> None:
    cluster = Cluster()
    silent = Handlers()

    async def never(request: ExplainRequest) -> ExplainResponse:
        await asyncio.Event().wait()
        raise AssertionError

    silent.add(EXPLAIN, never)
    cluster.network.register("a", silent)
    cluster.ring._matching.owners = {0: "b"}
    assert (await cluster.client.explain(TASK_QUEUE, timeout_s=10)).enabled
    assert now_s() < 6


@on_virtual_time
async def test_the_listed_partitions_of_all_pages_are_grouped_by_task_queue() -> None:
    cluster = Cluster()
    cluster.queues = sorted(
        [
            *(("shop", f"/_sys/orders/{number}", 2) for number in range(1, 1500)),
            ("shop", "orders", 2),
            ("shop", "orders", 1),
            ("shop", "a/b", 2),
            ("shop", "/_sys/a/b/1", 2),
            ("other", "orders", 2),
        ]
    )
    orders = TaskQueueId("shop", "orders", TaskType.ACTIVITY)
    found = await cluster.client.list_task_queues("shop")
    assert found == {
        TaskQueueId("shop", "a/b", TaskType.ACTIVITY): [0, 1],
        TaskQueueId("shop", "orders", TaskType.WORKFLOW): [0],
        orders: list(range(1500)),
    }
    assert len(cluster.asked) == 2
    assert TaskQueueId("other", "orders", TaskType.ACTIVITY) in await cluster.client.list_task_queues()
    cluster.queues = [("shop", f"{number:04}", 2) for number in range(1000)]
    assert len(await cluster.client.list_task_queues("shop")) == 1000


@on_virtual_time
async def test_any_live_host_can_list_and_an_error_names_the_hosts_that_failed() -> None:
    cluster = Cluster()
    cluster.queues = [("shop", "orders", 2)]
    cluster.network.unregister("a")
    assert await cluster.client.list_task_queues() == {TaskQueueId("shop", "orders", TaskType.ACTIVITY): [0]}
    cluster.network.unregister("b")
    with pytest.raises(NobodyToAsk, match=r"'a'.*'b'"):
        await cluster.client.list_task_queues()


@on_virtual_time
async def test_a_list_that_is_too_long_is_rejected_instead_of_truncated() -> None:
    cluster = Cluster()
    cluster.queues = [("shop", f"{number:04}", 2) for number in range(3000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlead.matching.operator_client.LISTED_PARTITIONS_MAX", 2000)
        with pytest.raises(TooManyToList, match="one namespace at a time"):
            await cluster.client.list_task_queues()


@on_virtual_time
async def test_rings_returns_the_ring_or_the_error_of_each_host() -> None:
    cluster = Cluster()
    cluster.network.unregister("b")
    rings = await cluster.client.rings()
    assert rings["a"] == RingResponse("a", ["a", "b"], loaded=7)
    assert isinstance(rings["b"], Unreachable)
    assert cluster.client.route(Partition(TASK_QUEUE, 1)) == "b"


@on_virtual_time
async def test_rings_has_the_hosts_that_were_asked_if_another_joins_meanwhile() -> None:
    cluster = Cluster()
    cluster.joins = "c"
    assert set(await cluster.client.rings()) == {"a", "b"}
    # The next call asks the new host, which does not listen yet.
    assert isinstance((await cluster.client.rings())["c"], Unreachable)
