"""Work of a shard when a namespace becomes active or passive in this cluster.

When the namespace becomes active, all its runs get their tasks, because passive runs have none. When it becomes
passive, buffered events are written, so that they are replicated. Each shard stores the failover version for which it
has done this, so that interrupted work is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairlead.aio.backoff import Backoff
from fairlead.api.errors import NotFound
from fairlead.core.errors import RetryLater
from fairlead.history.ndc.buffered_events import flush
from fairlead.history.ndc.sweeps import RETRY_FIRST_S, RETRY_S_MAX, Sweeps
from fairlead.history.ndc.task_refresh import refresh
from fairlead.history.shard.commit import Step
from fairlead.history.state import RunClosed, decode, encode
from fairlead.storage.history import OPEN_STATUSES, ListedRun, RunKey

if TYPE_CHECKING:
    from fairlead.api.namespaces import Namespace
    from fairlead.history.shard.shard import Shard
    from fairlead.history.state import RunState

# Number of runs of one shard that are processed concurrently.
CONCURRENT_MAX = 10
# Number of failed runs of a namespace above which the whole sweep restarts: then single runs are not the cause.
FAILED_MAX = 1_000


class TooManyFailed(RetryLater):
    """More than `FAILED_MAX` runs of a namespace failed: the sweep restarts."""


def _needs_refresh(state: RunState) -> bool:
    """Whether a run may need tasks: it is open, or its close may not have been reported yet.

    The retention timer of a closed run exists already.
    """
    has_relatives = state.started.parent is not None or state.closed_children or state.started.completion_callbacks
    has_callbacks = any(record.callbacks for record in state.updates.values())
    return state.is_open or state.has_events_to_reapply or has_callbacks or bool(has_relatives)


class FailoverSweeps(Sweeps):
    """The task refreshes after failovers, in one shard. The key of a sweep is its namespace id."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "activated")
        # By namespace id: the failover version for which the sweep was completed.
        self._done: dict[str, int] = {}

    def _remember(self, key: str, payload: bytes) -> None:
        self._done[key] = int(payload)

    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        return namespace.failover_version < self._done[key]

    def _due(self, namespace: Namespace) -> Iterable[str]:
        return (namespace.id,) if self._done.get(namespace.id, 0) < namespace.failover_version else ()

    async def _sweep(self, key: str, namespace: Namespace) -> None:
        is_active = self._shard.services.clusters.is_active(namespace)
        # Batches that are still being applied under the old version add no tasks, and their runs may not be listed yet.
        await self._shard.handover_writes.until_applied(namespace.id)
        failed: list[ListedRun] = []
        async for runs in self._pages(RunKey(namespace.id, "", "")):
            failed += await self._refresh_all(namespace, runs, is_active=is_active)
            if len(failed) > FAILED_MAX:
                raise TooManyFailed(f"task refresh failed for {len(failed)} runs of namespace {namespace.name!r}")
        backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, random=self._shard.services.uniform)
        while failed:
            # Failed runs are retried after all other runs, so that they don't delay them.
            await asyncio.sleep(backoff.next_s())
            known = self._shard.services.namespaces.cached_id(namespace.id)
            if known is None or known.failover_version != namespace.failover_version:
                return
            failed = await self._refresh_all(namespace, failed, is_active=is_active)
        await self._note(key, str(namespace.failover_version).encode())

    async def _refresh_all(
        self, namespace: Namespace, runs: Sequence[ListedRun], *, is_active: bool
    ) -> list[ListedRun]:
        """Process some runs; return the runs that failed."""
        failed: list[ListedRun] = []
        for start in range(0, len(runs), CONCURRENT_MAX):
            part = runs[start : start + CONCURRENT_MAX]
            ended = await asyncio.gather(
                *(self._refresh(namespace, run, is_active=is_active) for run in part), return_exceptions=True
            )
            for run, failure in zip(part, ended, strict=True):
                if failure is None:
                    continue
                if not isinstance(failure, Exception) or self._shard.ownership.is_lost:
                    raise failure
                self._warn("task refresh of a run failed after a failover", namespace, failure, run_id=run.run_id)
                failed.append(run)
        return failed

    async def _refresh(self, namespace: Namespace, listed: ListedRun, *, is_active: bool) -> None:
        shard = self._shard
        if not is_active and listed.status not in OPEN_STATUSES:
            return
        async with shard.lock(namespace.id, listed.workflow_id):
            try:
                run = await shard.load(*RunKey.of(listed))
            except NotFound:
                return
            if not is_active:
                if run.state.live.buffered:
                    await flush(shard, namespace, run)
                return
            if not _needs_refresh(run.state):
                return
            transaction = shard.transaction(namespace, decode(encode(run.state)))
            refresh(transaction)
            if not transaction.tasks:
                return
            try:
                # The write checks the namespace: if it has failed over again, another sweep follows.
                await shard.writer.write(namespace, [Step(run, transaction)])
            except RunClosed:
                return
