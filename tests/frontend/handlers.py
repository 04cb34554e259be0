"""The handlers of the frontend on their own: what they pass on is kept, and answered with what the test wants."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf.message import Message

from fairlead.core.partitions import PartitionConfig, TaskList
from fairlead.frontend import tasks, workers, workflows
from fairlead.frontend.context import Frontend
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.matching.messages import BacklogReport, PollAnswer, TaskListKind
from fairlead.matching.operator_client import OperatorClient
from fairlead.rpc import Call
from fairlead.rpc.head import Head
from fairlead.settings import DynamicSettings
from fairlead.storage.history_memory import MemoryHistory
from tests.frontend.bad_requests import NAMESPACE, method_of

METHODS = {**workflows.METHODS, **tasks.METHODS, **workers.METHODS}
NAMESPACE_ID = "7d0b8f8e-0000-4000-8000-000000000001"
OTHER_ID = "7d0b8f8e-0000-4000-8000-000000000002"


@dataclass
class Passed:
    """What a handler asked of the history service."""

    name: str
    namespace_id: str
    workflow_id: str
    request: Any
    timeout_s: float


@dataclass
class HistoryBehind:
    """Keeps what it is asked for."""

    answer: bytes = b""
    passed: list[Passed] = field(default_factory=list)

    async def call(
        self, name: str, namespace_id: str, workflow_id: str, request: Message, *, timeout_s: float = 10.0
    ) -> bytes:
        """As the client of the history service."""
        self.passed.append(Passed(name, namespace_id, workflow_id, request, timeout_s))
        return self.answer


@dataclass
class MatchingBehind:
    """Gives one task, or lets polls wait."""

    task: bytes | None = None
    waits: bool = False
    polls: list[tuple[TaskList, str, float, TaskListKind, float | None]] = field(default_factory=list)
    workers: list[bytes] = field(default_factory=list)

    async def poll(
        self,
        task_list: TaskList,
        identity: str,
        *,
        timeout_s: float,
        kind: TaskListKind = TaskListKind.NORMAL,
        rate_per_s: float | None = None,
        worker: bytes = b"",
    ) -> PollAnswer:
        """As the client of the matching service."""
        self.polls.append((task_list, identity, timeout_s, kind, rate_per_s))
        self.workers.append(worker)
        if self.waits:
            await asyncio.sleep(timeout_s)
        return PollAnswer(self.task, PartitionConfig(1, 1, 1), BacklogReport(0, 0, 0.0, 0.0, 0.0))


@dataclass
class Setup:
    """A frontend with nothing but recorders behind it."""

    frontend: Frontend
    history: HistoryBehind
    matching: MatchingBehind
    now_s: float = 1000.0

    async def ask(self, request: Message, *, timeout_s: float | None = 70.0) -> Message | bytes:
        """Have a request answered by its handler."""
        return await METHODS[method_of(request)](self.frontend, request, a_call(timeout_s))


def a_call(timeout_s: float | None) -> Call:
    """A call whose caller waits for so long."""
    head = Head("/some/method", {}, {}, timeout_s, "identity", None)
    return Call(head, peer="test", clock=asyncio.get_running_loop().time)


async def set_up() -> Setup:
    """A frontend that knows two namespaces."""
    store = MemoryHistory()
    namespaces = Namespaces(store, clock=lambda: 0.0)
    await namespaces.create(Namespace(id=NAMESPACE_ID, name=NAMESPACE, retention_ns=86_400 * 10**9))
    await namespaces.create(Namespace(id=OTHER_ID, name="second", retention_ns=86_400 * 10**9, state=2))
    history, matching = HistoryBehind(), MatchingBehind()
    frontend = Frontend(
        namespaces=namespaces,
        history=cast(Any, history),
        matching=cast(Any, matching),
        operator=cast(OperatorClient, None),
        store=store,
        settings=DynamicSettings(),
        clock=lambda: setup.now_s,
    )
    setup = Setup(frontend, history, matching)
    return setup
