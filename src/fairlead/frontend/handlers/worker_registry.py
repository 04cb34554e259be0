"""Workers with recent heartbeats, as this host's frontend knows them."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkerStatus

if TYPE_CHECKING:
    from temporalio.api.worker.v1 import WorkerHeartbeat

# Maximum number of workers; a heartbeat takes about 2 KB. The least recent ones are dropped first.
WORKERS_MAX = 10_000
# Seconds without a heartbeat after which a worker is dropped; workers send one every minute.
SILENT_S_MAX = 300.0


class WorkerRegistry:
    """The last heartbeat of each worker, by namespace id and instance key; the least recent first."""

    def __init__(self) -> None:
        self._workers: OrderedDict[tuple[str, str], tuple[float, WorkerHeartbeat]] = OrderedDict()

    def record(self, namespace_id: str, heartbeats: Iterable[WorkerHeartbeat], *, now_s: float) -> None:
        """Record heartbeats; a worker that has shut down is removed."""
        for heartbeat in heartbeats:
            if heartbeat.status == WorkerStatus.WORKER_STATUS_SHUTDOWN:
                self.forget(namespace_id, heartbeat.worker_instance_key)
                continue
            key = (namespace_id, heartbeat.worker_instance_key)
            self._workers[key] = (now_s, heartbeat)
            self._workers.move_to_end(key)
        self._expire(now_s)

    def forget(self, namespace_id: str, worker_instance_key: str) -> None:
        """Remove a worker."""
        self._workers.pop((namespace_id, worker_instance_key), None)

    def find(self, namespace_id: str, worker_instance_key: str, *, now_s: float) -> WorkerHeartbeat | None:
        """The last heartbeat of a worker."""
        self._expire(now_s)
        found = self._workers.get((namespace_id, worker_instance_key))
        return None if found is None else found[1]

    def list(
        self, namespace_id: str, fits: Callable[[WorkerHeartbeat], bool] | None, *, now_s: float
    ) -> list[WorkerHeartbeat]:
        """The workers of a namespace, ordered by instance key."""
        self._expire(now_s)
        found = [
            heartbeat
            for (of, _), (_, heartbeat) in self._workers.items()
            if of == namespace_id and (fits is None or fits(heartbeat))
        ]
        found.sort(key=_key_of)
        return found

    def _expire(self, now_s: float) -> None:
        while self._workers:
            key, (seen_s, _) = next(iter(self._workers.items()))
            if len(self._workers) <= WORKERS_MAX and now_s - seen_s <= SILENT_S_MAX:
                return
            del self._workers[key]


def after(workers: list[WorkerHeartbeat], worker_instance_key: str) -> list[WorkerHeartbeat]:
    """The part of the ordered list after this instance key."""
    return workers[bisect_right(workers, worker_instance_key, key=_key_of) :]


def _key_of(heartbeat: WorkerHeartbeat) -> str:
    return heartbeat.worker_instance_key
