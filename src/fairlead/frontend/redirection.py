"""Where a call is answered: here, or in the cluster in which its namespace is active."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message
from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure

from fairlead.core.errors import FairleadError
from fairlead.frontend.forwarding import is_redirectable
from fairlead.history.clusters import Clusters, is_not_active
from fairlead.history.namespaces import Namespace, Namespaces
from fairlead.history.refusals import Refused
from fairlead.history.tokens import decode_token
from fairlead.rpc import Call, Code, RpcStatus
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.redirection import REDIRECTION, Redirect

# Answered where they are asked: what they read is the same in every cluster, sooner or later.
READS = frozenset(
    (
        *("RegisterNamespace", "DescribeNamespace", "ListNamespaces", "UpdateNamespace", "DeprecateNamespace"),
        *("GetClusterInfo", "GetSystemInfo", "GetSearchAttributes"),
        *("GetWorkflowExecutionHistory", "GetWorkflowExecutionHistoryReverse", "DescribeWorkflowExecution"),
        *("ListOpenWorkflowExecutions", "ListClosedWorkflowExecutions", "ListWorkflowExecutions"),
        *("ListArchivedWorkflowExecutions", "ScanWorkflowExecutions", "CountWorkflowExecutions"),
    )
)
# How the names of those begin that read what lives in one cluster only (schedules, task queues, workers, ...): they are
# answered where the namespace is active, if they may be sent there, else here.
_OTHER_READS = ("Count", "Describe", "Fetch", "Get", "List")
POLLS = frozenset(("PollWorkflowTaskQueue", "PollActivityTaskQueue", "PollNexusTaskQueue"))
# These wait for long, and may be begun again elsewhere when the namespace moves meanwhile: they change nothing.
_MOVABLE = POLLS | {"QueryWorkflow", "PollWorkflowExecutionUpdate", "PollActivityExecution"}

# For so long two clusters may disagree on where a namespace is active, around a failover, before a caller is told.
AGAIN_S_MAX = 3.0
AGAIN_WAIT_S_MIN = 0.01
AGAIN_WAIT_S_MAX = 0.2

# When a namespace moves, its polls here wait for so long yet: a task that was started for one just before is on its
# way, and nobody would get it until it times out. Those at another cluster are sent back by that one; this is for when
# it is gone, or does not know.
LEAVE_HERE_S = 0.1
LEAVE_THERE_S = 1.0

_NOT_ACTIVE = NamespaceNotActiveFailure.DESCRIPTOR.full_name.encode()

Send = Callable[[str, bytes, Call], Awaitable[bytes]]
Local = Callable[[], Awaitable[Message | bytes]]


class Settle(Protocol):
    """Brings two clusters to the same view of their namespaces."""

    async def __call__(self, cluster: str, /) -> None:
        """Between this one and `cluster`."""
        ...


class _Asked(NamedTuple):
    """A call, and how it is answered here."""

    method: str
    data: bytes
    call: Call
    local: Local


class _Moved(Exception):
    """The namespace has become active elsewhere while a call waited."""


class Redirection:
    """Answers calls of namespaces that clusters share where they are active, as the setting allows.

    A call is sent on once at most: the cluster that it is sent to answers it, or refuses it as not active there. Then
    the two look at each other's namespaces, and it is tried again, for a while: whoever refused it has done nothing.
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
    ) -> None:
        """`on_redirect` is told each time to which cluster a call is sent on."""
        self._clusters = clusters
        self._namespaces = namespaces
        self._settings = settings
        self._send = send
        self._settle = settle
        self._on_redirect = on_redirect
        # By namespace: the calls that wait, and after how long each is begun again elsewhere when it has moved.
        self._waiting: dict[str, dict[asyncio.Task[Message | bytes], float]] = {}
        self._moved: set[asyncio.Task[Message | bytes]] = set()
        self._versions = {namespace.id: namespace.failover_version for namespace in namespaces.all()}
        namespaces.on_change(self._note_change)

    async def answer(self, method: str, request: Any, data: bytes, call: Call, local: Local) -> Message | bytes:
        """The answer of `local`, or of another cluster to the same `data`."""
        namespace = await self._namespace(request)
        if namespace is None or not namespace.is_global:
            return await local()
        asked = _Asked(method, data, call, local)
        loop = asyncio.get_running_loop()
        # Without the time that the attempts take: a write that waits for the end of a hand-over disagrees with nobody.
        disagreed_s, wait_s = 0.0, AGAIN_WAIT_S_MIN
        while True:
            namespace = self._namespaces.cached_id(namespace.id) or namespace
            target = self._target(namespace, method, call)
            try:
                return await self._attempt(namespace, target, asked)
            except _Moved:
                disagreed_s = 0.0
                continue
            except (Refused, RpcStatus) as refusal:
                if not _is_not_active(refusal) or not self._may_redirect(namespace, method, call):
                    raise
                if disagreed_s >= AGAIN_S_MAX:
                    raise _disagreed(refusal, method) from None
            refused_s = loop.time()
            await self._look_again(namespace, target)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, AGAIN_WAIT_S_MAX)
            disagreed_s += loop.time() - refused_s

    def _target(self, namespace: Namespace, method: str, call: Call) -> str:
        """The cluster that is to answer; raises where this one is not active and must not send it on."""
        if self._clusters.is_active(namespace):
            return self._clusters.here
        if self._may_redirect(namespace, method, call):
            return namespace.active_cluster
        if method in POLLS and is_redirectable(call):
            # Nothing will come of it until the namespace becomes active here; and then it should be there.
            return self._clusters.here
        if method.startswith(_OTHER_READS):
            return self._clusters.here
        self._clusters.check_writable(namespace, last_event_version=0)
        return self._clusters.here

    def _may_redirect(self, namespace: Namespace, method: str, call: Call) -> bool:
        if not is_redirectable(call):
            return False
        wanted = self._settings.get(REDIRECTION, Scope(namespace=namespace.name))
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

    async def _look_again(self, namespace: Namespace, target: str) -> None:
        """Somebody knows more: another host of this cluster, or another cluster."""
        try:
            await self._namespaces.read_id(namespace.id)
            if target != self._clusters.here:
                await self._settle(target)
        except FairleadError:
            # It is tried again all the same, until the time is over.
            return

    async def _namespace(self, request: Any) -> Namespace | None:
        """The namespace of a request; None where there is none, which its handler says better."""
        try:
            if request.namespace:
                return self._namespaces.cached(request.namespace) or await self._namespaces.find(request.namespace)
            token: bytes = getattr(request, "task_token", b"")
            return await self._namespaces.find_id(decode_token(token).namespace_id) if token else None
        except Refused:
            return None


def _is_not_active(refusal: Refused | RpcStatus) -> bool:
    if isinstance(refusal, Refused):
        return is_not_active(refusal)
    return refusal.code is Code.FAILED_PRECONDITION and _NOT_ACTIVE in (refusal.details or b"")


def _disagreed(refusal: Refused | RpcStatus, method: str) -> Refused | RpcStatus:
    """Workers take this for a moment's trouble, and poll again."""
    if method not in POLLS:
        return refusal
    return RpcStatus(Code.UNAVAILABLE, f"clusters disagree on where the namespace is active: {refusal}")
