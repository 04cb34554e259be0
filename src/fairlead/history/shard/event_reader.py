"""Events of a run, from memory or from the store."""

from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.errors import NotFound
from fairlead.history.events import Batch
from fairlead.history.shard.run_cache import RunCache
from fairlead.history.state import RunState
from fairlead.storage.history import HistoryStore, RunKey, StoredBatch

# Maximum bytes of events in a page.
PAGE_BYTES_MAX = 4 * 1024 * 1024


class EventReader:
    """Reads events of the runs of one shard."""

    def __init__(self, runs: RunCache, store: HistoryStore) -> None:
        self._runs = runs
        self._store = store

    async def read_batches(
        self, state: RunState, from_event_id: int, to_event_id: int, *, limit_bytes: int = PAGE_BYTES_MAX
    ) -> list[Batch]:
        """The batches with the events of a half-open range, in order: up to `limit_bytes`, but at least one batch.

        The first and the last batch may hold events outside of the range.
        """
        identity = state.identity
        run = self._runs.get(RunKey(identity.namespace_id, identity.workflow_id, identity.run_id))
        if run is not None and run.batches and run.batches[0].first_event_id <= from_event_id:
            found: list[Batch] = []
            size = 0
            for batch in run.batches:
                if batch.last_event_id >= from_event_id and batch.first_event_id < to_event_id:
                    size += len(batch.payload)
                    if found and size > limit_bytes:
                        break
                    found.append(batch)
            return found
        stored = await self._store.read_branch(
            identity.tree_id, identity.branch_id, from_event_id, to_event_id, limit_bytes=limit_bytes
        )
        return [_batch(each) for each in stored]

    async def read_event(self, state: RunState, event_id: int) -> HistoryEvent:
        """One event of a run."""
        for batch in await self.read_batches(state, event_id, event_id + 1):
            for event in History.FromString(batch.payload).events:
                if event.event_id == event_id:
                    return event
        raise NotFound(f"event {event_id} of run {state.identity.run_id} not found")


def _batch(stored: StoredBatch) -> Batch:
    return Batch(stored.first_event_id, stored.last_event_id, stored.payload)
