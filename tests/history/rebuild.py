"""Checks that the state of every run of a store follows from its events, field by field."""

from pathlib import Path

import msgspec
from temporalio.api.history.v1 import History

from fairlead.history.events import rebuild
from fairlead.history.state import RunState, decode, without_live
from fairlead.storage.history import HistoryStore, RunKey
from fairlead.storage.sqlite import SqliteStore

PAGE = 500
PAGE_BYTES = 4 * 1024 * 1024


async def check_file(file: Path) -> int:
    """Check a database that no server has open; return the number of runs."""
    store = await SqliteStore.open(file)
    try:
        payload = await store.history.read_metadata("history.shards")
        assert payload is not None
        return await check_store(store.history, shards=int(payload.payload))
    finally:
        await store.close()


async def check_store(store: HistoryStore, *, shards: int) -> int:
    """Rebuild every run from its events, and compare it with the stored state; return the number of runs."""
    count = 0
    for shard_id in range(shards):
        after: RunKey | None = None
        while page := await store.list_runs(shard_id, after=after, limit=PAGE):
            for listed in page:
                after = RunKey(listed.namespace_id, listed.workflow_id, listed.run_id)
                # Entities have no events.
                if "#" not in listed.namespace_id:
                    await _check_run(store, shard_id, after)
                    count += 1
    return count


async def _check_run(store: HistoryStore, shard_id: int, key: RunKey) -> None:
    stored = await store.read_run(shard_id, *key)
    assert stored is not None
    state = decode(stored.state)
    events = History()
    next_event_id = 1
    while next_event_id < state.next_event_id:
        batches = await store.read_branch(
            state.identity.tree_id, state.identity.branch_id, next_event_id, state.next_event_id, limit_bytes=PAGE_BYTES
        )
        assert batches, f"{key}: no event {next_event_id}, though the next is {state.next_event_id}"
        for batch in batches:
            found = [event for event in History.FromString(batch.payload).events if event.event_id >= next_event_id]
            events.events.extend(found)
            next_event_id = batch.last_event_id + 1
    assert [event.event_id for event in events.events] == list(range(1, state.next_event_id)), f"{key}: a gap"
    _compare(key, without_live(state), without_live(rebuild(state.identity, events.events)))


def _compare(key: RunKey, state: RunState, rebuilt: RunState) -> None:
    for field in msgspec.structs.fields(RunState):
        kept, again = getattr(state, field.name), getattr(rebuilt, field.name)
        assert kept == again, f"{key}: {field.name} is {kept!r}, and {again!r} when it is rebuilt from the events"
