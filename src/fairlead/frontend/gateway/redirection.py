"""Redirection of calls to the cluster in which their namespace is active."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message
from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.aio.backoff import Backoff
from fairlead.api.clusters import Clusters
from fairlead.api.errors import ApiError, NotActive
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.api.tokens import decode_token
from fairlead.core.errors import FairleadError, RetryLater
from fairlead.rpc import Call, Code, RpcStatus
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic.redirection import REDIRECTION, Redirect

# Temporal's header: "false" forbids redirection. Redirected calls carry it, so that no call is redirected twice.
REDIRECTION_HEADER = "xdc-redirection"

# Methods that are always handled here: their data is replicated to every cluster.
READS = frozenset(
    (
        *("RegisterNamespace", "DescribeNamespace", "ListNamespaces", "UpdateNamespace", "DeprecateNamespace"),
        *("GetClusterInfo", "GetSystemInfo", "GetSearchAttributes"),
        *("GetWorkflowExecutionHistory", "GetWorkflowExecutionHistoryReverse", "DescribeWorkflowExecution"),
        *("ListOpenWorkflowExecutions", "ListClosedWorkflowExecutions", "ListWorkflowExecutions"),
        *("ListArchivedWorkflowExecutions", "ScanWorkflowExecutions", "CountWorkflowExecutions"),
    )
)
# Prefixes of methods that read data of one cluster only (schedules, task queues, workers, ...): they are handled in the
# active cluster if redirection is allowed, else here.
_OTHER_READS = ("Count", "Describe", "Fetch", "Get", "List")
POLLS = frozenset(("PollWorkflowTaskQueue", "PollActivityTaskQueue", "PollNexusTaskQueue"))
# Long calls that change nothing: if the namespace fails over while they wait, they are restarted in the other cluster.
_MOVABLE = POLLS | {
    "QueryWorkflow",
    "PollWorkflowExecutionUpdate",
    "PollActivityExecution",
    "PollNexusOperationExecution",
}

# Maximum seconds of disagreement between two clusters on where a namespace is active, before the caller gets an error.
AGAIN_S_MAX = 3.0
AGAIN_WAIT_S_MIN = 0.01
AGAIN_WAIT_S_MAX = 0.2

# Seconds after a failover until open polls end: a task that was just started for a poll must still be delivered, or it
# would only time out. Polls at another cluster are ended by that cluster; `LEAVE_THERE_S` is for a cluster that is down
# or has not seen the failover.
LEAVE_HERE_S = 0.1
LEAVE_THERE_S = 1.0

_NOT_ACTIVE = NamespaceNotActiveFailure.DESCRIPTOR.full_name.encode()

Send = Callable[[str, bytes, Call], Awaitable[bytes]]
Local = Callable[[], Awaitable[Message | bytes]]


class Settle(Protocol):
    """Synchronizes the namespaces of two clusters."""

    async def __call__(self, cluster: str, /) -> None:
        """Synchronize this cluster with `cluster`."""
        ...


class _Asked(NamedTuple):
    """A received call, and the handler that would process it here."""

    method: str
    data: bytes
    call: Call
    local: Local


class _Moved(Exception):
    """The namespace failed over to another cluster while a call waited."""


class Redirection:
    """Handles calls for global namespaces in their active cluster, as far as the setting allows.

    A call is forwarded at most once: the other cluster handles it or returns `NotActive`. After such an error
    the two clusters synchronize their namespaces and the call is retried for a while; that is safe, since a cluster
    that returns this error has done nothing.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        namespaces: Namespaces,
        settings: DynamicSettings,
        send: Send,
        settle: Settle,
        on_redirect: Callable[[str], None] = lambda _cluster: None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`on_redirect` is called with the target cluster of each redirected call.

        `uniform` makes random numbers in [0, 1), which vary the pauses between attempts.
        """
        self._clusters = clusters
        self._namespaces = namespaces
        self._settings = settings
        self._send = send
        self._settle = settle
        self._on_redirect = on_redirect
        self._uniform = uniform
        # By namespace id: the waiting calls, and the seconds until each is restarted elsewhere after a failover.
        self._waiting: dict[str, dict[asyncio.Task[Message | bytes], float]] = {}
        self._moved: set[asyncio.Task[Message | bytes]] = set()
        self._versions = {namespace.id: namespace.failover_version for namespace in namespaces.all()}
        namespaces.on_change(self._note_change)

    async def answer(self, method: str, request: Any, data: bytes, call: Call, local: Local) -> Message | bytes:
        """Handle the call with `local`, or forward `data` to another cluster."""
        namespace = await self._namespace(request)
        if namespace is None or not namespace.is_global:
            return await local()
        asked = _Asked(method, data, call, local)
        loop = asyncio.get_running_loop()
        # Time spent in a handler does not count: a write that waits for the end of a handover is no disagreement.
        disagreed_s = 0.0
        backoff = Backoff(AGAIN_WAIT_S_MIN, AGAIN_WAIT_S_MAX, random=self._uniform)
        while True:
            namespace = self._namespaces.cached_id(namespace.id) or namespace
            target = self._target(namespace, method, call)
            try:
                return await self._attempt(namespace, target, asked)
            except _Moved:
                disagreed_s = 0.0
                continue
            except (NotActive, RpcStatus) as error:
                if not _is_not_active(error) or not self._may_redirect(namespace, method, call):
                    raise
                if disagreed_s >= AGAIN_S_MAX:
                    raise _disagreed(error, method) from None
            failed_s = loop.time()
            await self._refresh(namespace, target)
            await asyncio.sleep(backoff.next_s())
            disagreed_s += loop.time() - failed_s

    def _target(self, namespace: Namespace, method: str, call: Call) -> str:
        """The cluster that handles the call; raises `NotActive` if it is another one and redirection is off."""
        if self._clusters.is_active(namespace):
            return self._clusters.here
        if self._may_redirect(namespace, method, call):
            return namespace.active_cluster
        if method in POLLS and is_redirectable(call):
            # The poll waits here for a failover to this cluster.
            return self._clusters.here
        if method.startswith(_OTHER_READS):
            return self._clusters.here
        self._clusters.check_writable(namespace, last_event_version=0)
        return self._clusters.here

    def _may_redirect(self, namespace: Namespace, method: str, call: Call) -> bool:
        if not is_redirectable(call):
            return False
        wanted = self._settings.get(REDIRECTION, Scope(namespace.id))
        return wanted is Redirect.ALL or (wanted is Redirect.CALLS and method not in POLLS)

    async def _attempt(self, namespace: Namespace, target: str, asked: _Asked) -> Message | bytes:
        if target == self._clusters.here:
            attempt, leave_s = asked.local(), LEAVE_HERE_S
        else:
            self._on_redirect(target)
            attempt, leave_s = self._send(target, asked.data, asked.call), LEAVE_THERE_S
        return await (self._until_moved(namespace, attempt, leave_s) if asked.method in _MOVABLE else attempt)

    async def _until_moved(
        self, namespace: Namespace, attempt: Awaitable[Message | bytes], leave_s: float
    ) -> Message | bytes:
        task: asyncio.Task[Message | bytes] = asyncio.ensure_future(attempt)
        waiting = self._waiting.setdefault(namespace.id, {})
        waiting[task] = leave_s
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if task not in self._moved or (current is not None and current.cancelling()):
                raise
            raise _Moved from None
        finally:
            del waiting[task]
            self._moved.discard(task)
            if not waiting and self._waiting.get(namespace.id) is waiting:
                del self._waiting[namespace.id]

    def _note_change(self, namespace: Namespace) -> None:
        if self._versions.get(namespace.id) == namespace.failover_version:
            return
        self._versions[namespace.id] = namespace.failover_version
        for task, leave_s in self._waiting.get(namespace.id, {}).items():
            asyncio.get_running_loop().call_later(leave_s, self._leave, namespace.id, task)

    def _leave(self, namespace_id: str, task: "asyncio.Task[Message | bytes]") -> None:
        if task in self._waiting.get(namespace_id, {}):
            self._moved.add(task)
            task.cancel()

    async def _refresh(self, namespace: Namespace, target: str) -> None:
        """Refresh the namespace, because another host of this cluster, or another cluster, has a newer state."""
        try:
            await self._namespaces.read_id(namespace.id)
            if target != self._clusters.here:
                await self._settle(target)
        except FairleadError:
            # The call is retried anyway, until the time is over.
            return

    async def _namespace(self, request: Any) -> Namespace | None:
        """The namespace of a request; None if it is unknown: then the handler raises the proper error."""
        try:
            if request.namespace:
                return self._namespaces.cached(request.namespace) or await self._namespaces.find(request.namespace)
            token: bytes = getattr(request, "task_token", b"")
            return await self._namespaces.find_id(decode_token(token).namespace_id) if token else None
        except ApiError:
            return None


def _is_not_active(error: NotActive | RpcStatus) -> bool:
    if isinstance(error, NotActive):
        return True
    # The status of another cluster.
    return error.code is Code.FAILED_PRECONDITION and _NOT_ACTIVE in (error.details or b"")


def _disagreed(error: NotActive | RpcStatus, method: str) -> FairleadError:
    """Return the error for the caller; for a poll, `RetryLater`, so that the worker polls again."""
    if method not in POLLS:
        return error
    return RetryLater(f"clusters disagree on where the namespace is active: {error}")


def is_redirectable(call: Call) -> bool:
    """Whether a call may be redirected: neither its caller nor an earlier redirection forbids it."""
    return call.metadata.get(REDIRECTION_HEADER, "").lower() != "false"
