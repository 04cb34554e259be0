"""Redirects polls that find no task at their partition: to the parent, or from the root down to a backlog.

One timer serves all polls of a partition, so a poll that soon gets a task costs nothing here, and most do.
"""

import asyncio
from contextlib import suppress
from itertools import islice

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.matching.forwarding.forwarder import ChildBacklogs, Forwarder
from fairlead.matching.messages import POLL, RECALL, BacklogReport, PollRequest, PollResponse, RecallRequest
from fairlead.matching.partition.dependencies import CALL_S_MAX, PAUSE_S, Dependencies
from fairlead.matching.partition.waiting_poll import Redirect, WaitingPoll
from fairlead.settings.dynamic import matching

# Seconds by which each hop shortens a forwarded poll, so that its response arrives before the caller's deadline.
HOP_S = 0.05
# Seconds that each hop waits for a late response; the original caller waits longer than this.
LATE_S_MAX = 0.5
# Seconds that a poll which the root sent down waits while the backlog is being loaded.
SENT_DOWN_WAIT_S = 0.2
REDIRECTED_AT_ONCE_MAX = 100
CALLED_BACK_EARLY_MAX = 1000


class _Up(Redirect):
    """Redirects a poll to the parent."""

    __slots__ = ("_forwarder",)

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def release(self) -> None:
        self._forwarder.end_poll()


class _Down(Redirect):
    """Redirects a poll of the root to a partition with a backlog."""

    __slots__ = ("_children", "number")

    def __init__(self, children: ChildBacklogs, number: int) -> None:
        self._children = children
        self.number = number

    def release(self) -> None:
        self._children.end(self.number)


class IdlePolls:
    """Redirects polls of one partition that have waited without getting a task, within the forwarder's limits."""

    __slots__ = ("_at_parent", "_called_back_early", "_children", "_dependencies", "_from_children", "_timer")

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._children = ChildBacklogs(clock=dependencies.clock)
        self._timer: asyncio.TimerHandle | None = None
        # By poll id: polls that children forwarded to this partition and that wait here, and own polls that wait at the
        # parent.
        self._from_children: dict[str, WaitingPoll] = {}
        self._at_parent: dict[str, None] = {}
        # Ids of polls whose recall arrived before the polls themselves.
        self._called_back_early: dict[str, None] = {}

    def begin(self, poll: WaitingPoll, *, is_from_child: bool) -> bool:
        """Prepare to redirect a poll later. False if the child that forwarded it has already recalled it."""
        if is_from_child:
            if self._called_back_early.pop(poll.poll_id, self) is None:
                return False
            self._from_children[poll.poll_id] = poll
        if self._has_elsewhere:
            self._arm_timer()
        elif self._dependencies.parent is not None:
            self._dependencies.counts.forwarded_polls_throttled += 1
            self._arm_timer()
        return True

    def end(self, poll: WaitingPoll) -> None:
        """Forget a child's poll that no longer waits."""
        if self._from_children.get(poll.poll_id) is poll:
            del self._from_children[poll.poll_id]

    def note_report(self, report: BacklogReport) -> None:
        """Record the report of a partition that has tasks and no polls, and send polls to it."""
        if report.partition != self._dependencies.number:
            self._children.note(report)
            self._redirect()

    def stop(self) -> None:
        """Stop redirecting, and recall the polls that wait at the parent."""
        if self._timer is not None:
            self._timer.cancel()
        for poll_id in list(self._at_parent):
            self._call_back(poll_id)

    def call_back_one(self) -> None:
        """Recall one poll from the parent, if any is there: a task was stored here and no poll waits."""
        if self._at_parent:
            self._call_back(next(iter(self._at_parent)))

    def recall(self, poll_id: str) -> bool:
        """Send a child's poll back if it still waits; return whether it did."""
        poll = self._from_children.get(poll_id)
        if poll is not None:
            return self._dependencies.queue.dispatcher.withdraw(poll)
        if poll_id in self._at_parent:
            # The poll was forwarded to this partition's parent.
            self._call_back(poll_id)
            return True
        # The recall may overtake the poll, which then arrives later.
        self._called_back_early[poll_id] = None
        if len(self._called_back_early) > CALLED_BACK_EARLY_MAX:
            del self._called_back_early[next(iter(self._called_back_early))]
        return False

    async def poll_target(self, target: Redirect, request: PollRequest, deadline_s: float) -> PollResponse | None:
        """Poll the partition to which a poll was redirected; None if it has no task: the poll then waits here again."""
        try:
            if isinstance(target, _Down):
                return await self._look_down(target.number, request, deadline_s)
            return await self._look_up(request, deadline_s)
        finally:
            target.release()
            # The released token can serve the next poll.
            self._arm_timer(0.0)

    @property
    def _has_elsewhere(self) -> bool:
        if self._dependencies.parent is not None:
            return self._dependencies.forwarder.has_poll_token
        return self._may_send_down and self._children.has_any

    @property
    def _may_send_down(self) -> bool:
        return self._children.polls_out < self._dependencies.get(matching.FORWARDER_MAX_OUTSTANDING_POLLS_DOWN)

    def _arm_timer(self, after_s: float | None = None) -> None:
        """Set the timer, unless it is set, for the time at which waiting polls may be redirected."""
        if self._timer is None and not self._dependencies.is_closing:
            wait_s = self._dependencies.get(matching.LOCAL_POLL_WAIT_TIME) if after_s is None else after_s
            pause_s = self._dependencies.forwarder.pause_left_s
            if pause_s or self._has_elsewhere:
                self._arm(max(wait_s, pause_s))

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._redirect)

    def _redirect(self) -> None:
        """Redirect the polls that have waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        dependencies = self._dependencies
        if dependencies.is_closing or not self._has_elsewhere:
            if dependencies.queue.polls_waiting:
                self._arm_timer()
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = dependencies.get(matching.LOCAL_POLL_WAIT_TIME)
        # A copy: redirected polls leave the collection during the loop.
        redirectable = (poll for poll in dependencies.queue.dispatcher.waiting_polls() if poll.may_redirect)
        for poll in list(islice(redirectable, REDIRECTED_AT_ONCE_MAX)):
            if poll.since_s + wait_s > now_s:
                self._arm(poll.since_s + wait_s - now_s)
                return
            target = self._take_target()
            if target is None:
                return
            if not dependencies.queue.dispatcher.withdraw(poll, target):
                target.release()

    def _take_target(self) -> Redirect | None:
        if self._dependencies.parent is not None:
            return _Up(self._dependencies.forwarder) if self._dependencies.forwarder.take_poll_token() else None
        if not self._may_send_down:
            return None
        number = self._children.take()
        return None if number is None else _Down(self._children, number)

    async def _look_up(self, request: PollRequest, deadline_s: float) -> PollResponse | None:
        dependencies = self._dependencies
        parent = dependencies.parent
        assert parent is not None  # noqa: S101 - only called where there is one
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 2 * HOP_S or dependencies.is_closing:
            return None
        forwarded = PollRequest(
            parent,
            request.identity,
            request.poll_id,
            left_s - HOP_S,
            rate_per_s=request.rate_per_s,
            forwarded_from=dependencies.number,
            worker=request.worker,
        )
        dependencies.counts.forwarded_polls += 1
        dependencies.forwarder.note_poll()
        self._at_parent[request.poll_id] = None
        was_called_back = False
        try:
            # A late response may carry a started task, so wait for it longer than the poll lasts.
            answer = await dependencies.peers.ask(parent, POLL, forwarded, timeout_s=left_s + LATE_S_MAX)
        except FairleadError:
            dependencies.counts.forwarded_polls_failed += 1
            dependencies.forwarder.pause(PAUSE_S)
            return None
        finally:
            was_called_back = self._at_parent.pop(request.poll_id, self) is self
        if answer.task is None:
            is_early = deadline_s - asyncio.get_running_loop().time() > 2 * HOP_S
            if is_early and not was_called_back:
                # The parent is being unloaded.
                dependencies.forwarder.pause(PAUSE_S)
            return None
        dependencies.counts.forwarded_polls_matched += 1
        return answer

    async def _look_down(self, number: int, request: PollRequest, deadline_s: float) -> PollResponse | None:
        dependencies = self._dependencies
        child = dependencies.sibling(number)
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 2 * HOP_S:
            return None
        sent = PollRequest(
            child,
            request.identity,
            request.poll_id,
            min(SENT_DOWN_WAIT_S, left_s - HOP_S),
            rate_per_s=request.rate_per_s,
            is_sent_down=True,
            worker=request.worker,
        )
        dependencies.counts.polls_sent_down += 1
        try:
            answer = await dependencies.peers.ask(
                child, POLL, sent, timeout_s=min(SENT_DOWN_WAIT_S + CALL_S_MAX, left_s + LATE_S_MAX)
            )
        except FairleadError:
            self._children.forget(number)
            return None
        if answer.task is None:
            # Other polls took the tasks. The partition will report again when it has more tasks.
            self._children.forget(number)
            return None
        dependencies.counts.polls_sent_down_matched += 1
        self._children.note(answer.report)
        return answer

    def _call_back(self, poll_id: str) -> None:
        """Recall a poll from the parent.

        Cancelling the call instead could lose a started task in its response.
        """
        dependencies = self._dependencies
        self._at_parent.pop(poll_id, None)
        if dependencies.parent is not None and not dependencies.background.is_ended:
            dependencies.background.begin(
                self._send_recall(dependencies.parent, RecallRequest(dependencies.parent, poll_id))
            )

    async def _send_recall(self, parent: Partition, request: RecallRequest) -> None:
        with suppress(FairleadError):
            await self._dependencies.peers.ask(parent, RECALL, request, timeout_s=CALL_S_MAX)
