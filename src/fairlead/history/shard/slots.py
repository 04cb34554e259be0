"""Slots of a shard's running activities, in task queues with a limit on running activities.

A slot is taken before the commit that starts an attempt, and freed after the commit that ends it, so there are never
fewer slots than running activities. A token belongs to one start, and a start that has ended never runs again, so a
slot may be freed late, twice, or by an owner that has lost the shard. After a crash, the next owner finds the slots
that are left: it lists the slots of its shard and looks up each start. Both the start and the look-up hold the lock of
the workflow id.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from fairlead.api.entity_namespaces import base_namespace_id, is_entity
from fairlead.api.errors import NotFound
from fairlead.core.concurrency import Full, Slot
from fairlead.core.errors import FairleadError
from fairlead.core.namespaces import QualifiedNamespaceId
from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.history.shard.background import BackgroundWork
from fairlead.history.shard.context import Services
from fairlead.history.shard.ownership import Ownership
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.shard.workflow_locks import WorkflowLock
from fairlead.history.state import RunState
from fairlead.history.state.errors import KeyAtLimit, QueueAtLimit
from fairlead.storage.history import LeaseLost, RunKey
from fairlead.telemetry import ACTIVITY_STARTS_LIMITED, get_log

# Seconds between two look-ups of all slots of a shard, and before a failed look-up is repeated.
AUDIT_S = 30.0
RETRY_S = 1.0

# Labels of the metric: the limit of a fairness key, and the limit of a task queue.
LIMIT_LABELS = ("key", "task_queue")

_log = get_log("history.slots")

# By archetype: a function that returns, from the stored state of an entity, the token of the start that a worker has.
ENTITY_TOKENS: dict[str, Callable[[bytes], str | None]] = {}


class ShardSlots:
    """The slots of one shard that its owner has recorded: at least the slots of its running activities."""

    def __init__(
        self,
        shard_id: int,
        *,
        services: Services,
        ownership: Ownership,
        background: BackgroundWork,
        lock: Callable[[str, str], WorkflowLock],
        load: Callable[[str, str, str], Awaitable[LoadedRun]],
    ) -> None:
        self._shard_id = shard_id
        self._services = services
        self._ownership = ownership
        self._background = background
        self._lock = lock
        self._load = load
        # By run. Empty if the shard has no limited activities, so that a commit costs only one comparison.
        self.held: dict[RunKey, dict[str, Slot]] = {}
        self._is_auditing = False
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Look up the slots that earlier owners took."""
        self._begin_audit()

    def close(self) -> None:
        """Stop the timer; the next owner looks up all slots."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def count(self) -> int:
        """Number of slots."""
        return sum(map(len, self.held.values()))

    async def take(self, key: RunKey, *, token: str, event_id: int, task_queue: str, fairness_key: str) -> None:
        """Take a slot if the task queue has a limit. Raises `KeyAtLimit` or `QueueAtLimit` if the limit is reached.

        The caller must hold the lock of the workflow id until its commit has ended, and must call `doubt` if the commit
        fails.
        """
        namespace_id = base_namespace_id(key.namespace_id)
        limits = self._services.limits.concurrency.of(namespace_id, task_queue)
        if not limits.is_limiting:
            return
        slot = Slot(token, self._shard_id, namespace_id, task_queue, fairness_key, *key, event_id)
        # Record the slot before the write, so that it is looked up if the outcome is unknown.
        self.held.setdefault(key, {})[token] = slot
        range_id = self._ownership.range_id
        try:
            full = await self._services.store.take_slot(range_id, slot, limits)
        except LeaseLost as lost:
            self._drop(slot)
            if range_id == self._ownership.range_id:
                self._ownership.lose()
            raise self._ownership.taken() from lost
        except BaseException:
            self.doubt(key)
            # The write may still take effect, so the audit reads the store again.
            self._begin_timer()
            raise
        if full is None:
            self._begin_timer()
            return
        self._drop(slot)
        self._services.metrics.count(ACTIVITY_STARTS_LIMITED, LIMIT_LABELS[full is Full.QUEUE])
        if full is Full.KEY:
            raise KeyAtLimit(f"fairness key {fairness_key!r} has {limits.key_max} running activities: try again later")
        raise QueueAtLimit(f"task queue {task_queue!r} has {limits.queue_max} running activities: try again later")

    def doubt(self, key: RunKey) -> None:
        """Look up the slots of a run, because its activities may or may not be running."""
        if key in self.held:
            self._background.start(self._check_quietly(key))

    def note_run(self, key: RunKey, state: RunState) -> None:
        """Free the slots of the attempts that a commit of a run has ended."""
        if key in self.held:
            self._end(key, running_tokens(state))

    def note_entity(self, key: RunKey, state: bytes) -> None:
        """Free the slots of the attempts that a commit of an entity has ended."""
        if key in self.held:
            self._end(key, _entity_tokens(key, state))

    def note_deleted(self, key: RunKey) -> None:
        """Free the slots of a run or an entity that was deleted."""
        if key in self.held:
            self._end(key, ())

    def _end(self, key: RunKey, running: Iterable[str]) -> None:
        kept = frozenset(running)
        ended = [slot for token, slot in self.held[key].items() if token not in kept]
        if ended:
            self._background.start(self._free(ended))

    async def _free(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            try:
                await self._services.store.free_slot(slot.token)
            except FairleadError:
                # Keep the slot in `held`, so that the audit frees it.
                self._begin_timer(RETRY_S)
                continue
            self._drop(slot)
            task_queue = TaskQueueId(slot.queue_namespace_id, slot.task_queue, TaskType.ACTIVITY)
            await self._services.matching.report_free_slot(task_queue, slot.fairness_key)

    def _drop(self, slot: Slot) -> None:
        key = RunKey(slot.namespace_id, slot.workflow_id, slot.run_id)
        of_run = self.held.get(key)
        if of_run is not None:
            of_run.pop(slot.token, None)
            if not of_run:
                del self.held[key]

    # Audit

    def _begin_timer(self, delay_s: float = AUDIT_S) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + delay_s and not self._timer.cancelled():
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self._begin_audit)

    def _begin_audit(self) -> None:
        self._timer = None
        if not self._ownership.is_lost and not self._is_auditing:
            self._is_auditing = True
            self._background.start(self._audit())

    async def _audit(self) -> None:
        """Look up all slots of the shard, in the store and in memory."""
        delay_s = AUDIT_S
        try:
            for slot in await self._services.store.list_slots(self._shard_id):
                key = RunKey(slot.namespace_id, slot.workflow_id, slot.run_id)
                self.held.setdefault(key, {})[slot.token] = slot
            for key in list(self.held):
                await self._check(key)
        except FairleadError as failure:
            _log.warning("slots can't be looked up", shard=self._shard_id, error=str(failure))
            delay_s = RETRY_S
        finally:
            self._is_auditing = False
        if (self.held or delay_s == RETRY_S) and not self._ownership.is_lost:
            self._begin_timer(delay_s)

    async def _check_quietly(self, key: RunKey) -> None:
        try:
            await self._check(key)
        except FairleadError:
            self._begin_timer(RETRY_S)

    async def _check(self, key: RunKey) -> None:
        """Free the slots of a run whose starts have ended or were never committed."""
        async with self._lock(key.namespace_id, key.workflow_id):
            if key not in self.held:
                return
            running = await self._running(key)
            ended = [slot for token, slot in self.held.get(key, {}).items() if token not in running]
        await self._free(ended)

    async def _running(self, key: RunKey) -> frozenset[str]:
        if is_entity(key.namespace_id):
            stored = await self._services.store.read_run(self._shard_id, *key)
            return frozenset() if stored is None else frozenset(_entity_tokens(key, stored.state))
        try:
            run = await self._load(*key)
        except NotFound:
            return frozenset()
        return running_tokens(run.state)


def running_tokens(state: RunState) -> frozenset[str]:
    """The tokens of the attempts that workers have, for a run."""
    if not state.is_open:
        return frozenset()
    return frozenset(progress.started_request_id for progress in state.live.activities.values() if progress.is_started)


def _entity_tokens(key: RunKey, state: bytes) -> tuple[str, ...]:
    token_of = ENTITY_TOKENS.get(QualifiedNamespaceId.parse(key.namespace_id).qualifier)
    token = None if token_of is None else token_of(state)
    return () if token is None else (token,)
