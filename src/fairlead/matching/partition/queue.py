"""The physical queue of one partition: dispatches tasks to polls, and stores the tasks that find none.

`manager.PartitionManager` shares tasks and polls with the other partitions of the task queue.
"""

import asyncio
import math
from collections.abc import Callable, Sequence

from fairlead.aio.deadlines import Deadlines, Wakeable, new_wakes
from fairlead.core.fairness import WeightOverrides
from fairlead.journal import PartitionJournal
from fairlead.matching.clock import Clock
from fairlead.matching.messages import TaskOwner
from fairlead.matching.partition.backlog import PartitionBacklog
from fairlead.matching.partition.backlog_limits import BacklogLimits
from fairlead.matching.partition.dispatch_counts import DispatchCounts
from fairlead.matching.partition.dispatcher import BACKOFF_S, Dispatcher
from fairlead.matching.partition.matched_task import MatchedTask, full_of
from fairlead.matching.partition.matcher import HeldTask, Position
from fairlead.matching.partition.poller_history import PollerHistory
from fairlead.matching.partition.priority_rates import PriorityRates
from fairlead.matching.partition.task_weights import TaskWeights
from fairlead.matching.task_starter import NotStarted, Starter
from fairlead.storage.tasks import QueueId, TaskStore
from fairlead.telemetry import PartitionMetrics

# Weight of the latest task in the moving average of the waiting time.
_WAIT_SMOOTHING = 0.05
_NO_OVERRIDES = WeightOverrides()


class PhysicalQueue:
    """Starts matched tasks and records the outcome. `dispatcher` matches tasks and polls, `backlog` stores tasks.

    `wakes` holds the deadlines of polls and the times of the backlog's periodic work.
    """

    __slots__ = (
        "_backing_off",
        "_clock",
        "_counts",
        "_journal",
        "backlog",
        "dispatched_keys",
        "dispatcher",
        "dispatches",
        "pollers",
        "starter",
        "wait_s",
        "weights",
    )

    def __init__(
        self,
        store: TaskStore,
        queue: QueueId,
        *,
        clock: Clock,
        start: Starter,
        counts: PartitionMetrics,
        overrides: WeightOverrides | None = None,
        rate_per_s: float = math.inf,
        key_rate_per_s: float = math.inf,
        limits: BacklogLimits | None = None,
        on_backlogged: Callable[[], None] = lambda: None,
        journal: PartitionJournal | None = None,
        wakes: Deadlines[Wakeable] | None = None,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._counts = counts
        self.starter = start
        wakes = new_wakes() if wakes is None else wakes
        self.weights = TaskWeights(_NO_OVERRIDES if overrides is None else overrides)
        self.dispatcher = Dispatcher(
            weights=self.weights,
            clock=clock,
            rate_per_s=rate_per_s,
            key_rate_per_s=key_rate_per_s,
            on_backlogged=on_backlogged,
            wakes=wakes,
        )
        self.backlog = PartitionBacklog(
            store,
            queue,
            clock=clock,
            counts=counts,
            overrides=self.weights.overrides,
            loaded=self,
            limits=limits,
            wakes=wakes,
        )
        # Tasks that the starter refused and that wait to be offered again; None if there were none.
        self._backing_off: dict[Position, asyncio.TimerHandle] | None = None
        self.pollers = PollerHistory(clock)
        self.dispatches = PriorityRates(started_s=clock())
        self.dispatched_keys = DispatchCounts()
        # Moving average of the seconds that a task waited for a poll.
        self.wait_s = 0.0

    @property
    def polls_waiting(self) -> int:
        """Number of polls that wait for a task."""
        return self.dispatcher.matcher.polls

    @property
    def tasks_loaded(self) -> int:
        """Number of tasks of the backlog that are in memory and wait for a poll."""
        return self.dispatcher.matcher.tasks

    @property
    def dispatches_per_s(self) -> float:
        """Recent rate of started tasks, per second."""
        return self.dispatches.rate(self._clock())

    def oldest_s(self) -> float:
        """When the oldest loaded task was added, by the wall clock; the present time if no task is loaded."""
        return min((task.created_s for task in self.dispatcher.matcher.held()), default=self._clock())

    async def start(self, matched: MatchedTask, identity: str, worker: bytes) -> bytes | None:
        """Start a task for a poll; None if it was not started, so that the poll may wait again."""
        if matched.is_query and matched.offered is not None and matched.offered.done():
            # The caller of the query is gone.
            return None
        try:
            if matched.starting is not None:
                response = await matched.starting
            elif matched.owner is TaskOwner.CLIENT:
                response = matched.payload
            else:
                response = await self.starter(matched.payload, identity, worker)
        except asyncio.CancelledError:
            self.dispatcher.give_back(matched)
            raise
        except BaseException:
            # The starter is unavailable, so the next poll would fail as well.
            self._back_off(matched)
            raise
        if response is NotStarted.REFUSED:
            self._back_off(matched)
            return None
        if (full := full_of(response)) is not None:
            self.dispatcher.park(matched, full)
            return None
        self.finish(matched, response)
        return response if isinstance(response, bytes) else None

    def finish(self, matched: MatchedTask, response: bytes | NotStarted) -> None:
        """Record that a task was started, here or at the parent, or is obsolete."""
        if matched.held is not None:
            priority, level = matched.held.position
            self.backlog.priorities.ack(matched.held.position)
            if self._journal is not None:
                self._journal.acked(self._clock(), matched.fairness_key, matched.weight, priority, level.pass_number)
        if matched.offered is not None and not matched.offered.done():
            matched.offered.set_result(response)
        if response is NotStarted.GONE:
            self._counts.tasks_dropped += 1
            self.dispatcher.refund(matched)
            return
        if not matched.is_charged:
            # The task's own partition counts the dispatch.
            return
        if self.dispatcher.matcher.is_parking:
            self.dispatcher.note_started(matched.fairness_key)
        now_s = self._clock()
        self.dispatches.add(matched.priority, now_s)
        if matched.created_s:
            self.wait_s += _WAIT_SMOOTHING * (max(0.0, now_s - matched.created_s) - self.wait_s)
        self.dispatched_keys.add(matched.fairness_key, matched.weight, now_s)

    def note_forwarded(self, matched: MatchedTask) -> None:
        """Record in the journal that a task is offered to the parent."""
        if self._journal is not None:
            self._journal.forwarded(self._clock(), matched.fairness_key, matched.weight, matched.priority)

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Use other weight overrides from now on.

        Stored levels stay. When an override is removed, loaded tasks keep the weight that they got from it.
        """
        self.weights.overrides = overrides
        self.backlog.priorities.override_weights(overrides)
        for task in self.dispatcher.matcher.held():
            task.weight = self.weights.of(task.fairness_key, task.weight)

    async def close(self) -> None:
        """End all waits, store the tasks that were accepted, and stop."""
        self.dispatcher.close()
        for timer in (self._backing_off or {}).values():
            timer.cancel()
        self._backing_off = None
        await self.backlog.close()

    def _back_off(self, matched: MatchedTask) -> None:
        """Wait `BACKOFF_S` before offering a task that could not be started to the next poll."""
        held, matched.held = matched.held, None
        self.dispatcher.give_back(matched)
        if held is not None and not self.dispatcher.is_closing:
            # A task that was evicted and loaded again during its start may be refused twice: it must back off only
            # once.
            self._end_backoff(held.position)
            timer = asyncio.get_running_loop().call_later(BACKOFF_S, self._retry, held)
            if self._backing_off is None:
                self._backing_off = {}
            self._backing_off[held.position] = timer

    def _retry(self, held: HeldTask[bytes]) -> None:
        self._end_backoff(held.position)
        self.dispatcher.hold([held])

    def load(self, tasks: Sequence[HeldTask[bytes]]) -> None:
        """Hold loaded tasks of the backlog until polls take them."""
        self.dispatcher.hold(tasks)

    def parked(self) -> int:
        """Number of loaded tasks that wait for the rate limit of their key."""
        return self.dispatcher.matcher.parked

    def evict(self, positions: Sequence[Position]) -> None:
        """Forget tasks that must leave memory."""
        for position in positions:
            self.dispatcher.matcher.remove(position)
            self._end_backoff(position)

    def _end_backoff(self, position: Position) -> None:
        timer = None if self._backing_off is None else self._backing_off.pop(position, None)
        if timer is not None:
            timer.cancel()
