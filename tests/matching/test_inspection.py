"""Operators look into backlogs, and remove tasks of clients from them."""

import asyncio

import pytest

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition
from fairlead.matching.inspection import Inspection
from fairlead.matching.messages.inspection import PEEKED_MAX
from fairlead.matching.operator_client import OperatorClient
from tests.matching.hosts import ORDERS, Host, Hosts, add_to, at, hosts, new, poll_at
from tests.virtual_time import on_virtual_time

# Payloads with this beginning stand for tasks of the history service.
OWNED = b"workflow"


def is_owned(payload: bytes) -> bool:
    return payload.startswith(OWNED)


def inspected(there: Hosts) -> OperatorClient:
    """A client of hosts that also handle inspections."""
    for host in there.values():
        _register(there, host)
    return OperatorClient(there.network.caller(), next(iter(there.values())).ring, random=lambda: 0.5)


def _register(there: Hosts, host: Host) -> None:
    handlers = host.service.handlers()
    Inspection(host.service.engine, is_owned=is_owned).add_to(handlers)
    there.network.register(host.name, handlers)


@on_virtual_time
async def test_a_peek_shows_the_tasks_in_the_order_in_which_they_go() -> None:
    async with hosts() as there:
        operator = inspected(there)
        for number in range(3):
            await there.client.add(ORDERS, new(f"late-{number}", priority=5))
        for number in range(4):
            await there.client.add(ORDERS, new(f"flood-{number}", key="flood"))
        await there.client.add(ORDERS, new("small", key="small", weight=2.0))
        peeked = await operator.peek(at(0), limit=PEEKED_MAX)
        assert (peeked.loaded, peeked.stored) == (8, 8)
        order = [task.payload.decode() for task in peeked.tasks]
        assert order[-3:] == ["late-0", "late-1", "late-2"]
        assert peeked.tasks[order.index("small")].weight == 2.0
        received = [(await poll_at(there, 0)).task for _ in range(8)]
        assert [payload.decode() for payload in received if payload] == order


@on_virtual_time
async def test_a_peek_at_the_first_tasks_counts_the_others() -> None:
    async with hosts() as there:
        operator = inspected(there)
        for number in range(5):
            await there.client.add(ORDERS, new(str(number)))
        peeked = await operator.peek(at(0), limit=2)
        assert [task.payload for task in peeked.tasks] == [b"0", b"1"]
        assert (peeked.loaded, peeked.stored) == (5, 5)


@pytest.mark.parametrize("limit", [0, -1, PEEKED_MAX + 1])
@on_virtual_time
async def test_a_peek_at_too_many_tasks_is_refused(limit: int) -> None:
    async with hosts() as there:
        with pytest.raises(FixRequest, match=f"limit is {limit}"):
            await inspected(there).peek(at(0), limit=limit)


@on_virtual_time
async def test_a_purge_removes_the_tasks_of_clients_and_keeps_those_of_history() -> None:
    async with hosts() as there:
        operator = inspected(there)
        for number in range(450):
            await there.client.add(ORDERS, new(f"{'workflow' if number % 9 == 0 else 'plain'}-{number}"))
        purged = await operator.purge(at(0))
        assert (purged.removed, purged.kept, purged.is_done) == (400, 50, True)
        left = [(await poll_at(there, 0)).task for _ in range(50)]
        assert all(payload is not None and is_owned(payload) for payload in left)
        again = await operator.purge(at(0))
        assert (again.removed, again.kept, again.is_done) == (0, 0, True)


@on_virtual_time
async def test_a_purge_reaches_tasks_that_are_not_loaded_yet() -> None:
    async with hosts(overrides={"matching.getTasksBatchSize": 10}) as there:
        operator = inspected(there)
        for number in range(100):
            await there.client.add(ORDERS, new(f"plain-{number}"))
        removed = 0
        while not (purged := await operator.purge(at(0))).is_done:
            removed += purged.removed
        assert removed + purged.removed == 100
        assert (await operator.peek(at(0))).stored == 0


@on_virtual_time
async def test_purged_tasks_stay_away_after_a_restart() -> None:
    async with hosts("one") as there:
        operator = inspected(there)
        for number in range(20):
            await there.client.add(ORDERS, new(f"plain-{number}"))
        await there.client.add(ORDERS, new("workflow-1"))
        await operator.purge(at(0))
        await there["one"].service.engine.close()
        await there.remove("one")
        _register(there, await there.add("two"))
        operator = OperatorClient(there.network.caller(), there["two"].ring, random=lambda: 0.5)
        async with asyncio.timeout(5):
            while not (peeked := await operator.peek(at(0))).tasks:  # noqa: ASYNC110 - the reader has no event for it
                await asyncio.sleep(0.01)
        assert [task.payload for task in peeked.tasks] == [b"workflow-1"]


@on_virtual_time
async def test_figures_sum_the_partitions_of_all_hosts() -> None:
    overrides = {"matching.numTasklistReadPartitions": 4, "matching.numTasklistWritePartitions": 4}
    async with hosts("one", "two", "three", overrides=overrides) as there:
        operator = inspected(there)
        for number in range(4):
            for task in range(number + 1):
                await add_to(there, number, f"{number}-{task}")
        queues, missing = await operator.figures("namespace")
        assert not missing
        (queue,) = queues
        assert (queue.name, queue.partitions, queue.backlog, queue.polls) == ("orders", 4, 10, 0)
        assert (await operator.figures("another"))[0] == []
        there.network.unregister(there.client.route(Partition(ORDERS, 0)))
        queues, missing = await operator.figures()
        assert len(missing) == 1
