"""A fake matching service for tests of the client: hosts own partitions, and a test decides how they fail."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fairlead.core.partitions import Partition, PartitionConfig, TaskQueueId, TaskType
from fairlead.core.routing import NoHosts
from fairlead.matching.engine import NotOwner
from fairlead.matching.messages import (
    AddRequest,
    AddResponse,
    BacklogReport,
    NewTask,
    PollRequest,
    PollResponse,
    StaleConfig,
)
from fairlead.rpc.hosts.caller import CallLost, Method, Request, Response, Unreachable

TASK_QUEUE = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def new(payload: str) -> NewTask:
    return NewTask(3, "", 1.0, payload.encode())


@dataclass(frozen=True, slots=True)
class Made:
    """One call that the client made."""

    at_s: float
    host: str
    request: Any
    timeout_s: float


class FakeMatching:
    """One task queue on fake hosts; implements `Caller`. A test can kill a host and move a partition to another host.

    The next call raises the next of `failures`; if that is a `CallLost`, the host has done the work before it raises.
    """

    def __init__(self, *, version: int = 1, read: int = 1, write: int = 1) -> None:
        self.config = PartitionConfig(version, read, write)
        # If set, responses carry this configuration instead of the one in force.
        self.reported: PartitionConfig | None = None
        self.owners: dict[int, str] = {}
        self.silent: set[str] = set()
        self.dead: set[str] = set()
        self.failures: deque[Exception] = deque()
        self.tasks: dict[int, list[bytes]] = {}
        self.backlogs: dict[int, float] = {}
        self.made: list[Made] = []
        self.waiting = 0

    @property
    def stored(self) -> list[bytes]:
        return sorted(task for tasks in self.tasks.values() for task in tasks)

    @property
    def asked(self) -> list[int]:
        return [made.request.partition.number for made in self.made]

    def owner(self, number: int) -> str:
        return self.owners.get(number, "a")

    async def call(
        self, host: str, method: Method[Request, Response], request: Request, *, timeout_s: float
    ) -> Response:
        self.made.append(Made(now_s(), host, request, timeout_s))
        if host in self.dead:
            raise Unreachable(f"{host} is dead")
        answer: Any
        try:
            async with asyncio.timeout(timeout_s):
                if host in self.silent:
                    await asyncio.Event().wait()
                answer = await self._answer(host, request)
        except TimeoutError:
            raise CallLost(f"{host} is silent") from None
        return answer  # type: ignore[no-any-return]

    async def _answer(self, host: str, request: Any) -> Any:
        failure = self.failures.popleft() if self.failures else None
        if failure is not None and not isinstance(failure, CallLost):
            raise failure
        number = request.partition.number
        if self.owner(number) != host:
            raise NotOwner(f"{number} is not owned by {host}")
        answer = await (self._add(request) if isinstance(request, AddRequest) else self._poll(host, request))
        if failure is not None:
            raise failure
        return answer

    async def _add(self, request: AddRequest) -> AddResponse:
        number = request.partition.number
        if request.config is not None and number >= self.config.write:
            raise StaleConfig(f"partition {number} takes no new tasks", self.config)
        self.tasks.setdefault(number, []).append(request.task.payload)
        return AddResponse(is_started=False, config=self.reported or self.config)

    async def _poll(self, host: str, request: PollRequest) -> PollResponse:
        number = request.partition.number
        if request.config is not None and number >= self.config.read:
            raise StaleConfig(f"partition {number} is not a read partition", self.config)
        self.waiting += 1
        try:
            deadline_s = now_s() + request.timeout_s
            while not self.tasks.get(number) and now_s() < deadline_s:
                await asyncio.sleep(min(0.25, deadline_s - now_s()))
                if host in self.dead:
                    raise CallLost(f"{host} died during the poll")
            task = self.tasks[number].pop(0) if self.tasks.get(number) else None
        finally:
            self.waiting -= 1
        backlog = self.backlogs.get(number, 0)
        report = BacklogReport(number, backlog, 0.0, 0.0, 0.0)  # type: ignore[arg-type]  # a test sends NaN
        return PollResponse(task, self.reported or self.config, report)


class FakeRing:
    """A ring that changes only with `refresh`: between refreshes, `known` may be out of date."""

    def __init__(self, matching: FakeMatching, *hosts: str) -> None:
        self._matching = matching
        self.hosts = hosts or ("a",)
        self.known = dict(matching.owners)
        self.refreshes: list[float] = []
        self.refresh_takes_s = 0.0
        self.is_empty = False

    def route(self, partition: Partition) -> str:
        if self.is_empty:
            raise NoHosts("the ring is empty")
        # A real ring looks a partition up by its name.
        assert partition.name
        return self.known.get(partition.number, "a")

    def on_change(self, listener: Callable[[], None]) -> None:
        raise NotImplementedError

    async def refresh(self) -> None:
        self.refreshes.append(now_s())
        await asyncio.sleep(self.refresh_takes_s)
        self.known = dict(self._matching.owners)
        self.is_empty = False
