import asyncio
import io
from collections import defaultdict
from typing import Any

import pytest
from rich.console import Console

from fairlead.bench.keys import KeyPlan
from fairlead.bench.partition_counts import CountingCaller, PartitionCounts
from fairlead.bench.progress import with_progress
from fairlead.bench.tally import Tally
from fairlead.core.partitions import INITIAL_CONFIG, Partition, TaskQueueId, TaskType
from fairlead.matching.messages import (
    ADD,
    POLL,
    AddRequest,
    AddResponse,
    BacklogReport,
    NewTask,
    PollRequest,
    PollResponse,
)
from fairlead.rpc.hosts.caller import Unreachable
from fairlead.simulations.virtual_loop import run as run_in_virtual_time

TASK_QUEUE = TaskQueueId("n", "t", TaskType.WORKFLOW)


def shown_progress(*, is_terminal: bool, runs_s: float) -> str:
    text = io.StringIO()

    async def main() -> int:
        tally = Tally(KeyPlan(), start_s=0.0)
        tally.acknowledged, tally.received = 1234, 1200
        tally.add_failures["Refused"] = 3

        async def work() -> int:
            await asyncio.sleep(runs_s)
            return 42

        console = Console(file=text, force_terminal=is_terminal, width=100)
        return await with_progress(work(), tally, subject="burst", tasks=2000, console=console)

    assert run_in_virtual_time(main())[0] == 42
    return text.getvalue()


def test_a_line_is_written_every_few_seconds_without_a_terminal() -> None:
    assert shown_progress(is_terminal=False, runs_s=12.0).splitlines() == [
        "burst: 5 s, 1,234 of 2,000 added, 1,200 received, 3 failures",
        "burst: 10 s, 1,234 of 2,000 added, 1,200 received, 3 failures",
    ]


def test_a_short_run_without_a_terminal_writes_nothing() -> None:
    assert shown_progress(is_terminal=False, runs_s=2.0) == ""


def test_a_progress_bar_is_shown_on_a_terminal() -> None:
    shown = shown_progress(is_terminal=True, runs_s=1.0)
    assert "1,234 of 2,000 added, 1,200 received, 3 failures" in shown
    assert "━" in shown


def test_an_exception_of_the_work_is_raised() -> None:
    async def main() -> None:
        async def work() -> None:
            await asyncio.sleep(1)
            raise ZeroDivisionError

        tally = Tally(KeyPlan(), start_s=0.0)
        await with_progress(work(), tally, subject="x", tasks=None, console=Console(file=io.StringIO()))

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(main())


class Answering:
    """A caller that returns the same response to every request, or raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def call(self, host: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if self.answer is None:
            raise Unreachable("no host")
        return self.answer


async def counted(answer: Any, *requests: AddRequest | PollRequest) -> dict[int, PartitionCounts]:
    counts: defaultdict[int, PartitionCounts] = defaultdict(PartitionCounts)
    caller = CountingCaller(Answering(answer), counts)
    for request in requests:
        try:
            if isinstance(request, AddRequest):
                await caller.call("host", ADD, request, timeout_s=1)
            else:
                await caller.call("host", POLL, request, timeout_s=1)
        except Unreachable:
            assert answer is None
    return counts


async def test_requests_are_counted_by_partition() -> None:
    task = NewTask(3, "", 1.0, b"")
    adds = [AddRequest(Partition(TASK_QUEUE, number), task) for number in (0, 2, 2)]
    started = await counted(AddResponse(is_started=True, config=INITIAL_CONFIG), *adds)
    assert {number: (one.adds, one.adds_started) for number, one in started.items()} == {0: (1, 1), 2: (2, 2)}
    stored = await counted(AddResponse(is_started=False, config=INITIAL_CONFIG), *adds)
    assert {number: (one.adds, one.adds_started) for number, one in stored.items()} == {0: (1, 0), 2: (2, 0)}
    report = BacklogReport(1, 0, 0.0, 0.0, 0.0)
    poll = PollRequest(Partition(TASK_QUEUE, 1), "me", "1", 1.0)
    empty = await counted(PollResponse(None, INITIAL_CONFIG, report), poll)
    assert (empty[1].polls, empty[1].polls_with_task) == (1, 0)
    full = await counted(PollResponse(b"x", INITIAL_CONFIG, report), poll, poll)
    assert (full[1].polls, full[1].polls_with_task) == (2, 2)


async def test_a_failed_request_is_counted_too() -> None:
    counts = await counted(None, AddRequest(Partition(TASK_QUEUE, 1), NewTask(3, "", 1.0, b"")))
    assert (counts[1].adds, counts[1].adds_started) == (1, 0)
