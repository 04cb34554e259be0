"""Caches the current run of each workflow id."""

from collections import OrderedDict

from fairlead.storage.history import CurrentRun, HistoryStore, RunKey

# Number of current-run rows in memory, of all shards together; each shard has an equal part.
CURRENT_IN_MEMORY_MAX = 50_000
# Minimum number of current-run rows that each shard may keep.
CURRENT_A_SHARD_MIN = 500


class CurrentRuns:
    """LRU cache of the current-run rows of one shard. Callers hold the lock of the workflow id."""

    def __init__(self, shard_id: int, store: HistoryStore, *, shards: int) -> None:
        """`shards` is the number of shards that share the memory."""
        self._shard_id = shard_id
        self._store = store
        self._rows_max = max(CURRENT_IN_MEMORY_MAX // shards, CURRENT_A_SHARD_MIN)
        self._rows: OrderedDict[tuple[str, str], CurrentRun] = OrderedDict()

    async def find(self, namespace_id: str, workflow_id: str) -> CurrentRun | None:
        """The current run of a workflow id; None if the workflow id has no run."""
        key = (namespace_id, workflow_id)
        known = self._rows.get(key)
        if known is None:
            known = await self._store.read_current(self._shard_id, namespace_id, workflow_id)
            if known is not None:
                self.put(known)
        else:
            self._rows.move_to_end(key)
        return known

    def is_cached(self, namespace_id: str, workflow_id: str) -> bool:
        """Whether the row of a workflow id is in memory."""
        return (namespace_id, workflow_id) in self._rows

    def put(self, current: CurrentRun) -> None:
        """Cache a row that equals the stored row."""
        self._rows[current.namespace_id, current.workflow_id] = current
        self._rows.move_to_end((current.namespace_id, current.workflow_id))
        if len(self._rows) > self._rows_max:
            self._rows.popitem(last=False)

    def drop(self, key: RunKey) -> None:
        """Forget the row of a run's workflow id, because the stored row may differ."""
        self._rows.pop((key.namespace_id, key.workflow_id), None)
