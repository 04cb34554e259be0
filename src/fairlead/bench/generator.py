"""Sends a load to a matching service and receives it, like many producers and workers.

In an open loop, a task's wait counts from the time at which it was due, not from the time at which it was sent. So if a
stalled server blocks the producers, the waits include the time for which tasks could not be sent. No task is sent
twice.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count, islice, repeat
from typing import Protocol

from fairlead.bench.keys import KeyChooser
from fairlead.bench.payload import Stamp, pack, unpack
from fairlead.bench.plan import TASKS_MAX, LoadPlan
from fairlead.bench.schedule import due_times
from fairlead.bench.tally import Tally
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskQueueId
from fairlead.matching.messages import AddResponse, NewTask, PollResponse

# Seconds between the first polls and the first task, so that polls are waiting when it comes.
POLLERS_LEAD_S = 0.3
FAILED_POLL_PAUSE_S = 0.1
CHECK_INTERVAL_S = 0.02
PRELOAD_IN_FLIGHT = 50

SWEEP_POLL_S = 1.0

Add = Callable[[NewTask], Awaitable[AddResponse]]
Poll = Callable[[str], Awaitable[PollResponse]]


class Client(Protocol):
    """The methods of a matching client that the generator uses."""

    async def add(self, task_queue: TaskQueueId, task: NewTask, *, timeout_s: float) -> AddResponse:
        """Add a task."""
        ...

    async def poll(self, task_queue: TaskQueueId, identity: str, *, timeout_s: float) -> PollResponse:
        """Wait for a task."""
        ...


class LoadGenerator:
    """Runs one load on one task queue and tallies it. `run_id` distinguishes its tasks from those of other runs.

    Producers and pollers are divided among the clients, as they would be among processes. `clock` is monotonic, and
    finer than the event loop's own, which may have a resolution of milliseconds.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        plan: LoadPlan,
        *,
        task_queue: TaskQueueId,
        run_id: int,
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._clients = clients
        self._plan = plan
        self._task_queue = task_queue
        self._run_id = run_id
        self._key_chooser = KeyChooser(plan.keys, random)
        self._numbers = count()
        self._schedule = _schedule(plan)
        self._pollers: list[asyncio.Task[None]] = []
        self._now_s = clock
        self.tally = Tally(plan.keys, start_s=self._now_s())

    async def preload(self, tasks: int, add: Add) -> None:
        """Add tasks before the load by `add`, which chooses the partition; each add must succeed."""
        left = iter(range(tasks))

        async def produce() -> None:
            for _ in left:
                stamp, task = self._next_task(self._now_s())
                await add(task)
                self.tally.preload(stamp)

        async with asyncio.TaskGroup() as producers:
            for _ in range(min(tasks, PRELOAD_IN_FLIGHT)):
                producers.create_task(produce())

    async def run(self) -> Tally:
        """Run the load until all acknowledged tasks were received, no more tasks come, or the time is over."""
        try:
            if not self._plan.is_backlog_first:
                self._start_pollers()
                await asyncio.sleep(POLLERS_LEAD_S)
            self.tally.start_s = self._now_s()
            await asyncio.gather(*(self._produce(self._client(number)) for number in range(self._plan.producers)))
            if self._plan.is_backlog_first:
                self._start_pollers()
            await self._drain()
        finally:
            for poller in self._pollers:
                poller.cancel()
            await asyncio.gather(*self._pollers, return_exceptions=True)
        return self.tally

    async def sweep(self, polls: Sequence[Poll]) -> None:
        """Poll every partition directly after the load, for tasks that were left behind.

        Tasks that are still missing afterwards are lost, if all partitions could be polled.
        """
        for poll in polls:
            try:
                while (answer := await poll(f"bench-{self._run_id:016x}-sweep")).task is not None:
                    received_before = self.tally.received
                    self._polled(answer, begun_s=self._now_s())
                    self.tally.swept += self.tally.received - received_before
            except FairleadError:
                self.tally.unasked += 1

    async def _produce(self, client: Client) -> None:
        for offset_s in self._schedule:
            now_s = self._now_s()
            due_s = now_s if offset_s is None else self.tally.start_s + offset_s
            if self._plan.duration_s is not None and due_s >= self.tally.start_s + self._plan.duration_s:
                return
            while (early_s := due_s - self._now_s()) > 0:  # noqa: ASYNC110 - the loop may wake too early
                await asyncio.sleep(early_s)
            stamp, task = self._next_task(due_s)
            await self._add(client, stamp, task)

    async def _add(self, client: Client, stamp: Stamp, task: NewTask) -> None:
        sent_s = self._now_s()
        self.tally.sends(stamp, now_s=sent_s)
        try:
            answer = await client.add(self._task_queue, task, timeout_s=self._plan.add_timeout_s)
        except FairleadError as failed:
            self.tally.add_failed(stamp, failed, sent_s=sent_s, now_s=self._now_s())
        else:
            self.tally.added(stamp, answer, sent_s=sent_s, now_s=self._now_s())

    def _next_task(self, due_s: float) -> tuple[Stamp, NewTask]:
        number = next(self._numbers)
        key = self._key_chooser.key_of(number)
        stamp = Stamp(self._run_id, number, key, due_s)
        return stamp, NewTask(
            priority=self._plan.priority,
            fairness_key=self._plan.keys.name(key),
            weight=self._plan.keys.weight(key),
            payload=pack(stamp, size_bytes=self._plan.payload_bytes),
        )

    def _client(self, number: int) -> Client:
        return self._clients[number % len(self._clients)]

    def _start_pollers(self) -> None:
        self.tally.polling_since_s = self._now_s()
        self._pollers = [
            asyncio.create_task(self._poll_forever(self._client(number), f"bench-{self._run_id:016x}-{number}"))
            for number in range(self._plan.pollers)
        ]

    async def _poll_forever(self, client: Client, identity: str) -> None:
        while True:
            begun_s = self._now_s()
            try:
                answer = await client.poll(self._task_queue, identity, timeout_s=self._plan.poll_timeout_s)
            except FairleadError as failed:
                self.tally.poll_failed(failed)
                await asyncio.sleep(FAILED_POLL_PAUSE_S)
                continue
            self._polled(answer, begun_s=begun_s)
            if answer.task is not None and self._plan.work_s > 0:
                await asyncio.sleep(self._plan.work_s)

    def _polled(self, answer: PollResponse, *, begun_s: float) -> None:
        stamp = None if answer.task is None else unpack(answer.task)
        is_ours = stamp is not None and stamp.run_id == self._run_id
        self.tally.polled(answer, stamp if is_ours else None, begun_s=begun_s, now_s=self._now_s())

    async def _drain(self) -> None:
        """Wait for outstanding tasks; raise the exception of a poller that failed with anything but a service error."""
        drain_since_s = self._now_s()
        while self.tally.outstanding and not any(poller.done() for poller in self._pollers):
            now_s = self._now_s()
            is_idle = now_s - max(drain_since_s, self.tally.last_received_s) > self._plan.drain_timeout_s
            if is_idle or now_s - self.tally.start_s > self._plan.limit_s:
                return
            await asyncio.sleep(CHECK_INTERVAL_S)
        for poller in self._pollers:
            if poller.done():
                poller.result()


def _schedule(plan: LoadPlan) -> Iterator[float | None]:
    """Yield when each task is due, in seconds since the start; None: as soon as the previous add has returned."""
    if not plan.is_open_loop:
        return repeat(None, TASKS_MAX if plan.tasks is None else plan.tasks)
    return islice(due_times(plan.phases), TASKS_MAX if plan.tasks is None else plan.tasks)
