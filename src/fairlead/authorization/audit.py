"""Turns decisions into records of the audit; never with payloads."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from fairlead.authorization.gate import Decided
from fairlead.journal import AuditRecord

# Characters of each text in a record.
TEXT_CHARACTERS_MAX: Final = 1_000
# Records that are kept in memory, for the console.
RECENT_MAX: Final = 500

# Fields of requests that name their object; the first one that is set counts.
_OBJECTS: Final = (
    *("workflow_id", "schedule_id", "job_id", "activity_id", "operation_id", "rule_id", "frontend_address"),
    *("cluster_name", "deployment_name", "id", "name", "cluster", "task_queue", "target", "namespace"),
)


class Audit:
    """Writes decisions as records, if there is a journal, and keeps the last ones in memory."""

    def __init__(
        self, put: Callable[[AuditRecord], None] | None, *, host: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._put = put
        self._host = host
        self._clock = clock
        # The last records, the newest last.
        self.recent: deque[AuditRecord] = deque(maxlen=RECENT_MAX)

    def record(self, decided: Decided) -> None:
        """Write a decision."""
        kind, name = decided.principal
        record = AuditRecord(
            time_us=int(self._clock() * 1e6),
            principal_kind=_short(kind),
            principal=_short(name),
            method=decided.method.api.lstrip("/"),
            namespace=_short(decided.namespace),
            object=_short(object_of(decided.request)),
            is_allowed=decided.is_allowed,
            reason=_short(decided.reason),
            peer=_short(decided.peer),
            host=self._host,
        )
        self.recent.append(record)
        if self._put is not None:
            self._put(record)


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


def _short(text: str) -> str:
    """Remove control characters, which could act on the terminal of a reader."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:TEXT_CHARACTERS_MAX])
