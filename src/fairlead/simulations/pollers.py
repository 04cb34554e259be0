"""A model of pollers that wait at partitions; the real load balancer chooses the partition of each poll."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from random import Random

from fairlead.core.balancing import LoadBalancer, Pick, Strategy
from fairlead.core.partitions import TaskQueueId, TaskType

POLL_S_MAX = 60.0
# The wait, in seconds, of a task for which a poll is waiting already (TQ-12).
MATCH_WAIT_S = 0.01
SAMPLES = 200
_TASK_QUEUE = TaskQueueId("simulation", "queue", TaskType.ACTIVITY)


@dataclass(frozen=True, slots=True)
class Workload:
    """The tasks, the same for all balancers: the starting backlog and the arrivals of each partition."""

    name: str
    backlogs: tuple[int, ...]
    arrivals_per_s: tuple[float, ...]
    arrivals: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a workload."""

    # Share of the pollers' time spent at work, while tasks of the starting backlog were left.
    utilisation: float
    drained_s: float | None
    # The waits of all tasks, in ascending order. A task that was never started waits until the end of the run.
    waits_s: Sequence[float]
    # The share of its tasks that each partition dispatched.
    started_shares: Sequence[float]
    polls_empty: int
    backlog_samples: Sequence[int]


class _Event(Enum):
    ARRIVAL = 0
    POLL = 1
    TIMEOUT = 2


def make_workload(
    name: str, random: Random, *, weights: Sequence[float], backlog: int, arrival_per_s: float, duration_s: float
) -> Workload:
    """Divide a backlog and a Poisson stream of arrivals among partitions by their weights."""
    total = sum(weights)
    backlogs = [int(backlog * weight / total) for weight in weights]
    # The first partitions get one task more each, until the remainder of the rounding is used up.
    for partition in range(backlog - sum(backlogs)):
        backlogs[partition] += 1
    arrivals = []
    time_s = random.expovariate(arrival_per_s) if arrival_per_s else duration_s
    while time_s < duration_s:
        arrivals.append((time_s, random.choices(range(len(weights)), weights)[0]))
        time_s += random.expovariate(arrival_per_s)
    return Workload(
        name=name,
        backlogs=tuple(backlogs),
        arrivals_per_s=tuple(arrival_per_s * weight / total for weight in weights),
        arrivals=tuple(arrivals),
    )


class PollerModel:
    """Pollers in a loop: select a partition, wait there for a task, work on it, report, and repeat.

    There is no forwarding between partitions: a poller at the wrong partition waits until a task arrives there or its
    poll times out.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        random: Random,
        *,
        pollers: int,
        clients: int,
        service_s: float,
        duration_s: float,
    ) -> None:
        self._workload = workload
        self._strategy = strategy
        self._random = random
        self._service_s = service_s
        self._duration_s = duration_s
        balancers = [LoadBalancer(random=random.random) for _ in range(clients)]
        self._balancers = [balancers[poller % clients] for poller in range(pollers)]
        self._now_s = 0.0
        self._queues = [deque([0.0] * backlog) for backlog in workload.backlogs]
        # All polls that had to wait; and for each partition the numbers of the polls that still wait, oldest first.
        self._polls: list[tuple[int, Pick]] = []
        self._waiting: list[dict[int, None]] = [{} for _ in workload.backlogs]
        self._events: list[tuple[float, int, _Event, int]] = []
        self._event_count = 0
        self._busy_s = 0.0
        self._busy_until_s = [0.0] * pollers
        self._backlog_left = sum(workload.backlogs)
        self._drained_s: float | None = None
        self._drained_busy_s = 0.0
        self._waits_s: list[float] = []
        self._started = [0] * len(workload.backlogs)
        self._polls_empty = 0
        self._samples: list[int] = []

    def run(self) -> Outcome:
        """Run the model to its end."""
        for time_s, partition in self._workload.arrivals:
            self._schedule(time_s, _Event.ARRIVAL, partition)
        for poller in range(len(self._balancers)):
            self._schedule(0.0, _Event.POLL, poller)
        while self._events and self._events[0][0] < self._duration_s:
            time_s, _, event, subject = heappop(self._events)
            self._sample(time_s)
            self._now_s = time_s
            if event is _Event.ARRIVAL:
                self._arrive(subject)
            elif event is _Event.POLL:
                self._poll(subject)
            else:
                self._time_out(subject)
        self._sample(self._duration_s)
        self._now_s = self._duration_s
        return self._outcome()

    def _schedule(self, time_s: float, event: _Event, subject: int) -> None:
        # The count keeps simultaneous events in the order of their creation.
        self._event_count += 1
        heappush(self._events, (time_s, self._event_count, event, subject))

    def _arrive(self, partition: int) -> None:
        self._queues[partition].append(self._now_s)
        waiting = self._waiting[partition]
        if waiting:
            number = next(iter(waiting))
            del waiting[number]
            self._start(*self._polls[number])

    def _poll(self, poller: int) -> None:
        pick = self._balancers[poller].pick_read(
            _TASK_QUEUE, partitions=len(self._queues), strategy=self._strategy, now_s=self._now_s
        )
        if self._queues[pick.partition]:
            self._start(poller, pick)
        else:
            number = len(self._polls)
            self._polls.append((poller, pick))
            self._waiting[pick.partition][number] = None
            self._schedule(self._now_s + POLL_S_MAX, _Event.TIMEOUT, number)

    def _start(self, poller: int, pick: Pick) -> None:
        self._waits_s.append(self._now_s - self._queues[pick.partition].popleft())
        self._started[pick.partition] += 1
        self._answer(poller, pick)
        work_s = self._random.expovariate(1.0 / self._service_s)
        self._busy_s += work_s
        self._busy_until_s[poller] = self._now_s + work_s
        self._schedule(self._now_s + work_s, _Event.POLL, poller)
        if self._started[pick.partition] <= self._workload.backlogs[pick.partition]:
            self._backlog_left -= 1
            if not self._backlog_left:
                self._drained_s = self._now_s
                self._drained_busy_s = self._busy_until_now_s()

    def _answer(self, poller: int, pick: Pick) -> None:
        pick.release()
        self._balancers[poller].report(
            _TASK_QUEUE,
            pick.partition,
            backlog=len(self._queues[pick.partition]),
            arrival_per_s=self._workload.arrivals_per_s[pick.partition],
            wait_s=MATCH_WAIT_S,
            now_s=self._now_s,
        )

    def _time_out(self, number: int) -> None:
        poller, pick = self._polls[number]
        if number in self._waiting[pick.partition]:
            del self._waiting[pick.partition][number]
            self._polls_empty += 1
            self._answer(poller, pick)
            self._schedule(self._now_s, _Event.POLL, poller)

    def _busy_until_now_s(self) -> float:
        return self._busy_s - sum(max(0.0, until_s - self._now_s) for until_s in self._busy_until_s)

    def _sample(self, until_s: float) -> None:
        while len(self._samples) <= SAMPLES and len(self._samples) * self._duration_s / SAMPLES <= until_s:
            self._samples.append(sum(len(queue) for queue in self._queues))

    def _outcome(self) -> Outcome:
        busy_s = self._busy_until_now_s() if self._drained_s is None else self._drained_busy_s
        lasted_s = self._duration_s if self._drained_s is None else self._drained_s
        left = [self._now_s - arrived_s for queue in self._queues for arrived_s in queue]
        return Outcome(
            # If there are no more tasks than pollers, the backlog may be drained at time 0.
            utilisation=busy_s / (lasted_s * len(self._balancers)) if lasted_s else 1.0,
            drained_s=self._drained_s,
            waits_s=sorted(self._waits_s + left),
            started_shares=[
                started / max(1, started + len(queue))
                for started, queue in zip(self._started, self._queues, strict=True)
            ],
            polls_empty=self._polls_empty,
            backlog_samples=self._samples,
        )
