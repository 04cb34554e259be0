"""The frontend's handlers alone: fakes record their calls to other services, and return what the test sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from google.protobuf.message import Message

from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.frontend.gateway.context import Frontend
from fairlead.frontend.handlers import tasks, workers, workflows
from fairlead.matching.messages import BacklogReport, PollResponse, QueueKind
from fairlead.matching.operator_client import OperatorClient
from fairlead.rpc import Call
from fairlead.rpc.head import Head
from fairlead.settings import DynamicSettings
from fairlead.storage.memory.history import MemoryHistory
from tests.frontend.bad_requests import NAMESPACE, method_of

METHODS = {**workflows.METHODS, **tasks.METHODS, **workers.METHODS}
NAMESPACE_ID = "7d0b8f8e-0000-4000-8000-000000000001"
OTHER_ID = "7d0b8f8e-0000-4000-8000-000000000002"


@dataclass
class Passed:
    """One call of a handler to the history service."""

    name: str
    namespace_id: str
    workflow_id: str
    request: Any
    timeout_s: float


@dataclass
class HistoryBehind:
    """Records the calls to the history service."""

    answer: bytes = b""
    passed: list[Passed] = field(default_factory=list)
    # The task queue of the poll that a call offers; empty if it offers none.
    sticky_task_queues: list[str] = field(default_factory=list)

    async def call(
        self,
        name: str,
        namespace_id: str,
        workflow_id: str,
        request: Message,
        *,
        timeout_s: float = 10.0,
        sticky_task_queue: str = "",
    ) -> bytes:
        """A fake client of the history service."""
        self.passed.append(Passed(name, namespace_id, workflow_id, request, timeout_s))
        self.sticky_task_queues.append(sticky_task_queue)
        return self.answer


@dataclass
class MatchingBehind:
    """Returns one task, or lets polls wait."""

    task: bytes | None = None
    waits: bool = False
    polls: list[tuple[TaskQueueId, str, float, QueueKind, float | None]] = field(default_factory=list)
    workers: list[bytes] = field(default_factory=list)

    async def poll(
        self,
        task_queue: TaskQueueId,
        identity: str,
        *,
        timeout_s: float,
        kind: QueueKind = QueueKind.NORMAL,
        rate_per_s: float | None = None,
        worker: bytes = b"",
    ) -> PollResponse:
        """A fake client of the matching service."""
        self.polls.append((task_queue, identity, timeout_s, kind, rate_per_s))
        self.workers.append(worker)
        if self.waits:
            await asyncio.sleep(timeout_s)
        return PollResponse(self.task, PartitionConfig(1, 1, 1), BacklogReport(0, 0, 0.0, 0.0, 0.0))


@dataclass
class Setup:
    """A frontend with only fakes behind it."""

    frontend: Frontend
    history: HistoryBehind
    matching: MatchingBehind
    now_s: float = 1000.0

    async def ask(self, request: Message, *, timeout_s: float | None = 70.0) -> Message | bytes:
        """Call the handler of a request."""
        return await METHODS[method_of(request)](self.frontend, request, a_call(timeout_s))


def a_call(timeout_s: float | None) -> Call:
    """A call whose caller waits `timeout_s`."""
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
