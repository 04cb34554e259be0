"""Polls that find no task at their partition: they look at the parent, and from the root where a backlog is.

One timer looks after all polls of a partition: a poll that is answered soon, as most are, costs nothing here.
"""

import asyncio
from contextlib import suppress
from itertools import islice

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.matching.forwarder import ChildBacklogs, Forwarder
from fairlead.matching.messages import POLL, RECALL, BacklogReport, PollAnswer, PollRequest, RecallRequest
from fairlead.matching.partition import Redirect, WaitingPoll
from fairlead.matching.surroundings import CALL_S_MAX, PAUSE_S, Surroundings
from fairlead.settings import matching

# An answer has to come back over each hop before the caller's own time is over.
HOP_S = 0.05
# Beyond that it is waited for so much longer; the caller itself waits longer still.
LATE_S_MAX = 0.5
# A poll that was sent down waits so long while the backlog is being loaded.
SENT_DOWN_WAIT_S = 0.2
REDIRECTED_AT_ONCE_MAX = 100
CALLED_BACK_EARLY_MAX = 1000


class _Up(Redirect):
    """To the parent."""

    __slots__ = ("_forwarder",)

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def release(self) -> None:
        self._forwarder.end_poll()


class _Down(Redirect):
    """To a partition with a backlog."""

    __slots__ = ("_children", "number")

    def __init__(self, children: ChildBacklogs, number: int) -> None:
        self._children = children
        self.number = number

    def release(self) -> None:
        self._children.end(self.number)


class IdlePolls:
    """Has the polls of one partition look elsewhere when they have waited in vain, within the forwarder's limits."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._children = ChildBacklogs(clock=around.clock)
        self._timer: asyncio.TimerHandle | None = None
        # Those that children have sent here and that wait, and those that wait at the parent, by poll id.
        self._from_children: dict[str, WaitingPoll] = {}
        self._at_parent: dict[str, None] = {}
        # Those that were called back before they had come.
        self._called_back_early: dict[str, None] = {}

    def begin(self, poll: WaitingPoll, *, is_from_child: bool) -> bool:
        """A poll begins to wait: it is looked after when its time here is over. False if it is needed at home."""
        if is_from_child:
            if self._called_back_early.pop(poll.poll_id, self) is None:
                return False
            self._from_children[poll.poll_id] = poll
        if self._has_elsewhere:
            self._look_after()
        elif self._around.parent is not None:
            self._around.counts.forwarded_polls_throttled += 1
            self._look_after()
        return True

    def end(self, poll: WaitingPoll) -> None:
        """A poll of a child waits no longer."""
        if self._from_children.get(poll.poll_id) is poll:
            del self._from_children[poll.poll_id]

    def note_report(self, report: BacklogReport) -> None:
        """A partition of this task list has tasks and no polls."""
        if report.partition != self._around.number:
            self._children.note(report)
            self._redirect()

    def stop(self) -> None:
        """Redirect nobody any more, and have those that wait at the parent come back."""
        if self._timer is not None:
            self._timer.cancel()
        for poll_id in list(self._at_parent):
            self._call_back(poll_id)

    def call_back_one(self) -> None:
        """A task is here and no poll: if one of ours waits at the parent, it is needed here."""
        if self._at_parent:
            self._call_back(next(iter(self._at_parent)))

    def recall(self, poll_id: str) -> bool:
        """Let a poll that a child has sent go home, if it still waits."""
        poll = self._from_children.get(poll_id)
        if poll is not None:
            return self._around.local.withdraw(poll)
        if poll_id in self._at_parent:
            # It has gone further up.
            self._call_back(poll_id)
            return True
        # It may yet come: messages overtake each other.
        self._called_back_early[poll_id] = None
        if len(self._called_back_early) > CALLED_BACK_EARLY_MAX:
            del self._called_back_early[next(iter(self._called_back_early))]
        return False

    async def look(self, target: Redirect, request: PollRequest, deadline_s: float) -> PollAnswer | None:
        """What a poll finds where it was redirected to; None: nothing, and it waits here again."""
        try:
            if isinstance(target, _Down):
                return await self._look_down(target.number, request, deadline_s)
            return await self._look_up(request, deadline_s)
        finally:
            target.release()
            # Its place is free for the next.
            self._look_after(0.0)

    @property
    def _has_elsewhere(self) -> bool:
        if self._around.parent is not None:
            return self._around.forwarder.has_poll_token
        return self._may_send_down and self._children.has_any

    @property
    def _may_send_down(self) -> bool:
        return self._children.polls_out < self._around.get(matching.FORWARDER_MAX_OUTSTANDING_POLLS_DOWN)

    def _look_after(self, after_s: float | None = None) -> None:
        """Look after the polls that wait here in a while: when their time here is over, and the parent may be asked."""
        if self._timer is None and not self._around.is_closing:
            wait_s = self._around.get(matching.LOCAL_POLL_WAIT_TIME) if after_s is None else after_s
            pause_s = self._around.forwarder.pause_left_s
            if pause_s or self._has_elsewhere:
                self._arm(max(wait_s, pause_s))

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._redirect)

    def _redirect(self) -> None:
        """Have the polls that have waited here in vain look where they may find something."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        around = self._around
        if around.is_closing or not self._has_elsewhere:
            if around.local.polls_waiting:
                self._look_after()
            return
        now_s = asyncio.get_running_loop().time()
        wait_s = around.get(matching.LOCAL_POLL_WAIT_TIME)
        # A copy, since those that are redirected wait no longer.
        redirectable = (poll for poll in around.local.waiting_polls() if poll.may_redirect)
        for poll in list(islice(redirectable, REDIRECTED_AT_ONCE_MAX)):
            if poll.since_s + wait_s > now_s:
                self._arm(poll.since_s + wait_s - now_s)
                return
            target = self._take_target()
            if target is None:
                return
            if not around.local.withdraw(poll, target):
                target.release()

    def _take_target(self) -> Redirect | None:
        if self._around.parent is not None:
            return _Up(self._around.forwarder) if self._around.forwarder.take_poll_token() else None
        if not self._may_send_down:
            return None
        number = self._children.take()
        return None if number is None else _Down(self._children, number)

    async def _look_up(self, request: PollRequest, deadline_s: float) -> PollAnswer | None:
        around = self._around
        parent = around.parent
        assert parent is not None  # noqa: S101 - only called where there is one
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 2 * HOP_S or around.is_closing:
            return None
        forwarded = PollRequest(
            parent,
            request.identity,
            request.poll_id,
            left_s - HOP_S,
            rate_per_s=request.rate_per_s,
            forwarded_from=around.number,
            worker=request.worker,
        )
        around.counts.forwarded_polls += 1
        self._at_parent[request.poll_id] = None
        was_called_back = False
        try:
            # An answer that is late may have a task in it: better it comes than it is lost.
            answer = await around.peers.ask(parent, POLL, forwarded, timeout_s=left_s + LATE_S_MAX)
        except FairleadError:
            around.counts.forwarded_polls_failed += 1
            around.forwarder.pause(PAUSE_S)
            return None
        finally:
            was_called_back = self._at_parent.pop(request.poll_id, self) is self
        if answer.task is None:
            is_early = deadline_s - asyncio.get_running_loop().time() > 2 * HOP_S
            if is_early and not was_called_back:
                # The parent is being unloaded.
                around.forwarder.pause(PAUSE_S)
            return None
        around.counts.forwarded_polls_matched += 1
        return answer

    async def _look_down(self, number: int, request: PollRequest, deadline_s: float) -> PollAnswer | None:
        around = self._around
        child = around.sibling(number)
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
        around.counts.polls_sent_down += 1
        try:
            answer = await around.peers.ask(
                child, POLL, sent, timeout_s=min(SENT_DOWN_WAIT_S + CALL_S_MAX, left_s + LATE_S_MAX)
            )
        except FairleadError:
            self._children.forget(number)
            return None
        if answer.task is None:
            # Others have taken what there was; it reports again if more has come.
            self._children.forget(number)
            return None
        around.counts.polls_sent_down_matched += 1
        self._children.note(answer.report)
        return answer

    def _call_back(self, poll_id: str) -> None:
        """Have a poll come back from the parent. Not by cancelling the call: it may bring a task that is started."""
        around = self._around
        self._at_parent.pop(poll_id, None)
        if around.parent is not None and not around.background.is_ended:
            around.background.begin(self._send_recall(around.parent, RecallRequest(around.parent, poll_id)))

    async def _send_recall(self, parent: Partition, request: RecallRequest) -> None:
        with suppress(FairleadError):
            await self._around.peers.ask(parent, RECALL, request, timeout_s=CALL_S_MAX)
