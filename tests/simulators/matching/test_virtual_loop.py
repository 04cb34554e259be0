"""Tests of the simulator's event loop, on which every finding relies."""

import asyncio
import time
from random import Random

import pytest

from fairlead.simulations.virtual_loop import Deadlock, Process, TooManySteps, VirtualLoop, current_process, run


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> list[float]:
        seen = [loop().time()]
        await asyncio.sleep(3600)
        seen.append(loop().time())
        await asyncio.sleep(0.25)
        seen.append(loop().time())
        return seen

    began_s = time.monotonic()
    seen, _ = run(main())
    assert seen == [0.0, 3600.0, 3600.25]
    assert time.monotonic() - began_s < 10


def test_a_timeout_ends_at_its_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return loop().time()

    assert run(main())[0] == 5.0


async def chatter(name: str, order: list[str]) -> None:
    for turn in range(3):
        order.append(f"{name}{turn}")
        await asyncio.sleep(0)


async def chat() -> list[str]:
    order: list[str] = []
    await asyncio.gather(*(chatter(name, order) for name in "abcd"))
    return order


def test_callbacks_run_first_in_first_out_without_a_seed() -> None:
    assert run(chat())[0] == [f"{name}{turn}" for turn in range(3) for name in "abcd"]


def test_a_seed_always_gives_the_same_order() -> None:
    orders = {seed: run(chat(), order=Random(seed))[0] for seed in range(20)}
    assert {seed: run(chat(), order=Random(seed))[0] for seed in range(20)} == orders
    assert len({tuple(order) for order in orders.values()}) > 10


def test_a_callback_always_runs_after_the_one_that_scheduled_it() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        def follow(number: int) -> None:
            order.append(number)
            if number < 5:
                loop().call_soon(follow, number + 1)

        async def distract() -> None:
            await asyncio.sleep(0)

        follow(0)
        await asyncio.gather(*(distract() for _ in range(10)))
        await asyncio.sleep(1)
        return order

    for seed in range(20):
        assert run(main(), order=Random(seed))[0] == [0, 1, 2, 3, 4, 5]


def test_a_deadlock_names_the_waiting_task() -> None:
    async def waits_for_nothing() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(waits_for_nothing()), asyncio.sleep(7))

    with pytest.raises(Deadlock, match=r"at 7\.000 s(.|\n)*waits_for_nothing"):
        run(main())


def test_an_endless_run_is_stopped() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - this loop must never end
            await asyncio.sleep(0)

    with pytest.raises(TooManySteps):
        run(main(), steps_max=1000)


def test_no_code_of_a_killed_process_runs_again() -> None:
    ran: list[str] = []

    async def live(process: Process) -> None:
        assert current_process() is process
        loop().call_later(5, ran.append, "timer")
        child = asyncio.create_task(grandchild())
        try:
            await child
        finally:
            ran.append("cleanup")

    async def grandchild() -> None:
        for _ in range(10):
            await asyncio.sleep(1)
            ran.append("step")

    async def main() -> list[str]:
        process = Process("host")
        loop().spawn(process, live(process), "live")
        await asyncio.sleep(2.5)
        process.is_killed = True
        await asyncio.sleep(100)
        assert current_process().name == "nobody"
        return list(ran)

    assert run(main())[0] == ["step", "step"]


def test_an_error_of_a_task_that_is_not_awaited_is_recorded() -> None:
    async def fail() -> None:
        raise ValueError("not awaited")

    async def main() -> None:
        loop().create_task(fail())
        seen = loop().create_task(fail())
        loop().call_soon(int, "no number")
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="not awaited"):
            await seen

    _, ended = run(main())
    assert len(ended.failures) == 2
    assert "no number" in ended.failures[0]
    assert "not awaited" in ended.failures[1]


def test_remaining_tasks_are_stopped_in_the_order_of_creation() -> None:
    stopped: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            stopped.append(number)

    async def main() -> None:
        for number in range(10):
            loop().create_task(wait(number))
        await asyncio.sleep(1)

    run(main())
    assert stopped == list(range(10))
