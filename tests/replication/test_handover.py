"""A graceful failover in the active cluster: the namespace moves while its writes wait, or it does not move."""

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead.api.errors import NotActive
from fairlead.replication.failover import CannotFailOver, Failover, NotHandedOver, Phase, ProgressRequest
from fairlead.replication.messages import DeadLetterCount, DeadLetterCountRequest, FailOverRequest, FailOverResponse
from tests.history.ndc.several import GLOBAL_NAMESPACE, Cluster, Several
from tests.history.shard_world import SECOND_NS, now_ns
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


class _Nobody:
    """A cluster that ignores nudges and has a number of dead letters, which may grow."""

    def __init__(self, *dead_letters: int) -> None:
        self.dead_letters = list(dead_letters)

    async def nudge(self) -> None:
        return

    async def info(self) -> None:
        """Respond."""

    async def count_dead_letters(self, request: DeadLetterCountRequest) -> DeadLetterCount:
        assert request == DeadLetterCountRequest("a", GLOBAL_NAMESPACE.id)
        return DeadLetterCount(self.dead_letters.pop(0) if self.dead_letters else 0)


def failover_of(cluster: Cluster, *dead_letters: int) -> Failover:
    """The replication service as a host of the cluster has it."""
    assert cluster.world.clusters is not None
    nobody: Any = _Nobody(*dead_letters)
    return Failover(
        clusters=cluster.world.clusters,
        remotes=lambda _name: nobody,
        namespaces=cluster.host.namespaces,
        history=cluster.host.history.client,
        shards=1,
        clock_ns=now_ns,
    )


def asked(timeout_s: float = 30.0) -> FailOverRequest:
    return FailOverRequest(GLOBAL_NAMESPACE.name, "b", True, timeout_s)


def acknowledge(cluster: Cluster) -> None:
    """The other cluster has applied everything."""
    cluster.shard.stream.acknowledge("b", cluster.shard.stream.last_id)


async def until(failover: Failover, phase: Phase) -> None:
    while (await failover.progress(ProgressRequest(GLOBAL_NAMESPACE.name))).phase != phase:  # noqa: ASYNC110 - on virtual time
        await asyncio.sleep(0.01)


async def moved_while_a_write_is_under_way(a: Cluster, timeout_s: float, held_s: float) -> FailOverResponse:
    """Fail over while a write takes `held_s` to reach the store; another write comes meanwhile and is refused."""
    has_come, goes_on = a.world.faults.hold("commit")
    writing = asyncio.create_task(a.host.signal(FLOW, "under way"))
    await has_come.wait()
    acknowledge(a)
    moving = asyncio.create_task(failover_of(a).fail_over(asked(timeout_s)))
    # Virtual time.
    await asyncio.sleep(held_s / 2)
    late = asyncio.create_task(a.host.signal(FLOW, "late"))
    # Virtual time.
    await asyncio.sleep(held_s / 2)
    goes_on.set()
    await writing
    acknowledge(a)
    answer = await moving
    with pytest.raises(NotActive):
        await late
    return answer


@on_virtual_time
async def test_writes_are_held_long_enough_even_if_little_time_is_left() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        answer = await moved_while_a_write_is_under_way(a, timeout_s=0.05, held_s=0.4)
        assert answer == FailOverResponse("b", 2)


@pytest.mark.parametrize("dead_letters", [(3,), (0, 3)], ids=["before", "meanwhile"])
@on_virtual_time
async def test_a_namespace_does_not_move_to_a_cluster_that_could_not_apply_everything(
    dead_letters: tuple[int, ...],
) -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        acknowledge(a)
        with pytest.raises(CannotFailOver, match=r"'b' has 3 dead letters of namespace .*: merge or purge"):
            await failover_of(a, *dead_letters).fail_over(asked())
        now = await a.host.namespaces.read_id(GLOBAL_NAMESPACE.id)
        assert (now.failover_version, now.handover_until_ns) == (1, 0)
        async with asyncio.timeout(0.1):
            await a.host.signal(FLOW, "goes on")
        # A forced failover still works.
        forced = msgspec.structs.replace(asked(), is_graceful=False)
        assert await failover_of(a, 3).fail_over(forced) == FailOverResponse("b", 2)


@on_virtual_time
async def test_a_namespace_does_not_move_when_the_hold_on_writes_is_about_to_end() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        acknowledge(a)
        slow = [9.0]

        async def read_slowly(operation: str) -> None:
            known = a.host.namespaces.cached_id(GLOBAL_NAMESPACE.id)
            assert known is not None
            if operation == "read_namespace" and known.handover_until_ns and slow:
                await asyncio.sleep(slow.pop())

        a.world.faults.on_before = read_slowly
        with pytest.raises(NotHandedOver, match="the handover took too long"):
            await failover_of(a).fail_over(asked())
        assert not slow
        now = await a.host.namespaces.read_id(GLOBAL_NAMESPACE.id)
        assert (now.failover_version, now.handover_until_ns) == (1, 0)
        async with asyncio.timeout(0.1):
            await a.host.signal(FLOW, "goes on")


@on_virtual_time
async def test_a_second_concurrent_handover_does_not_affect_the_first() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        first, second = failover_of(a), failover_of(a)
        winning = asyncio.create_task(first.fail_over(asked()))
        losing = asyncio.create_task(second.fail_over(asked(1.0)))
        await until(second, Phase.CATCHING_UP)
        await until(first, Phase.CATCHING_UP)
        acknowledge(a)
        # The other cluster does not acknowledge: from here on the first handover waits for it.
        await a.host.signal(FLOW, "last")
        await until(first, Phase.HANDING_OVER)
        with pytest.raises(CannotFailOver, match="is being handed over already"):
            await losing
        late = asyncio.create_task(a.host.signal(FLOW, "late"))
        await asyncio.sleep(3)
        assert not late.done()
        acknowledge(a)
        assert await winning == FailOverResponse("b", 2)
        with pytest.raises(NotActive):
            await late


@on_virtual_time
async def test_asking_for_the_progress_of_a_cluster_does_not_end_a_handover() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        # A handover of another host; this host knows it only from the order to the shard.
        await a.shard.hand_over(GLOBAL_NAMESPACE.id, now_ns() + 5 * SECOND_NS)
        catching_up = asyncio.create_task(failover_of(a).fail_over(asked()))
        late = asyncio.create_task(a.host.signal(FLOW, "late"))
        await asyncio.sleep(2)
        assert not late.done()
        catching_up.cancel()
        await asyncio.gather(catching_up, return_exceptions=True)
        await late


@on_virtual_time
async def test_a_hanging_write_fails_its_handover_but_not_the_next_one() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal(FLOW, "hangs"))
        await has_come.wait()
        acknowledge(a)
        failover = failover_of(a)
        async with asyncio.timeout(15):
            with pytest.raises(NotHandedOver, match="shard 0 did not respond"):
                await failover.fail_over(asked())
        goes_on.set()
        await writing
        acknowledge(a)
        assert await failover.fail_over(asked()) == FailOverResponse("b", 2)
