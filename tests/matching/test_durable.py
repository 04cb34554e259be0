"""The matching service on a real SQLite file: acknowledged tasks survive a restart."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fairlead.core.partitions import Partition
from fairlead.matching.messages import ADD, DESCRIBE, POLL, AddRequest, DescribeRequest, NewTask, PollRequest
from fairlead.rpc.hosts.caller import Caller
from fairlead.storage.sqlite import SqliteStore
from tests.matching.hosts import ORDERS, Hosts, hosts, partitions


@asynccontextmanager
async def host(file: Path) -> AsyncIterator[tuple[Hosts, SqliteStore]]:
    """Run the only host until the block ends."""
    store = await SqliteStore.open(file)
    # Disable forwarding: while a task is offered to the parent, its partition doesn't hold it.
    overrides = {
        **partitions(3),
        "matching.forwarderMaxOutstandingTasks": 0,
        "matching.forwarderMaxOutstandingPolls": 0,
        "matching.forwarderMaxOutstandingPollsDown": 0,
    }
    async with hosts("host", overrides=overrides, store=store) as there:
        # The root is loaded first, because it sets the number of partitions.
        root = DescribeRequest(Partition(ORDERS, 0))
        await there.network.caller().call("host", DESCRIBE, root, timeout_s=30)
        yield there, store


async def add(caller: Caller, number: int, key: str, payload: bytes) -> None:
    request = AddRequest(Partition(ORDERS, number), NewTask(3, key, 1.0, payload))
    await caller.call("host", ADD, request, timeout_s=30)


async def poll(caller: Caller, number: int, *, timeout_s: float = 5) -> bytes | None:
    request = PollRequest(Partition(ORDERS, number), "worker", "poll", timeout_s)
    return (await caller.call("host", POLL, request, timeout_s=30)).task


async def test_tasks_and_their_fair_order_survive_a_restart(tmp_path: Path) -> None:
    async with host(tmp_path / "tasks.db") as (there, store):
        caller = there.network.caller()
        for number in range(3):
            await asyncio.gather(*(add(caller, number, "flood", b"flood") for _ in range(1000)))
            await asyncio.gather(*(add(caller, number, f"small-{small}", b"small") for small in range(20)))
        # Every append was on disk before its response, yet they share a few commits.
        assert store.commits < 500
    async with host(tmp_path / "tasks.db") as (there, _):
        caller = there.network.caller()
        for number in range(3):
            first = [await poll(caller, number) for _ in range(40)]
            # Each small key gets a task in the first round: none waits behind the flood.
            assert Counter(first)[b"small"] == 20
            rest = [await poll(caller, number) for _ in range(980)]
            assert Counter(rest) == {b"flood": 980}
            assert await poll(caller, number, timeout_s=0.05) is None
    async with host(tmp_path / "tasks.db") as (there, _):
        for number in range(3):
            assert await poll(there.network.caller(), number, timeout_s=0.05) is None
