"""Signals that wait for the same run are written together, each once, in their order; a failure is every caller's."""

import asyncio

import pytest

from fairlead.history.shard.workflow_locks import WorkflowLocks
from fairlead.history.state.errors import RunClosed, TooManySignals
from fairlead.settings import DynamicSettings
from fairlead.storage.tasks import StoreUnavailable
from tests.history.shard_world import NAMESPACE, OneHost, World, complete, kinds
from tests.virtual_time import on_virtual_time

SIGNALS = 20


async def _signal_all(host: OneHost, count: int = SIGNALS) -> list[object]:
    return await asyncio.gather(
        *(host.signal("one", f"signal-{number}", f"request-{number}") for number in range(count)),
        return_exceptions=True,
    )


@on_virtual_time
async def test_signals_that_wait_for_one_run_share_a_commit_and_keep_their_order() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    commits = 0

    async def count(operation: str) -> None:
        nonlocal commits
        commits += operation == "commit"

    world.faults.on_before = count
    assert await _signal_all(host) == [None] * SIGNALS
    signaled = [
        event.workflow_execution_signaled_event_attributes.signal_name
        for event in await host.events("one")
        if event.HasField("workflow_execution_signaled_event_attributes")
    ]
    assert signaled == [f"signal-{number}" for number in range(SIGNALS)]
    assert commits == 2
    await world.close()


@on_virtual_time
async def test_a_repeated_request_in_the_same_commit_adds_no_second_event() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    await asyncio.gather(*(host.signal("one", "same", "same-request") for _ in range(5)))
    assert kinds(await host.events("one")).count("WORKFLOW_EXECUTION_SIGNALED") == 1
    await world.close()


@on_virtual_time
async def test_a_signal_beyond_the_limit_is_rejected_and_the_others_of_its_commit_are_written() -> None:
    world = World()
    world.settings = DynamicSettings(overrides={"history.maximumSignalsPerExecution": 5})
    host = await world.start()
    await host.begin("one")
    outcomes = await _signal_all(host)
    assert outcomes[:5] == [None] * 5
    assert all(isinstance(outcome, TooManySignals) for outcome in outcomes[5:])
    assert kinds(await host.events("one")).count("WORKFLOW_EXECUTION_SIGNALED") == 5
    await world.close()


@on_virtual_time
async def test_a_failed_commit_fails_all_signals_in_it_and_leaves_none_of_them() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    has_come, goes_on = world.faults.hold("commit")
    first = asyncio.create_task(host.signal("one", "first", "first"))
    await has_come.wait()
    others = asyncio.create_task(_signal_all(host))
    await asyncio.sleep(0)
    world.faults.fail_once("commit", StoreUnavailable("the disk is full: nothing was changed"))
    goes_on.set()
    await first
    outcomes = await others
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert kinds(await host.events("one")).count("WORKFLOW_EXECUTION_SIGNALED") == 1
    await world.close()


@on_virtual_time
async def test_a_cancelled_caller_does_not_affect_the_other_signals_of_its_group() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    has_come, goes_on = world.faults.hold("commit")
    first = asyncio.create_task(host.signal("one", "first", "first"))
    await has_come.wait()
    waiting = [asyncio.create_task(host.signal("one", f"signal-{number}", f"{number}")) for number in range(3)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    goes_on.set()
    await first
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert outcomes[1:] == [None, None]
    assert kinds(await host.events("one")).count("WORKFLOW_EXECUTION_SIGNALED") == 3
    await world.close()


@on_virtual_time
async def test_signals_that_wait_while_the_run_closes_fail_because_it_is_closed() -> None:
    world = World()
    host = await world.start()
    await host.begin("one")
    task = await host.poll()
    assert task is not None
    has_come, goes_on = world.faults.hold("commit")
    closing = asyncio.create_task(host.respond(task, [complete()]))
    await has_come.wait()
    signals = asyncio.create_task(_signal_all(host))
    await asyncio.sleep(0.01)
    goes_on.set()
    await closing
    assert all(isinstance(outcome, RunClosed) for outcome in await signals)
    assert not host.shard.is_locked(NAMESPACE.id, "one")
    await world.close()


@on_virtual_time
async def test_a_lock_passes_to_its_waiters_in_their_order_and_skips_cancelled_ones() -> None:
    locks = WorkflowLocks()
    order: list[int] = []

    async def hold(number: int) -> None:
        async with locks("namespace", "workflow"):
            order.append(number)
            await asyncio.sleep(1)

    holders = [asyncio.create_task(hold(number)) for number in range(5)]
    await asyncio.sleep(0.5)
    assert locks.is_held("namespace", "workflow")
    holders[2].cancel()
    await asyncio.gather(*holders, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    assert not locks.is_held("namespace", "workflow")


@on_virtual_time
async def test_a_caller_that_is_cancelled_just_as_it_gets_the_lock_passes_it_on() -> None:
    locks = WorkflowLocks()
    got: list[str] = []

    async def hold(name: str) -> None:
        async with locks("namespace", "workflow"):
            got.append(name)

    lock = locks("namespace", "workflow")
    await lock.__aenter__()
    second, third = asyncio.create_task(hold("second")), asyncio.create_task(hold("third"))
    await asyncio.sleep(0)
    await lock.__aexit__()
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    await third
    assert got == ["third"]
    assert not locks.is_held("namespace", "workflow")
