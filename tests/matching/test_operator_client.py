import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from fairlead.cluster.calls import Answer, CallLost, Handlers, Method, Request, Unreachable
from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.ring import RING, RingAnswer, RingRequest
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import InvalidName, NotDrained, Partition, PartitionConfig, TaskList, TaskType
from fairlead.matching.attempts import PastDeadline
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import (
    DESCRIBE,
    EXPLAIN,
    LIST,
    UPDATE,
    BacklogReport,
    DescribeAnswer,
    DescribeRequest,
    ExplainAnswer,
    ExplainRequest,
    ListAnswer,
    ListRequest,
    ScalerIsOn,
    TaskListKind,
    UpdateAnswer,
    UpdateRequest,
)
from fairlead.matching.operator_client import ASKED_AT_ONCE_MAX, NobodyToAsk, OperatorClient, TooManyToList
from fairlead.storage.contract import StoreUnavailable
from tests.matching.fake_matching import TASK_LIST, FakeMatching, FakeRing, now_s
from tests.simulation.virtual_loop import run
from tests.virtual_time import on_virtual_time


class Cluster:
    """Two hosts that answer operators. A partition that is named in `failures` fails, once for each failure."""

    def __init__(self, read: int = 3) -> None:
        self.config = PartitionConfig(4, read, 1)
        self.failures: dict[int, list[FairleadError]] = {}
        self.asked: list[Any] = []
        self.at_once = self.at_once_max = 0
        self.queues: list[tuple[str, str, int]] = []
        self.takes_s = 0.1
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

        def add(method: Method[Request, Answer], handle: Callable[[str, Request], Awaitable[Answer]]) -> None:
            handlers.add(method, lambda request: self.counted(host, handle, request))

        add(DESCRIBE, self.describe)
        add(UPDATE, self.update)
        add(EXPLAIN, self.explain)
        add(LIST, self.list)
        add(RING, self.tell_ring)
        return handlers

    async def counted(self, host: str, handle: Callable[[str, Request], Awaitable[Answer]], request: Request) -> Answer:
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

    async def describe(self, host: str, request: DescribeRequest) -> DescribeAnswer:
        number = request.partition.number
        return DescribeAnswer(
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

    async def update(self, host: str, request: UpdateRequest) -> UpdateAnswer:
        before = self.config
        if (before.read, before.write) != (request.read, request.write):
            self.config = PartitionConfig(before.version + 1, request.read, request.write)
        return UpdateAnswer(before, self.config)

    async def explain(self, host: str, request: ExplainRequest) -> ExplainAnswer:
        return ExplainAnswer(enabled=True, config=self.config, latest=None, changes=[], acknowledged={1: 4})

    async def list(self, host: str, request: ListRequest) -> ListAnswer:
        queues = [queue for queue in self.queues if request.namespace_id in {None, queue[0]}]
        if request.after is not None:
            queues = [queue for queue in queues if queue > request.after]
        return ListAnswer(queues[: request.limit])

    async def tell_ring(self, host: str, request: RingRequest) -> RingAnswer:
        return RingAnswer(host, ["a", "b"], loaded=7)


@on_virtual_time
async def test_every_read_partition_is_described_a_few_at_a_time() -> None:
    cluster = Cluster(read=40)
    description = await cluster.client.describe(TASK_LIST, with_drain=True, keys_max=5)
    assert description.config == PartitionConfig(4, 40, 1)
    assert sorted(description.partitions) == list(range(40))
    assert all(answer.report.tasks == 10 * number for number, answer in description.partitions.items())
    assert {answer.host for answer in description.partitions.values()} == {"a", "b"}
    assert description.missing == {}
    assert cluster.at_once_max == ASKED_AT_ONCE_MAX
    assert now_s() == pytest.approx(0.4)
    assert all(request.with_drain and request.keys_max == 5 for request in cluster.asked)


@on_virtual_time
async def test_a_partition_that_can_not_be_asked_is_missing_and_the_others_are_there() -> None:
    cluster = Cluster(read=4)
    cluster.failures = {1: [StoreUnavailable("away")] * 100, 2: [NotOwner("moved")]}
    description = await cluster.client.describe(TASK_LIST, timeout_s=5)
    assert sorted(description.partitions) == [0, 2, 3]
    assert list(description.missing) == [1]
    reason = description.missing[1]
    assert "StoreUnavailable: away" in f"{type(reason).__name__}: {reason} {reason.__notes__}"
    assert now_s() <= 5


@on_virtual_time
async def test_without_the_root_nobody_knows_which_partitions_there_are() -> None:
    cluster = Cluster()
    cluster.network.unregister("a")
    description = await cluster.client.describe(TASK_LIST, timeout_s=5)
    assert (description.config, description.partitions) == (None, {})
    assert isinstance(description.missing[0], Unreachable)


@on_virtual_time
async def test_a_wrong_request_is_the_operator_s_to_put_right() -> None:
    cluster = Cluster()
    with pytest.raises(InvalidName):
        await cluster.client.describe(TaskList("namespace", "/_sys/orders/1", TaskType.ACTIVITY))
    with pytest.raises(PastDeadline):
        await cluster.client.describe(TASK_LIST, timeout_s=0)
    with pytest.raises(PastDeadline):
        await cluster.client.rings(timeout_s=-1)
    assert cluster.asked == []


@on_virtual_time
async def test_a_sticky_task_list_is_described_by_its_one_partition() -> None:
    cluster = Cluster(read=1)
    description = await cluster.client.describe(TASK_LIST, kind=TaskListKind.STICKY)
    assert list(description.partitions) == [0]
    assert [request.kind for request in cluster.asked] == [TaskListKind.STICKY]


@on_virtual_time
async def test_the_number_of_partitions_is_changed_at_the_root_wherever_that_is() -> None:
    cluster = Cluster()
    cluster.failures = {0: [NotOwner("moved")]}
    answer = await cluster.client.update(TASK_LIST, read=3, write=2, force=True)
    assert answer.after == PartitionConfig(5, 3, 2)
    assert cluster.asked[-1] == UpdateRequest(Partition(TASK_LIST, 0), 3, 2, True)
    assert len(cluster.ring.refreshes) == 1


@pytest.mark.parametrize(
    "failure", [ScalerIsOn("on"), NotDrained("not yet"), CallLost("lost"), StoreUnavailable("away")]
)
def test_what_becomes_of_a_change_is_told_at_once(failure: FairleadError) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.failures = {0: [failure]}
        with pytest.raises(type(failure)):
            await cluster.client.update(TASK_LIST, read=2, write=1)
        assert len(cluster.asked) == 1

    run(main())


@on_virtual_time
async def test_the_scaler_is_explained_by_the_root() -> None:
    cluster = Cluster()
    cluster.failures = {0: [CallLost("lost")]}
    assert (await cluster.client.explain(TASK_LIST)).acknowledged == {1: 4}
    assert cluster.asked[-1] == ExplainRequest(Partition(TASK_LIST, 0))


@on_virtual_time
async def test_one_host_that_never_answers_leaves_time_for_the_next_owner() -> None:
    cluster = Cluster()
    silent = Handlers()

    async def never(request: ExplainRequest) -> ExplainAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    silent.add(EXPLAIN, never)
    cluster.network.register("a", silent)
    cluster.ring._matching.owners = {0: "b"}
    assert (await cluster.client.explain(TASK_LIST, timeout_s=10)).enabled
    assert now_s() < 6


@on_virtual_time
async def test_task_lists_are_put_together_from_their_partitions_over_all_pages() -> None:
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
    orders = TaskList("shop", "orders", TaskType.ACTIVITY)
    found = await cluster.client.list_task_lists("shop")
    assert found == {
        TaskList("shop", "a/b", TaskType.ACTIVITY): [0, 1],
        TaskList("shop", "orders", TaskType.WORKFLOW): [0],
        orders: list(range(1500)),
    }
    assert len(cluster.asked) == 2
    assert TaskList("other", "orders", TaskType.ACTIVITY) in await cluster.client.list_task_lists()
    cluster.queues = [("shop", f"{number:04}", 2) for number in range(1000)]
    assert len(await cluster.client.list_task_lists("shop")) == 1000


@on_virtual_time
async def test_any_host_can_list_and_when_none_does_that_is_told() -> None:
    cluster = Cluster()
    cluster.queues = [("shop", "orders", 2)]
    cluster.network.unregister("a")
    assert await cluster.client.list_task_lists() == {TaskList("shop", "orders", TaskType.ACTIVITY): [0]}
    cluster.network.unregister("b")
    with pytest.raises(NobodyToAsk, match=r"'a'.*'b'"):
        await cluster.client.list_task_lists()


@on_virtual_time
async def test_a_list_that_is_too_long_is_refused_not_cut_off() -> None:
    cluster = Cluster()
    cluster.queues = [("shop", f"{number:04}", 2) for number in range(3000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fairlead.matching.operator_client.LISTED_PARTITIONS_MAX", 2000)
        with pytest.raises(TooManyToList, match="one namespace at a time"):
            await cluster.client.list_task_lists()


@on_virtual_time
async def test_each_host_tells_its_ring_or_why_it_does_not() -> None:
    cluster = Cluster()
    cluster.network.unregister("b")
    rings = await cluster.client.rings()
    assert rings["a"] == RingAnswer("a", ["a", "b"], loaded=7)
    assert isinstance(rings["b"], Unreachable)
    assert cluster.client.route(Partition(TASK_LIST, 1)) == "b"
