"""What a shard does when a namespace becomes active in this cluster, or is not active here any more.

In the first case all runs of the namespace get their tasks, of which there were none here; in the second the events
that wait for workflow tasks are written, so that they reach the others. Which version that was done for is durable, for
each shard and namespace: what was interrupted is done again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fairlead.core.errors import RetryLater
from fairlead.history.applying.flushing import flush
from fairlead.history.applying.refreshing import refresh
from fairlead.history.applying.sweeps import RETRY_S, Sweeps
from fairlead.history.refusals import Refused
from fairlead.history.state import RunClosed, decode, encode
from fairlead.history.writing import Step
from fairlead.rpc import Code
from fairlead.storage.history_contract import OPEN_STATUSES, ListedRun, RunKey

if TYPE_CHECKING:
    from fairlead.history.namespaces import Namespace
    from fairlead.history.shard import Shard
    from fairlead.history.state import RunState

# Runs that are worked on at a time, by one shard.
CONCURRENT_MAX = 10
# Where more than so many runs can't be taken up, it is not because of the runs: all is begun again.
FAILED_MAX = 1_000
RETRY_S_MAX = 60.0


class TooManyFailed(RetryLater):
    """So many runs of a namespace can't be taken up that it is begun again."""


def _is_to_be_taken_up(state: RunState) -> bool:
    """Of closed runs, only those whose end somebody may not have heard of: their retention was seen to before."""
    has_family = state.started.parent is not None or state.closed_children or state.started.completion_callbacks
    return state.is_open or state.owes or bool(has_family)


class Activations(Sweeps):
    """Follows the failovers of namespaces, in one shard; the key of a sweep is the id of its namespace."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, "activated")
        # By namespace: the version for which all is done.
        self._done: dict[str, int] = {}

    def _remember(self, key: str, payload: bytes) -> None:
        self._done[key] = int(payload)

    def _knows_less(self, key: str, namespace: Namespace) -> bool:
        return namespace.failover_version < self._done[key]

    def _due(self, namespace: Namespace) -> Iterable[str]:
        return (namespace.id,) if self._done.get(namespace.id, 0) < namespace.failover_version else ()

    async def _sweep(self, key: str, namespace: Namespace) -> None:
        is_active = self._shard.services.clusters.is_active(namespace)
        # What is still being applied as the namespace was before leaves no tasks, and may not be among the runs yet.
        await self._shard.shared.until_applied(namespace.id)
        failed: list[ListedRun] = []
        async for runs in self._pages(RunKey(namespace.id, "", "")):
            failed += await self._take_up_all(namespace, runs, is_active=is_active)
            if len(failed) > FAILED_MAX:
                raise TooManyFailed(f"{len(failed)} runs of namespace {namespace.name!r} can't be taken up")
        wait_s = RETRY_S
        while failed:
            # One run that can't be taken up holds up no other.
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, RETRY_S_MAX)
            known = self._shard.services.namespaces.cached_id(namespace.id)
            if known is None or known.failover_version != namespace.failover_version:
                return
            failed = await self._take_up_all(namespace, failed, is_active=is_active)
        await self._note(key, str(namespace.failover_version).encode())

    async def _take_up_all(
        self, namespace: Namespace, runs: Sequence[ListedRun], *, is_active: bool
    ) -> list[ListedRun]:
        """Take up some runs; those with which it did not work."""
        failed: list[ListedRun] = []
        for start in range(0, len(runs), CONCURRENT_MAX):
            part = runs[start : start + CONCURRENT_MAX]
            ended = await asyncio.gather(
                *(self._take_up(namespace, run, is_active=is_active) for run in part), return_exceptions=True
            )
            for run, failure in zip(part, ended, strict=True):
                if failure is None:
                    continue
                if not isinstance(failure, Exception) or self._shard.is_lost:
                    raise failure
                self._warn("run not taken up after a failover", namespace, failure, run_id=run.run_id)
                failed.append(run)
        return failed

    async def _take_up(self, namespace: Namespace, listed: ListedRun, *, is_active: bool) -> None:
        shard = self._shard
        if not is_active and listed.status not in OPEN_STATUSES:
            return
        async with shard.lock(namespace.id, listed.workflow_id):
            try:
                run = await shard.load(*listed[:3])
            except Refused as refused:
                if refused.code != Code.NOT_FOUND:
                    raise
                return
            if not is_active:
                if run.state.live.buffered:
                    await flush(shard, namespace, run)
                return
            if not _is_to_be_taken_up(run.state):
                return
            transaction = shard.transaction(namespace, decode(encode(run.state)))
            refresh(transaction)
            if not transaction.tasks:
                return
            try:
                # Under the rule for all writes: a namespace that has moved on meanwhile is another sweep's.
                await shard.write(namespace, [Step(run, transaction)])
            except RunClosed:
                return
