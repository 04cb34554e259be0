import asyncio
import io
from collections import defaultdict
from typing import Any

import pytest
from rich.console import Console

from fairlead.cli.bench.counting import CountingCaller, PartitionCounts
from fairlead.cli.bench.keys import KeyPlan
from fairlead.cli.bench.progress import with_progress
from fairlead.cli.bench.tally import Tally
from fairlead.cluster.calls import Unreachable
from fairlead.core.partitions import INITIAL_CONFIG, Partition, TaskList, TaskType
from fairlead.matching.messages import (
    ADD,
    POLL,
    AddAnswer,
    AddRequest,
    BacklogReport,
    NewTask,
    PollAnswer,
    PollRequest,
)
from tests.simulation.virtual_loop import run as run_in_virtual_time

TASK_LIST = TaskList("n", "t", TaskType.WORKFLOW)


def told(*, is_terminal: bool, runs_s: float) -> str:
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


def test_without_a_terminal_a_line_is_written_every_few_seconds() -> None:
    assert told(is_terminal=False, runs_s=12.0).splitlines() == [
        "burst: 5 s, 1,234 of 2,000 added, 1,200 received, 3 failures",
        "burst: 10 s, 1,234 of 2,000 added, 1,200 received, 3 failures",
    ]


def test_a_short_run_without_a_terminal_is_silent() -> None:
    assert told(is_terminal=False, runs_s=2.0) == ""


def test_on_a_terminal_there_is_a_bar() -> None:
    shown = told(is_terminal=True, runs_s=1.0)
    assert "1,234 of 2,000 added, 1,200 received, 3 failures" in shown
    assert "━" in shown


def test_what_fails_is_raised_and_the_telling_ends() -> None:
    async def main() -> None:
        async def work() -> None:
            await asyncio.sleep(1)
            raise ZeroDivisionError

        tally = Tally(KeyPlan(), start_s=0.0)
        await with_progress(work(), tally, subject="x", tasks=None, console=Console(file=io.StringIO()))

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(main())


class Answering:
    """A caller that answers every request alike, or never."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def call(self, host: str, method: Any, request: Any, *, timeout_s: float) -> Any:
        if self.answer is None:
            raise Unreachable("nobody")
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
    adds = [AddRequest(Partition(TASK_LIST, number), task) for number in (0, 2, 2)]
    started = await counted(AddAnswer(is_started=True, config=INITIAL_CONFIG), *adds)
    assert {number: (one.adds, one.adds_started) for number, one in started.items()} == {0: (1, 1), 2: (2, 2)}
    stored = await counted(AddAnswer(is_started=False, config=INITIAL_CONFIG), *adds)
    assert {number: (one.adds, one.adds_started) for number, one in stored.items()} == {0: (1, 0), 2: (2, 0)}
    report = BacklogReport(1, 0, 0.0, 0.0, 0.0)
    poll = PollRequest(Partition(TASK_LIST, 1), "me", "1", 1.0)
    empty = await counted(PollAnswer(None, INITIAL_CONFIG, report), poll)
    assert (empty[1].polls, empty[1].polls_with_task) == (1, 0)
    full = await counted(PollAnswer(b"x", INITIAL_CONFIG, report), poll, poll)
    assert (full[1].polls, full[1].polls_with_task) == (2, 2)


async def test_a_request_that_fails_was_made_all_the_same() -> None:
    counts = await counted(None, AddRequest(Partition(TASK_LIST, 1), NewTask(3, "", 1.0, b"")))
    assert (counts[1].adds, counts[1].adds_started) == (1, 0)
