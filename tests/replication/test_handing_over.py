"""A graceful failover in its own cluster: the namespace moves while its writes wait, or it does not move."""

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead.history.clusters import is_not_active
from fairlead.history.refusals import Refused
from fairlead.replication.failover import CannotFailOver, Failover, NotHandedOver, Phase, ProgressRequest
from fairlead.replication.messages import FailOverAnswer, FailOverRequest, LettersAsked, LettersCounted
from tests.history.applying.several import SHARED, Cluster, Several
from tests.history.shard_world import SECOND_NS, now_ns
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


class _Nobody:
    """A cluster that is told to look and does not, and has so many dead letters, later more."""

    def __init__(self, *letters: int) -> None:
        self.letters = list(letters)

    async def nudge(self) -> None:
        return

    async def info(self) -> None:
        """It answers."""

    async def count_letters(self, request: LettersAsked) -> LettersCounted:
        assert request == LettersAsked("a", SHARED.id)
        return LettersCounted(self.letters.pop(0) if self.letters else 0)


def failover_of(cluster: Cluster, *letters: int) -> Failover:
    """As a host of the cluster has it."""
    assert cluster.world.clusters is not None
    nobody: Any = _Nobody(*letters)
    return Failover(
        clusters=cluster.world.clusters,
        remotes=lambda _name: nobody,
        namespaces=cluster.host.namespaces,
        history=cluster.host.history.client,
        shards=1,
        clock_ns=now_ns,
    )


def asked(timeout_s: float = 30.0) -> FailOverRequest:
    return FailOverRequest(SHARED.name, "b", True, timeout_s)


def acknowledge(cluster: Cluster) -> None:
    """The other cluster has all that there is."""
    cluster.shard.stream.acknowledge("b", cluster.shard.stream.last_id)


async def until(failover: Failover, phase: Phase) -> None:
    while (await failover.progress(ProgressRequest(SHARED.name))).phase != phase:  # noqa: ASYNC110 - on virtual time
        await asyncio.sleep(0.01)


async def moved_while_a_write_is_under_way(a: Cluster, timeout_s: float, held_s: float) -> FailOverAnswer:
    """Fail over while a write is on its way to the store for so long; another one comes meanwhile, and is refused."""
    has_come, goes_on = a.world.faults.hold("commit")
    writing = asyncio.create_task(a.host.signal(FLOW, "under way"))
    await has_come.wait()
    acknowledge(a)
    moving = asyncio.create_task(failover_of(a).fail_over(asked(timeout_s)))
    await asyncio.sleep(held_s / 2)
    late = asyncio.create_task(a.host.signal(FLOW, "late"))
    await asyncio.sleep(held_s / 2)
    goes_on.set()
    await writing
    acknowledge(a)
    answer = await moving
    with pytest.raises(Refused) as refused:
        await late
    assert is_not_active(refused.value)
    return answer


@on_virtual_time
async def test_writes_wait_for_long_enough_however_little_time_was_left() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        answer = await moved_while_a_write_is_under_way(a, timeout_s=0.05, held_s=0.4)
        assert answer == FailOverAnswer("b", 2)


@pytest.mark.parametrize("letters", [(3,), (0, 3)], ids=["before", "meanwhile"])
@on_virtual_time
async def test_a_namespace_does_not_move_to_a_cluster_that_could_not_take_in_all(letters: tuple[int, ...]) -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        acknowledge(a)
        with pytest.raises(CannotFailOver, match=r"'b' could not take in 3 of the batches .*: there, merge or purge"):
            await failover_of(a, *letters).fail_over(asked())
        now = await a.host.namespaces.read_id(SHARED.id)
        assert (now.failover_version, now.handover_until_ns) == (1, 0)
        async with asyncio.timeout(0.1):
            await a.host.signal(FLOW, "goes on")
        # By force it may be moved all the same.
        forced = msgspec.structs.replace(asked(), is_graceful=False)
        assert await failover_of(a, 3).fail_over(forced) == FailOverAnswer("b", 2)


@on_virtual_time
async def test_a_namespace_does_not_move_when_the_time_is_almost_over_in_which_writes_wait() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        acknowledge(a)
        slow = [9.0]

        async def read_slowly(operation: str) -> None:
            known = a.host.namespaces.cached_id(SHARED.id)
            assert known is not None
            if operation == "read_namespace" and known.handover_until_ns and slow:
                await asyncio.sleep(slow.pop())

        a.world.faults.on_before = read_slowly
        with pytest.raises(NotHandedOver, match="the time was over in which calls wait"):
            await failover_of(a).fail_over(asked())
        assert not slow
        now = await a.host.namespaces.read_id(SHARED.id)
        assert (now.failover_version, now.handover_until_ns) == (1, 0)
        async with asyncio.timeout(0.1):
            await a.host.signal(FLOW, "goes on")


@on_virtual_time
async def test_of_two_hand_overs_at_once_the_later_one_leaves_the_other_alone() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        first, second = failover_of(a), failover_of(a)
        winning = asyncio.create_task(first.fail_over(asked()))
        losing = asyncio.create_task(second.fail_over(asked(1.0)))
        await until(second, Phase.CATCHING_UP)
        await until(first, Phase.CATCHING_UP)
        acknowledge(a)
        # It is not acknowledged: from here on the first waits for that.
        await a.host.signal(FLOW, "last")
        await until(first, Phase.HANDING_OVER)
        with pytest.raises(CannotFailOver, match="is being handed over already"):
            await losing
        late = asyncio.create_task(a.host.signal(FLOW, "late"))
        await asyncio.sleep(3)
        assert not late.done()
        acknowledge(a)
        assert await winning == FailOverAnswer("b", 2)
        with pytest.raises(Refused) as refused:
            await late
        assert is_not_active(refused.value)


@on_virtual_time
async def test_to_ask_how_far_a_cluster_is_ends_no_hand_over() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        # Of another host's, of which this one has not heard but by the order to the shard.
        await a.shard.hand_over(SHARED.id, now_ns() + 5 * SECOND_NS)
        catching_up = asyncio.create_task(failover_of(a).fail_over(asked()))
        late = asyncio.create_task(a.host.signal(FLOW, "late"))
        await asyncio.sleep(2)
        assert not late.done()
        catching_up.cancel()
        await asyncio.gather(catching_up, return_exceptions=True)
        await late


@on_virtual_time
async def test_a_write_that_hangs_ends_the_hand_over_and_not_the_next_one() -> None:
    async with Several(("a", "b")) as several:
        a = several["a"]
        await a.host.begin(FLOW)
        has_come, goes_on = a.world.faults.hold("commit")
        writing = asyncio.create_task(a.host.signal(FLOW, "hangs"))
        await has_come.wait()
        acknowledge(a)
        failover = failover_of(a)
        async with asyncio.timeout(15):
            with pytest.raises(NotHandedOver, match="shard 0 gave no answer"):
                await failover.fail_over(asked())
        goes_on.set()
        await writing
        acknowledge(a)
        assert await failover.fail_over(asked()) == FailOverAnswer("b", 2)
