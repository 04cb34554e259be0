"""Small SDK programs whose histories were recorded from the reference server: see `record_reference.py`."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError

SOON = timedelta(seconds=20)
NO_ONE = "nobody-polls-this"
KEYWORD = SearchAttributeKey.for_keyword("CustomKeywordField")

# Ids of workflows that have blocked. Each blocks one workflow task, so that the server buffers events during it.
_blocked: set[str] = set()


def block_once(seconds: float) -> None:
    if workflow.info().workflow_id not in _blocked:
        _blocked.add(workflow.info().workflow_id)
        time.sleep(seconds)


@activity.defn
async def echo(text: str) -> str:
    return text


@activity.defn
async def fails_until(attempt: int) -> int:
    if activity.info().attempt < attempt:
        raise ApplicationError(f"attempt {activity.info().attempt}", type="Again")
    return activity.info().attempt


@activity.defn
async def fails_for_good() -> None:
    raise ApplicationError("no", "detail", type="Fatal", non_retryable=True)


@activity.defn
async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@activity.defn
async def heartbeats_until_canceled() -> None:
    while True:
        activity.heartbeat("beat")
        await asyncio.sleep(0.1)


@activity.defn
async def heartbeats_once() -> None:
    activity.heartbeat("once")
    await asyncio.sleep(5)


@workflow.defn
class Hello:
    @workflow.run
    async def run(self, name: str) -> str:
        return f"hello {name}"


@workflow.defn
class OneActivity:
    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(echo, name, start_to_close_timeout=SOON)


@workflow.defn
class ManyActivities:
    @workflow.run
    async def run(self) -> list[str]:
        return list(
            await asyncio.gather(
                *(
                    workflow.execute_activity(echo, f"{i}", schedule_to_close_timeout=SOON, summary=f"number {i}")
                    for i in range(3)
                )
            )
        )


@workflow.defn
class RetriedActivity:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(
            fails_until,
            3,
            start_to_close_timeout=SOON,
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50)),
        )


@workflow.defn
class ExhaustedActivity:
    @workflow.run
    async def run(self) -> str:
        try:
            await workflow.execute_activity(
                fails_until,
                9,
                start_to_close_timeout=SOON,
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_attempts=2),
            )
        except ActivityError as error:
            return str(error.retry_state)
        return "never"


@workflow.defn
class FatalActivity:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(fails_for_good, start_to_close_timeout=SOON)


@workflow.defn
class NonRetryableType:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity(
            fails_until,
            9,
            start_to_close_timeout=SOON,
            retry_policy=RetryPolicy(non_retryable_error_types=["Again"]),
        )


@workflow.defn
class ActivityTimeouts:
    @workflow.run
    async def run(self, kind: str) -> str:
        once = RetryPolicy(maximum_attempts=1)
        try:
            if kind == "start_to_close":
                await workflow.execute_activity(
                    sleeps, 3.0, start_to_close_timeout=timedelta(seconds=1), retry_policy=once
                )
            elif kind == "schedule_to_start":
                await workflow.execute_activity(
                    echo,
                    "x",
                    task_queue=NO_ONE,
                    schedule_to_start_timeout=timedelta(seconds=1),
                    start_to_close_timeout=SOON,
                )
            elif kind == "schedule_to_close":
                await workflow.execute_activity(
                    echo, "x", task_queue=NO_ONE, schedule_to_close_timeout=timedelta(seconds=1)
                )
            elif kind == "schedule_to_close_in_backoff":
                await workflow.execute_activity(
                    fails_until,
                    9,
                    schedule_to_close_timeout=timedelta(seconds=2),
                    retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=3),
                )
            elif kind == "start_to_close_retried":
                await workflow.execute_activity(
                    sleeps,
                    3.0,
                    start_to_close_timeout=timedelta(seconds=1),
                    retry_policy=RetryPolicy(maximum_attempts=2, initial_interval=timedelta(milliseconds=100)),
                )
            elif kind == "heartbeat":
                await workflow.execute_activity(
                    heartbeats_once,
                    start_to_close_timeout=SOON,
                    heartbeat_timeout=timedelta(seconds=1),
                    retry_policy=once,
                )
        except ActivityError as error:
            return repr(error.cause)
        return "never"


@workflow.defn
class CanceledActivity:
    def __init__(self) -> None:
        self._go = False

    @workflow.signal
    def go(self) -> None:
        self._go = True

    @workflow.run
    async def run(self, kind: str) -> str:
        handle = workflow.start_activity(
            heartbeats_until_canceled,
            task_queue=NO_ONE if kind == "unstarted" else None,
            start_to_close_timeout=SOON,
            heartbeat_timeout=timedelta(seconds=2),
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL
            if kind == "try"
            else workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.wait_condition(lambda: self._go)
        handle.cancel()
        try:
            await handle
        except ActivityError as error:
            return repr(error.cause)
        return "never"


@workflow.defn
class ScheduledAndCanceledAtOnce:
    @workflow.run
    async def run(self) -> str:
        handle = workflow.start_activity(
            echo,
            "x",
            task_queue=NO_ONE,
            start_to_close_timeout=SOON,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        await workflow.sleep(0.05)
        handle.cancel()
        try:
            await handle
        except ActivityError:
            return "canceled"
        return "never"


@workflow.defn
class Timer:
    @workflow.run
    async def run(self) -> None:
        await workflow.sleep(1)


@workflow.defn
class CanceledTimer:
    @workflow.run
    async def run(self) -> str:
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: False, timeout=0.2, timeout_summary="soon")
        long = asyncio.create_task(asyncio.sleep(100))
        await workflow.sleep(0.1)
        long.cancel()
        return "canceled"


@workflow.defn
class Signals:
    def __init__(self) -> None:
        self._names: list[str] = []

    @workflow.signal
    def name(self, name: str) -> None:
        self._names.append(name)

    @workflow.query
    def names(self) -> list[str]:
        return self._names

    @workflow.run
    async def run(self, count: int, block_s: float) -> list[str]:
        if block_s:
            block_once(block_s)
        await workflow.wait_condition(lambda: len(self._names) >= count)
        return self._names


@workflow.defn
class UntilCanceled:
    @workflow.run
    async def run(self) -> None:
        try:
            await workflow.wait_condition(lambda: False)
        except asyncio.CancelledError:
            await workflow.execute_activity(echo, "clean up", start_to_close_timeout=SOON)
            raise


@workflow.defn
class BlockedActivityResults:
    @workflow.run
    async def run(self) -> list[str]:
        # Timers and activities finish while the second workflow task is blocked.
        activities = [workflow.start_activity(sleeps, 0.4, start_to_close_timeout=SOON) for _ in range(2)]
        timer = asyncio.create_task(asyncio.sleep(1))
        await workflow.execute_activity(echo, "first", start_to_close_timeout=SOON)
        block_once(1.5)
        await timer
        return [await result for result in activities]


@workflow.defn
class Fails:
    @workflow.run
    async def run(self, until_attempt: int) -> str:
        if workflow.info().attempt < until_attempt:
            raise ApplicationError("not yet", type="NotYet")
        return "at last"


@workflow.defn
class ContinuesAsNew:
    @workflow.run
    async def run(self, left: int) -> str:
        if left:
            workflow.continue_as_new(left - 1, memo={"left": left})
        return "done"


@workflow.defn
class CronJob:
    @workflow.run
    async def run(self) -> str:
        return "tick"


@workflow.defn
class Markers:
    @workflow.run
    async def run(self) -> str:
        workflow.patched("a-change")
        return await workflow.execute_local_activity(echo, "local", start_to_close_timeout=SOON)


@workflow.defn
class Upserts:
    @workflow.run
    async def run(self) -> None:
        workflow.upsert_search_attributes([KEYWORD.value_set("blue")])
        workflow.upsert_memo({"a": 1, "gone": None})
        await workflow.sleep(0.05)
        workflow.upsert_search_attributes([KEYWORD.value_unset()])


@workflow.defn
class Parent:
    @workflow.run
    async def run(self, kind: str) -> str:
        me = workflow.info().workflow_id
        try:
            if kind == "ok":
                return await workflow.execute_child_workflow(
                    Hello.run, "child", id=f"{me}-child", memo={"of": me}, static_summary="a child"
                )
            if kind == "fails":
                await workflow.execute_child_workflow(Fails.run, 9, id=f"{me}-child")
            if kind == "exists":
                await workflow.execute_child_workflow(Hello.run, "x", id=me)
            if kind == "canceled":
                handle = await workflow.start_child_workflow(UntilCanceled.run, id=f"{me}-child")
                handle.cancel()
                await handle
            if kind == "timed_out":
                await workflow.execute_child_workflow(
                    UntilCanceled.run, id=f"{me}-child", run_timeout=timedelta(seconds=1)
                )
            if kind == "abandoned":
                await workflow.start_child_workflow(
                    UntilCanceled.run, id=f"{me}-child", parent_close_policy=workflow.ParentClosePolicy.ABANDON
                )
                return "left it"
            if kind == "terminated_with_parent":
                await workflow.start_child_workflow(UntilCanceled.run, id=f"{me}-child")
                return "ended it"
            if kind == "canceled_with_parent":
                await workflow.start_child_workflow(
                    UntilCanceled.run, id=f"{me}-child", parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL
                )
                return "asked it to end"
        except ChildWorkflowError as error:
            return repr(error.cause)
        return "never"


@workflow.defn
class External:
    @workflow.run
    async def run(self, kind: str, other: str) -> str:
        handle = workflow.get_external_workflow_handle(other)
        try:
            if kind == "signal":
                await handle.signal("name", "from afar")
            else:
                await handle.cancel()
        except ApplicationError as error:
            return str(error)
        return "sent"


@workflow.defn
class Updated:
    def __init__(self) -> None:
        self._sum = 0
        self._done = False

    @workflow.update
    async def add(self, number: int) -> int:
        if number > 100:
            raise ApplicationError("too large")
        await workflow.sleep(0.05)
        self._sum += number
        return self._sum

    @add.validator
    def check_add(self, number: int) -> None:
        if number < 0:
            raise ValueError("negative")

    @workflow.signal
    def finish(self) -> None:
        self._done = True

    @workflow.run
    async def run(self) -> int:
        await workflow.wait_condition(lambda: self._done and workflow.all_handlers_finished())
        return self._sum


_failed: set[str] = set()


@workflow.defn
class TaskFails:
    @workflow.run
    async def run(self, times: int) -> str:
        for number in range(times):
            key = f"{workflow.info().workflow_id}/{number}"
            if key not in _failed:
                _failed.add(key)
                raise RuntimeError(f"task failure {number}")
        return "recovered"


@workflow.defn
class TaskTimesOut:
    @workflow.run
    async def run(self) -> str:
        block_once(1.6)
        return "in time now"


@workflow.defn
class LeavesThingsBehind:
    @workflow.run
    async def run(self) -> None:
        workflow.start_activity(echo, "x", task_queue=NO_ONE, start_to_close_timeout=SOON)
        forgotten = asyncio.create_task(asyncio.sleep(100))
        await workflow.sleep(0.1)
        assert not forgotten.done()


WORKFLOWS: Sequence[type] = (
    Hello, OneActivity, ManyActivities, RetriedActivity, ExhaustedActivity, FatalActivity, NonRetryableType,
    ActivityTimeouts, CanceledActivity, ScheduledAndCanceledAtOnce, Timer, CanceledTimer, Signals, UntilCanceled,
    BlockedActivityResults, Fails, ContinuesAsNew, CronJob, Markers, Upserts, Parent, External, Updated, TaskFails,
    TaskTimesOut, LeavesThingsBehind,
)  # fmt: skip
ACTIVITIES = (echo, fails_until, fails_for_good, sleeps, heartbeats_until_canceled, heartbeats_once)
