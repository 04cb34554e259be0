"""Forwards tasks that find no poll at their partition to the parent, and reports the backlog to the root."""

import asyncio
import math
from contextlib import suppress

from fairlead.core.concurrency import Full
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.matching.messages import ADD, REPORT, AddRequest, AddResponse, NewTask, ReportRequest
from fairlead.matching.partition.backlog_reports import backlog_report
from fairlead.matching.partition.dependencies import CALL_S_MAX, PAUSE_S, Dependencies
from fairlead.matching.partition.matched_task import MatchedTask, is_done
from fairlead.settings.dynamic import matching

# Seconds that a task of the backlog waits for a poll at the parent.
FORWARDED_TASK_WAIT_S = 2.0
# Seconds after the last poll here before tasks of the backlog are forwarded. Until then, the partition's own polls may
# take them.
POLLS_ARE_COMING_S = 0.2
CHECK_INTERVAL_S = 0.1
REPORT_INTERVAL_S = 1.0


class BackloggedTasks:
    """Finds polls at the parent for the tasks of one partition.

    The tasks stay stored at this partition; the parent never stores them.
    """

    __slots__ = ("_dependencies", "_forwarding")

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._forwarding: asyncio.Task[None] | None = None

    async def offer_up(self, task: NewTask) -> bool:
        """Offer a new task to the parent's polls, unless older tasks wait here."""
        dependencies = self._dependencies
        if dependencies.queue.tasks_loaded or dependencies.queue.backlog.priorities.tasks:
            return False
        if not dependencies.forwarder.take_task_token():
            dependencies.counts.forwarded_tasks_throttled += 1
            return False
        was_sent = False
        try:
            wait_s = dependencies.get(matching.LOCAL_TASK_WAIT_TIME)
            if wait_s and is_done(await dependencies.queue.dispatcher.offer(task, wait_s=wait_s)):
                return True
            matched = dependencies.queue.dispatcher.admit(task)
            if matched is None or dependencies.is_closing:
                return False
            was_sent = True
            return await self._forward(matched, task, wait_s=0.0)
        finally:
            dependencies.forwarder.end_task(was_sent=was_sent)

    async def pass_on(self, parent: Partition, request: AddRequest) -> AddResponse | None:
        """Offer a child's task to this partition's parent; None if the forwarding limits don't allow it now."""
        dependencies = self._dependencies
        if not dependencies.forwarder.take_task_token():
            return None
        try:
            wait_s = min(request.wait_s, FORWARDED_TASK_WAIT_S)
            further = AddRequest(parent, request.task, forwarded_from=dependencies.number, wait_s=wait_s)
            return await dependencies.peers.ask(parent, ADD, further, timeout_s=wait_s + CALL_S_MAX)
        finally:
            dependencies.forwarder.end_task()

    def begin(self) -> None:
        """Start to forward and report the backlog; called when tasks are loaded and no poll waits."""
        if self._dependencies.parent is not None and self._forwarding is None and not self._dependencies.is_closing:
            self._forwarding = self._dependencies.background.begin(self._forward_while_backlogged())

    def stop(self) -> None:
        """Stop forwarding."""
        if self._forwarding is not None:
            self._forwarding.cancel()

    async def _forward_while_backlogged(self) -> None:
        dependencies, loop = self._dependencies, asyncio.get_running_loop()
        reported_s = -math.inf
        try:
            while dependencies.queue.backlog.priorities.tasks and not dependencies.is_closing:
                if not dependencies.queue.polls_waiting:
                    if loop.time() - reported_s >= REPORT_INTERVAL_S:
                        reported_s = loop.time()
                        dependencies.background.begin(self._report())
                    if loop.time() - dependencies.polled_s >= POLLS_ARE_COMING_S:
                        self._forward_held()
                await asyncio.sleep(REPORT_INTERVAL_S / 2 if dependencies.forwarder.tasks_out else CHECK_INTERVAL_S)
        finally:
            self._forwarding = None

    async def _report(self) -> None:
        root = self._dependencies.sibling(0)
        with suppress(FairleadError):
            await self._dependencies.peers.ask(
                root, REPORT, ReportRequest(root, backlog_report(self._dependencies)), timeout_s=CALL_S_MAX
            )

    def _forward_held(self) -> None:
        """Offer tasks of the backlog to the parent, as many as the forwarding limits allow."""
        dependencies = self._dependencies
        while not dependencies.is_closing and dependencies.forwarder.take_task_token():
            matched = dependencies.queue.dispatcher.take_held()
            if matched is None:
                dependencies.forwarder.end_task(was_sent=False)
                return
            dependencies.background.begin(self._forward_one(matched))

    async def _forward_one(self, matched: MatchedTask) -> None:
        held = matched.held
        assert held is not None  # noqa: S101 - it was taken from the backlog
        task = NewTask(held.position.priority, held.fairness_key, held.weight, held.payload, held.created_s)
        is_started = False
        try:
            is_started = await self._forward(matched, task, wait_s=FORWARDED_TASK_WAIT_S)
        finally:
            self._dependencies.forwarder.end_task()
        if is_started:
            self._forward_held()

    async def _forward(self, matched: MatchedTask, task: NewTask, *, wait_s: float) -> bool:
        """Offer a task to the parent; finish it if a poll there started it, else give it back to the dispatcher."""
        dependencies = self._dependencies
        parent = dependencies.parent
        assert parent is not None  # noqa: S101 - only called where there is one
        request = AddRequest(parent, task, forwarded_from=dependencies.number, wait_s=wait_s)
        dependencies.counts.forwarded_tasks += 1
        dependencies.forwarder.note_task()
        dependencies.queue.note_forwarded(matched)
        is_started = False
        full: Full | None = None
        try:
            answer = await dependencies.peers.ask(parent, ADD, request, timeout_s=wait_s + CALL_S_MAX)
            is_started, full = answer.is_started, answer.full
        except FairleadError:
            dependencies.forwarder.pause(PAUSE_S)
        finally:
            if is_started:
                dependencies.counts.forwarded_tasks_matched += 1
                dependencies.queue.finish(matched, b"")
            else:
                dependencies.counts.forwarded_tasks_failed += 1
                if full is None:
                    dependencies.queue.dispatcher.give_back(matched)
                else:
                    dependencies.queue.dispatcher.park(matched, full)
        return is_started
