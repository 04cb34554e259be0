"""All branches of a run are exported, and no event twice, even after a switch of the current branch."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.core.versions import VersionHistory
from fairlead.history.export import NothingToExport, export_histories
from fairlead.history.state import RunIdentity, RunState, encode
from fairlead.history.state.run import LiveState, SideBranch
from fairlead.journal import read_segment
from fairlead.journal.exports import ExportIsBusy, open_export
from fairlead.storage.commit import Ancestor, BatchWrite, BranchWrite, Commit, RunWrite
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.tasks import MemoryStore

RUN = RunIdentity("shop", "order-1", "run-1", "run-1", "left")
LEFT = ((3, 1), (6, 2))
RIGHT = ((3, 1), (5, 12))


def batch(branch_id: str, first: int, last: int, version: int, transaction_id: int) -> BatchWrite:
    kind = EventType.EVENT_TYPE_TIMER_STARTED
    events = [HistoryEvent(event_id=one, version=version, event_type=kind) for one in range(first, last + 1)]
    payload = History(events=events).SerializeToString()
    return BatchWrite("run-1", branch_id, first, last, version, transaction_id, payload)


def run_write(branch_id: str, versions: tuple[tuple[int, int], ...], *, sides: Any, before: int | None) -> RunWrite:
    state = RunState(
        msgspec.structs.replace(RUN, branch_id=branch_id),
        versions=VersionHistory.from_pairs(versions),
        next_event_id=versions[-1][0] + 1,
        live=LiveState(branches=[SideBranch(side, items) for side, items in sides]),
    )
    return RunWrite("shop", "order-1", "run-1", encode(state), before, versions[-1][0] + 1, 1, versions[-1][1])


def journaled(folder: Path) -> list[dict[str, Any]]:
    return [record for path in sorted(folder.glob("*.zst")) for record in read_segment(path)]


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*")]


async def export(store: HistoryStore, folder: Path) -> list[tuple[str, int, int, int]]:
    """Export again; return the contents of the journal."""
    await export_histories(store, folder, shards=1, namespace=None, notify=lambda _: None)
    records = journaled(folder)
    for record in records:
        assert record["items"][-1] == {"event_id": record["last_event_id"], "version": record["version"]}
        assert [event.event_id for event in History.FromString(base64.b64decode(record["payload"])).events] == list(
            range(record["first_event_id"], record["last_event_id"] + 1)
        )
    return [
        (record["branch_id"], record["first_event_id"], record["last_event_id"], record["version"])
        for record in records
    ]


async def test_branches_are_exported_from_their_fork(tmp_path: Path) -> None:
    store = MemoryStore().history
    range_id = (await store.take_shard(0)).range_id
    left = [batch("left", 1, 3, 1, 10), batch("left", 4, 6, 2, 11)]
    await store.commit(0, range_id, Commit([run_write("left", LEFT, sides=(), before=None)], left))
    first = [("left", 1, 3, 1), ("left", 4, 6, 2)]
    assert await export(store, tmp_path) == first
    # Events of another cluster win: they continue after event 3, and the local events have lost.
    fork = BranchWrite("run-1", "right", (Ancestor("left", 4),))
    won = run_write("right", RIGHT, sides=[("left", LEFT)], before=1)
    await store.commit(0, range_id, Commit([won], [batch("right", 4, 5, 12, 12)], [fork]))
    assert await export(store, tmp_path) == [*first, ("right", 4, 5, 12)]
    # A first export into a new folder gets everything at once.
    assert sorted(await export(store, tmp_path / "new")) == sorted([("right", 1, 3, 1), first[1], ("right", 4, 5, 12)])


async def test_two_exports_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with open_export(tmp_path), pytest.raises(ExportIsBusy, match="another export"), open_export(tmp_path):
        pass


async def test_an_export_that_fails_leaves_no_trace(tmp_path: Path) -> None:
    store = MemoryStore().history
    await store.take_shard(0)
    with pytest.raises(NothingToExport, match="no workflows"):
        await export(store, tmp_path)
    assert files(tmp_path) == [".export", "lock"]
