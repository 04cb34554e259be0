"""Turns decisions into records of the audit; never with payloads."""

import asyncio
import ipaddress
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from fairlead.authorization.gate import Decided
from fairlead.authorization.methods import Scope
from fairlead.authorization.refusal_limit import RefusalLimit
from fairlead.journal import AuditRecord
from fairlead.rpc.budget import origin

# Characters of each text in a record.
TEXT_CHARACTERS_MAX: Final = 1_000
# Records of allowed calls, and records of refusals, that are kept in memory for the console.
RECENT_MAX: Final = 500
# Seconds from the first refusal without a record to the record that counts such refusals.
LEFT_OUT_S: Final = 60.0
# The `method` of a record that counts refusals.
LEFT_OUT_METHOD: Final = "fairlead/audit.RefusalsLeftOut"

# Fields of requests that name their object; the first one that is set counts.
_OBJECTS: Final = (
    *("workflow_id", "schedule_id", "job_id", "activity_id", "operation_id", "rule_id", "frontend_address"),
    *("cluster_name", "deployment_name", "id", "name", "cluster", "task_queue", "target"),
)


class AuditStream(Protocol):
    """The stream of the audit in the journal."""

    def put(self, record: AuditRecord) -> None:
        """Write the record of an allowed call."""
        ...

    def put_refusal(self, record: AuditRecord) -> None:
        """Write the record of a refusal; drop it if the queue is half full: the rest is for allowed calls."""
        ...

    def before_close(self, flush: Callable[[], None]) -> None:
        """Call `flush`, which may put more records, before the stream closes."""
        ...


class Audit:
    """Writes decisions as records, if there is a journal, and keeps the last ones in memory.

    Every allowed call gets a record. Refusals are bounded, since everybody can cause them: above the bound, one record
    every `LEFT_OUT_S` counts the refusals of a caller.
    """

    def __init__(
        self,
        stream: AuditStream | None,
        *,
        host: str,
        clock: Callable[[], float] = time.time,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """`later` calls a function after some seconds; by default, the running event loop does."""
        self._stream = stream
        self._host = host
        self._clock = clock
        self._later = later or (lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call))
        self._limit = RefusalLimit()
        self._is_flush_due = False
        self._allowed: deque[AuditRecord] = deque(maxlen=RECENT_MAX)
        self._refused: deque[AuditRecord] = deque(maxlen=RECENT_MAX)
        if stream is not None:
            stream.before_close(self.flush)

    @property
    def recent(self) -> list[AuditRecord]:
        """The last records, the newest last. Refusals don't displace records of allowed calls."""
        return sorted((*self._allowed, *self._refused), key=lambda record: record.time_us)

    def record(self, decided: Decided) -> None:
        """Write a decision."""
        now_s = self._clock()
        kind, name = decided.principal
        record = AuditRecord(
            time_us=int(now_s * 1e6),
            principal_kind=_short(kind),
            principal=_short(name),
            method=decided.method.api.lstrip("/"),
            namespace=_short(decided.namespace),
            object=_short(object_of(decided.request) or _namespace_in(decided)),
            is_allowed=decided.is_allowed,
            reason=_short(decided.reason),
            peer=_short(decided.peer),
            host=self._host,
        )
        if decided.is_allowed:
            self._allowed.append(record)
            if self._stream is not None:
                self._stream.put(record)
            return
        is_known = bool(kind)
        caller = f"{record.principal_kind}/{record.principal}" if is_known else address_of(decided.peer)
        if self._limit.admits(caller, is_known=is_known, now_s=now_s):
            self._put_refusal(record)
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._later(LEFT_OUT_S, self.flush)

    def flush(self) -> None:
        """Write how many refusals have got no record."""
        self._is_flush_due = False
        for caller, left_out in self._limit.take().items():
            self._put_refusal(
                AuditRecord(
                    time_us=int(left_out.last_s * 1e6),
                    first_us=int(left_out.first_s * 1e6),
                    left_out=left_out.count,
                    method=LEFT_OUT_METHOD,
                    object=caller or "further callers",
                    is_allowed=False,
                    reason=f"{left_out.count} refusals have no record of their own",
                    host=self._host,
                )
            )

    def _put_refusal(self, record: AuditRecord) -> None:
        self._refused.append(record)
        if self._stream is not None:
            self._stream.put_refusal(record)


def address_of(peer: str) -> str:
    """The address of a peer without its port; the network of an IPv6 address."""
    try:
        # With an IPv6 address, this may take a port for the last group, which is not part of the network.
        ipaddress.ip_address(peer)
    except ValueError:
        peer = peer.rpartition(":")[0].strip("[]") or peer
    return origin((peer,))


def object_of(request: Any) -> str:
    """The name of the object of a request: a workflow id, a schedule, a key, a task queue; empty without one."""
    for holder in (getattr(request, "workflow_execution", None), getattr(request, "execution", None), request):
        for field in _OBJECTS:
            value = getattr(holder, field, None)
            if isinstance(value, str) and value:
                return value
            named = getattr(value, "name", None)
            if isinstance(named, str) and named:
                return named
    partition = getattr(request, "partition", None)
    task_queue = getattr(partition, "task_queue", None)
    return f"{task_queue.namespace_id}/{task_queue.name}" if task_queue is not None else ""


def _namespace_in(decided: Decided) -> str:
    """The namespace in a request about the cluster, such as a failover, whose record has no namespace of its own."""
    found = getattr(decided.request, "namespace", "")
    return found if decided.method.scope is Scope.CLUSTER and isinstance(found, str) else ""


def _short(text: str) -> str:
    """Remove control characters, which could act on the terminal of a reader."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:TEXT_CHARACTERS_MAX])
