"""Tasks that find no poll at their partition: they are offered to the parent, and the root hears of them."""

import asyncio
import math
from contextlib import suppress

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.matching.messages import ADD, REPORT, AddAnswer, AddRequest, BacklogReport, NewTask, ReportRequest
from fairlead.matching.partition import Given
from fairlead.matching.surroundings import CALL_S_MAX, PAUSE_S, Surroundings
from fairlead.settings import matching

# A task of the backlog that is offered to the parent waits there for a poll so long at most.
FORWARDED_TASK_WAIT_S = 2.0
# While polls come here, tasks of the backlog are for them, and not for the parent's.
POLLS_ARE_COMING_S = 0.2
LOOK_INTERVAL_S = 0.1
REPORT_INTERVAL_S = 1.0


class UnservedTasks:
    """Finds polls elsewhere for the tasks of one partition. The receiver never keeps them: this partition does."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._looking: asyncio.Task[None] | None = None

    async def offer_up(self, task: NewTask) -> bool:
        """Offer a task that has just come to the polls of the parent; not past those that wait here already."""
        around = self._around
        if around.local.tasks_loaded or around.local.backlog.tasks:
            return False
        if not around.forwarder.take_task_token():
            around.counts.forwarded_tasks_throttled += 1
            return False
        was_sent = False
        try:
            wait_s = around.get(matching.LOCAL_TASK_WAIT_TIME)
            if wait_s and await around.local.offer(task, wait_s=wait_s):
                return True
            given = around.local.admit(task)
            if given is None or around.is_closing:
                return False
            was_sent = True
            return await self._forward(given, task, wait_s=0.0)
        finally:
            around.forwarder.end_task(was_sent=was_sent)

    async def pass_on(self, parent: Partition, request: AddRequest) -> AddAnswer | None:
        """Offer what a child has offered here to the next partition up; None if the limits do not allow it now."""
        around = self._around
        if not around.forwarder.take_task_token():
            return None
        try:
            wait_s = min(request.wait_s, FORWARDED_TASK_WAIT_S)
            further = AddRequest(parent, request.task, forwarded_from=around.number, wait_s=wait_s)
            return await around.peers.ask(parent, ADD, further, timeout_s=wait_s + CALL_S_MAX)
        finally:
            around.forwarder.end_task()

    def begin(self) -> None:
        """Tasks are held and no poll waits: see to them until there are none any more."""
        if self._around.parent is not None and self._looking is None and not self._around.is_closing:
            self._looking = self._around.background.begin(self._look_after())

    def stop(self) -> None:
        """See to them no longer."""
        if self._looking is not None:
            self._looking.cancel()

    async def _look_after(self) -> None:
        around, loop = self._around, asyncio.get_running_loop()
        reported_s = -math.inf
        try:
            while around.local.backlog.tasks and not around.is_closing:
                if not around.local.polls_waiting:
                    if loop.time() - reported_s >= REPORT_INTERVAL_S:
                        reported_s = loop.time()
                        around.background.begin(self._report())
                    if loop.time() - around.polled_s >= POLLS_ARE_COMING_S:
                        self._forward_held()
                await asyncio.sleep(REPORT_INTERVAL_S / 2 if around.forwarder.tasks_out else LOOK_INTERVAL_S)
        finally:
            self._looking = None

    async def _report(self) -> None:
        root = self._around.sibling(0)
        with suppress(FairleadError):
            await self._around.peers.ask(
                root, REPORT, ReportRequest(root, backlog_report(self._around)), timeout_s=CALL_S_MAX
            )

    def _forward_held(self) -> None:
        """Offer tasks of the backlog to the parent, as many as the limits allow."""
        around = self._around
        while not around.is_closing and around.forwarder.take_task_token():
            given = around.local.take_held()
            if given is None:
                around.forwarder.end_task(was_sent=False)
                return
            around.background.begin(self._forward_one(given))

    async def _forward_one(self, given: Given) -> None:
        held = given.held
        assert held is not None  # noqa: S101 - it was taken from the backlog
        task = NewTask(held.place.priority, held.fairness_key, held.weight, held.payload, held.created_s)
        is_started = False
        try:
            is_started = await self._forward(given, task, wait_s=FORWARDED_TASK_WAIT_S)
        finally:
            self._around.forwarder.end_task()
        if is_started:
            self._forward_held()

    async def _forward(self, given: Given, task: NewTask, *, wait_s: float) -> bool:
        """Offer a task to the parent; it is finished here where that has started it, and given back where not."""
        around = self._around
        parent = around.parent
        assert parent is not None  # noqa: S101 - only called where there is one
        request = AddRequest(parent, task, forwarded_from=around.number, wait_s=wait_s)
        around.counts.forwarded_tasks += 1
        around.local.note_forwarded(given)
        is_started = False
        try:
            answer = await around.peers.ask(parent, ADD, request, timeout_s=wait_s + CALL_S_MAX)
            is_started = answer.is_started
        except FairleadError:
            around.forwarder.pause(PAUSE_S)
        finally:
            if is_started:
                around.counts.forwarded_tasks_matched += 1
                around.local.finish(given, b"")
            else:
                around.counts.forwarded_tasks_failed += 1
                around.local.give_back(given)
        return is_started


def backlog_report(around: Surroundings, adds_per_s: float = 0.0) -> BacklogReport:
    """What a partition says of its backlog at this moment."""
    return BacklogReport(
        partition=around.number,
        tasks=around.local.backlog.tasks,
        age_s=max(0.0, around.clock() - around.local.oldest_s()),
        adds_per_s=adds_per_s,
        wait_s=around.local.wait_s,
    )
