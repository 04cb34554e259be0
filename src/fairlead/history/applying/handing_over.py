"""Events that wait for the end of a workflow task are written before a namespace is handed over, so that they go along.

They were acknowledged, but no row of the stream tells of them. Were they written later, when the other cluster has
gone on, they would stand on a branch that has lost: signals are taken over from there, the ends of activities, timers
and children are not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairlead.core.errors import GiveUp
from fairlead.history.applying.flushing import flush
from fairlead.history.refusals import Refused
from fairlead.history.state.tasks import TaskTimeout, WorkflowTaskTimeout
from fairlead.history.state.times import SECOND_NS
from fairlead.rpc import Code
from fairlead.storage.history_contract import RunKey
from fairlead.telemetry import get_log

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.queue import ShardQueue
    from fairlead.history.shard import Shard

# Runs that are worked on at a time, by one shard.
CONCURRENT_MAX = 10
# By so much the clocks of those who have given out workflow tasks may be ahead.
CLOCKS_APART_NS_MAX = 60 * SECOND_NS

_log = get_log("history.handing_over")


class Buffers:
    """Finds the runs of a namespace, in one shard, that have events which wait, and writes these.

    A run that was in memory since the shard was opened is known. In any other one a worker had a workflow task before
    that: the time of this task, which is bounded, is among the timers. So no run has to be looked at in vain but for
    those whose task is older than the shard's opening, and of these there are none after a few minutes.
    """

    def __init__(self, shard: Shard, timers: ShardQueue) -> None:
        self._shard = shard
        self._timers = timers
        # When no task from before the opening is a worker's any more.
        self._until_ns = 0
        # Namespaces whose runs from before the opening were looked at.
        self._looked_at: set[str] = set()

    def open(self) -> None:
        """The shard is this host's: what others have left in it is to be looked for."""
        services = self._shard.services
        self._until_ns = services.clock_ns() + services.limits.workflow_task_timeout_max_ns + CLOCKS_APART_NS_MAX

    async def write(self, namespace: Namespace) -> None:
        """Take the tasks away for which events wait, and write these; the others keep theirs."""
        keys = {*self._shard.runs.with_buffers(namespace.id)}
        if namespace.id not in self._looked_at:
            keys |= await self._from_before(namespace.id)
        ordered = sorted(keys)
        for start in range(0, len(ordered), CONCURRENT_MAX):
            await asyncio.gather(*(self._write(namespace, key) for key in ordered[start : start + CONCURRENT_MAX]))
        self._looked_at.add(namespace.id)

    async def _from_before(self, namespace_id: str) -> set[RunKey]:
        """The runs of which a worker may have a task since before the shard was opened."""
        found: set[RunKey] = set()
        async for row in self._timers.read_until(self._until_ns):
            task = row.task
            is_of_worker = isinstance(task, WorkflowTaskTimeout) and task.kind is TaskTimeout.START_TO_CLOSE
            if row.namespace_id == namespace_id and is_of_worker:
                found.add(RunKey(row.namespace_id, row.workflow_id, row.run_id))
        return found

    async def _write(self, namespace: Namespace, key: RunKey) -> None:
        shard = self._shard
        async with shard.lock(*key[:2]):
            try:
                run = await shard.load(*key)
                if run.state.live.buffered:
                    await flush(shard, namespace, run)
            except Refused as refused:
                if refused.code != Code.NOT_FOUND:
                    raise
                shard.runs.forget(key)
            except GiveUp as failure:
                # No later attempt would do better, and one run does not keep its namespace where it is.
                _log.error(
                    "what waits in a run is not handed over",
                    shard=shard.shard_id,
                    namespace=namespace.name,
                    workflow_id=key.workflow_id,
                    run_id=key.run_id,
                    error=str(failure),
                )
