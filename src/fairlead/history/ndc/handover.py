"""Writes buffered events before a namespace is handed over, so that they are replicated before the failover.

These events were acknowledged, but the stream has no row for them. If they were written after the failover, they would
be on a branch that is not current: its signals are reapplied, but not its results of activities, timers and children.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.api.errors import NotFound
from fairlead.api.limits import DEFAULT_LIMITS
from fairlead.api.times import SECOND_NS
from fairlead.core.errors import GiveUp
from fairlead.history.ndc.buffered_events import flush
from fairlead.history.state.tasks import TaskTimeout, WorkflowTaskTimeout
from fairlead.storage.history import RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.queue import ShardQueue
    from fairlead.history.shard.shard import Shard

# Number of runs of one shard that are processed concurrently.
CONCURRENT_MAX = 10
# Nanoseconds by which the clocks of hosts that started workflow tasks may differ from this host's clock.
CLOCKS_APART_NS_MAX = 60 * SECOND_NS

_log = get_log("history.handover")


class Buffers:
    """Finds the runs of a namespace in one shard that have buffered events, and writes these events.

    Runs that changed after the shard was acquired are known in memory. Any other run with buffered events has a
    workflow task that was started before the acquisition, and a timer for the timeout of that task. So only runs with
    such a timer are loaded. The timeout has an upper bound, so all these timers have fired soon after the acquisition.
    """

    def __init__(self, shard: Shard, timers: ShardQueue) -> None:
        self._shard = shard
        self._timers = timers
        # Time at which all workflow tasks that were started before the acquisition have timed out.
        self._until_ns = 0
        # Ids of namespaces whose runs from before the acquisition have been checked.
        self._looked_at: set[str] = set()

    def open(self) -> None:
        """Begin after an acquisition of the shard: runs may have buffered events from earlier owners."""
        services = self._shard.services
        self._until_ns = services.clock_ns() + DEFAULT_LIMITS.workflow_task_timeout_max_ns + CLOCKS_APART_NS_MAX

    async def write(self, namespace: Namespace) -> None:
        """Fail the workflow tasks that delay buffered events, and write these events; other tasks continue."""
        keys = {*self._shard.runs.with_buffers(namespace.id)}
        if namespace.id not in self._looked_at:
            keys |= await self._from_before(namespace.id)
        ordered = sorted(keys)
        for start in range(0, len(ordered), CONCURRENT_MAX):
            await asyncio.gather(*(self._write(namespace, key) for key in ordered[start : start + CONCURRENT_MAX]))
        self._looked_at.add(namespace.id)

    async def _from_before(self, namespace_id: str) -> set[RunKey]:
        """The runs that may have a workflow task from before the acquisition of the shard."""
        found: set[RunKey] = set()
        async for row in self._timers.read_until(self._until_ns):
            task = row.task
            is_of_worker = isinstance(task, WorkflowTaskTimeout) and task.kind is TaskTimeout.START_TO_CLOSE
            if row.namespace_id == namespace_id and is_of_worker:
                found.add(RunKey(row.namespace_id, row.workflow_id, row.run_id))
        return found

    async def _write(self, namespace: Namespace, key: RunKey) -> None:
        shard = self._shard
        async with shard.lock(*key.workflow):
            try:
                run = await shard.load(*key)
                if run.state.live.buffered:
                    await flush(shard, namespace, run)
            except NotFound:
                shard.runs.forget(key)
            except GiveUp as failure:
                # A retry would not help, and one run must not block the handover of its namespace.
                _log.error(
                    "buffered events of a run not written before the handover",
                    shard=shard.shard_id,
                    namespace=namespace.name,
                    workflow_id=key.workflow_id,
                    run_id=key.run_id,
                    error=str(failure),
                )
