"""Timers: one that fires, one that is canceled, several, and none."""

import asyncio
import contextlib
from typing import Any

from temporalio import workflow

from tests.sdk.stage import Stage, program


@workflow.defn
class SeveralTimers:
    @workflow.run
    async def run(self) -> list[str]:
        async def one(name: str, seconds: float) -> str:
            await workflow.sleep(seconds, summary=name)
            return name

        tasks = [asyncio.create_task(one(name, seconds)) for name, seconds in (("late", 2.0), ("early", 0.5))]
        return [await done for done in workflow.as_completed(tasks)]


@workflow.defn
class SignalOrTimer:
    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self, seconds: float) -> str:
        try:
            await workflow.wait_condition(lambda: self._go, timeout=seconds, timeout_summary="patience")
        except TimeoutError:
            return "timed out"
        return "went"


@workflow.defn
class TimerCanceledAtOnce:
    @workflow.run
    async def run(self) -> str:
        timer = asyncio.create_task(asyncio.sleep(100))
        await asyncio.sleep(0)
        timer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await timer
        await workflow.sleep(0.1)
        return "over"


@workflow.defn
class LeavesATimer:
    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self) -> str:
        left = asyncio.create_task(asyncio.sleep(100))
        await workflow.wait_condition(lambda: self._go)
        return f"left {left.done()}"


@workflow.defn
class ManyTimers:
    @workflow.run
    async def run(self, count: int) -> int:
        for _ in range(count):
            await workflow.sleep(0.01)
        return count


@program
async def timers_fire_in_order(stage: Stage) -> Any:
    return await stage.run(SeveralTimers.run)


@program
async def timer_fires_before_the_signal(stage: Stage) -> Any:
    return await stage.run(SignalOrTimer.run, 0.5)


@program
async def timer_canceled_by_a_signal(stage: Stage) -> Any:
    handle = await stage.start(SignalOrTimer.run, 100.0)
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "go")


@program
async def timer_canceled_at_once(stage: Stage) -> Any:
    return await stage.run(TimerCanceledAtOnce.run)


@program
async def timer_left_behind(stage: Stage) -> Any:
    handle = await stage.start(LeavesATimer.run)
    await stage.idle(handle)
    return await stage.signal_and_end(handle, "go")


@program
async def timers_one_after_another(stage: Stage) -> Any:
    return await stage.run(ManyTimers.run, 10)
