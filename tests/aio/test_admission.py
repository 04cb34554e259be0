"""Fair turns of namespaces on a busy host, on virtual time."""

import asyncio

import pytest

from fairlead.aio.admission import SHARED_S, TURN_S_MAX, Admission, end_turn
from tests.virtual_time import on_virtual_time

CALL_S = 0.01


class Host:
    """Carries out calls of a fixed length, and notes which ones begin."""

    def __init__(self, at_once_max: int, *, call_s: float = CALL_S) -> None:
        self.admission = Admission(lambda: at_once_max)
        # Two namespaces have called, so calls are bounded.
        for namespace in ("first", "second"):
            self.admission.end(self.admission.try_begin(namespace))
        self.call_s = call_s
        self.begun: list[str] = []
        self.running = 0
        self.running_max = 0

    async def call(self, namespace: str) -> float:
        """Make a call; return how long it took."""
        began_s = asyncio.get_running_loop().time()
        number = self.admission.try_begin(namespace) or await self.admission.begin(namespace)
        self.begun.append(namespace)
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await asyncio.sleep(self.call_s)
        finally:
            self.running -= 1
            self.admission.end(number)
        return asyncio.get_running_loop().time() - began_s


@on_virtual_time
async def test_calls_below_the_limit_begin_at_once() -> None:
    host = Host(4)
    assert await asyncio.gather(*(host.call("a") for _ in range(4))) == pytest.approx([CALL_S] * 4)
    assert host.admission.waiting == 0


@on_virtual_time
async def test_no_more_calls_run_at_once_than_the_limit() -> None:
    host = Host(4)
    async with asyncio.TaskGroup() as calls:
        for _ in range(50):
            calls.create_task(host.call("a"))
    assert (host.running_max, len(host.begun), host.running) == (4, 50, 0)


@on_virtual_time
async def test_a_neighbour_of_a_flood_begins_at_once() -> None:
    host = Host(8)
    async with asyncio.TaskGroup() as calls:
        for _ in range(600):
            calls.create_task(host.call("flood"))
        await asyncio.sleep(0)
        for _ in range(20):
            assert await host.call("neighbour") == pytest.approx(CALL_S)


@on_virtual_time
async def test_a_further_call_of_a_neighbour_waits_for_one_call_and_not_for_hundreds() -> None:
    host = Host(8)
    async with asyncio.TaskGroup() as calls:
        for _ in range(600):
            calls.create_task(host.call("flood"))
        await asyncio.sleep(0)
        for _ in range(20):
            for took_s in await asyncio.gather(host.call("neighbour"), host.call("neighbour")):
                assert took_s <= 2 * CALL_S + 1e-9


@on_virtual_time
async def test_calls_of_many_namespaces_run_at_once_up_to_twice_the_limit() -> None:
    host = Host(2)
    async with asyncio.TaskGroup() as calls:
        for number in range(100):
            calls.create_task(host.call("flood"))
            calls.create_task(host.call(f"namespace {number}"))
    assert (host.running_max, len(host.begun), host.running) == (4, 200, 0)


@on_virtual_time
async def test_calls_of_a_lone_namespace_are_not_bounded_until_another_one_calls() -> None:
    host = Host(4)
    host.admission = Admission(lambda: 4)
    async with asyncio.TaskGroup() as calls:
        for _ in range(50):
            calls.create_task(host.call("lone"))
    assert host.running_max == 50
    host.running_max = 0
    await host.call("neighbour")
    async with asyncio.TaskGroup() as calls:
        for _ in range(50):
            calls.create_task(host.call("lone"))
    assert host.running_max == 4
    await asyncio.sleep(SHARED_S)
    async with asyncio.TaskGroup() as calls:
        for _ in range(50):
            calls.create_task(host.call("lone"))
    assert host.running_max == 50


@on_virtual_time
async def test_calls_without_a_namespace_do_not_bound_those_of_a_lone_namespace() -> None:
    host = Host(4)
    host.admission = Admission(lambda: 4)
    async with asyncio.TaskGroup() as calls:
        for namespace in ("lone", "", "lone", ""):
            calls.create_task(host.call(namespace))
        for _ in range(50):
            calls.create_task(host.call("lone"))
    assert host.running_max == 54


@on_virtual_time
async def test_a_call_without_a_namespace_has_its_turn_beside_a_flood() -> None:
    host = Host(8)
    async with asyncio.TaskGroup() as calls:
        for _ in range(600):
            calls.create_task(host.call("flood"))
        await asyncio.sleep(0)
        for _ in range(20):
            assert await host.call("") == pytest.approx(CALL_S)


@on_virtual_time
async def test_a_call_that_takes_too_long_gives_its_place_to_another() -> None:
    stuck, host = Host(2, call_s=60), Host(2)
    host.admission = stuck.admission
    async with asyncio.TaskGroup() as calls:
        for number in range(4):
            calls.create_task(stuck.call(f"handover {number}"))
        await asyncio.sleep(0)
        assert await host.call("other") == pytest.approx(TURN_S_MAX + CALL_S)
    assert not host.admission._begun
    assert not host.admission._running


@on_virtual_time
@pytest.mark.parametrize("has_its_turn", [False, True])
async def test_a_caller_that_goes_leaves_its_place_to_others(has_its_turn: bool) -> None:
    host = Host(1)
    numbers = [host.admission.try_begin(namespace) for namespace in ("held", "held too")]
    gone, last = asyncio.create_task(host.call("gone")), asyncio.create_task(host.call("last"))
    await asyncio.sleep(0)
    if has_its_turn:
        for number in numbers:
            host.admission.end(number)
        gone.cancel()
    else:
        gone.cancel()
        for number in numbers:
            host.admission.end(number)
    await last
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert host.begun == ["last"]
    assert await host.call("next") == pytest.approx(CALL_S)


@on_virtual_time
@pytest.mark.parametrize("may_wait", [False, True])
async def test_a_call_that_may_wait_leaves_its_place_when_it_waits(may_wait: bool) -> None:
    host = Host(1)

    async def wait() -> str:
        end_turn()
        # Longer than a call, and shorter than the time after which any call leaves its place.
        await asyncio.sleep(TURN_S_MAX / 2)
        return "answer"

    waiting = asyncio.create_task(host.admission.answer("first", wait, may_wait=may_wait))
    await asyncio.sleep(0)
    took_s = await host.call("first")
    assert took_s == pytest.approx(CALL_S if may_wait else TURN_S_MAX / 2 + CALL_S)
    assert await waiting == "answer"
    assert not host.admission._begun


@on_virtual_time
async def test_a_task_of_a_call_ends_no_turn_of_another_call() -> None:
    host = Host(1)
    tasks = []

    async def begin_task() -> None:
        async def later() -> None:
            await asyncio.sleep(CALL_S)
            end_turn()

        tasks.append(asyncio.create_task(later()))

    await host.admission.answer("first", begin_task, may_wait=True)
    async with asyncio.TaskGroup() as calls:
        for _ in range(3):
            calls.create_task(host.call("first"))
    assert host.running_max == 1
    await asyncio.gather(*tasks)


@on_virtual_time
async def test_new_namespaces_do_not_overtake_waiting_calls_for_ever() -> None:
    host = Host(1)
    async with asyncio.TaskGroup() as calls:
        flood = [calls.create_task(host.call("flood")) for _ in range(3)]
        for number in range(40):
            calls.create_task(host.call(f"namespace {number}"))
            await asyncio.sleep(0.9 * CALL_S)
            if number == 16:
                assert all(call.done() for call in flood)
