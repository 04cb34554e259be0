"""Evictions from the cache of runs: busy runs stay, and an eviction does not look at all runs."""

from fairlead.history.shard.run_cache import RUNS_A_SHARD_MIN, RUNS_IN_MEMORY_MAX, LoadedRun, RunCache
from fairlead.history.state import RunIdentity, RunState
from fairlead.storage.history import RunKey

# With this many shards, each keeps the minimum number of runs.
SHARDS = RUNS_IN_MEMORY_MAX


class _Run(LoadedRun):
    """A run that is busy on demand, and counts how often it was considered for eviction."""

    is_busy = False
    considered = 0

    @property
    def is_idle(self) -> bool:
        self.considered += 1
        return not self.is_busy


def _put(cache: RunCache, number: int, *, is_busy: bool = False) -> _Run:
    key = RunKey("namespace", f"workflow-{number}", "run")
    run = _Run(key, RunState(RunIdentity(*key, key.run_id, "branch")), None)
    run.is_busy = is_busy
    cache.put(run)
    return run


def test_the_least_recently_used_idle_runs_are_evicted() -> None:
    cache = RunCache(shards=SHARDS)
    busy = [_put(cache, number, is_busy=True) for number in range(10)]
    idle = [_put(cache, number) for number in range(10, 1_000)]
    assert len(cache) <= RUNS_A_SHARD_MIN
    assert all(cache.get(run.key) is run for run in busy)
    kept = [run for run in idle if cache.get(run.key) is not None]
    assert kept == idle[-len(kept) :]


def test_a_busy_run_is_considered_once_for_many_evictions() -> None:
    cache = RunCache(shards=SHARDS)
    busy = [_put(cache, number, is_busy=True) for number in range(RUNS_A_SHARD_MIN // 2)]
    for number in range(1_000, 1_000 + 10 * RUNS_A_SHARD_MIN):
        _put(cache, number)
    # Each has been the least recently used run about once for each time that the cache was filled anew.
    assert max(run.considered for run in busy) <= 25
