"""Dead letters: stored once each, listed in order, merged or purged by operators."""

import pytest

from fairlead.history.messages.stream import ReplicationTask
from fairlead.replication.dead_letters import DeadLetter, DeadLetters, dead_letter_of
from fairlead.replication.service import (
    LIST,
    MERGE,
    PURGE,
    STATUS,
    DeadLettersRequest,
    ProcessedDeadLetters,
    StatusRequest,
)
from fairlead.storage.history import HistoryStore
from tests.replication.clusters import GLOBAL_NAMESPACE, OneCluster


def dead_letter(task_id: int, *, source: str = "a", shard_id: int = 0, error: str = "no") -> DeadLetter:
    task = ReplicationTask(task_id, 0, "n", "w", "r", 1, 2, ((2, 1),), b"")
    return dead_letter_of(task, source=source, shard_id=shard_id, error=error, attempts=1, dead_ns=5)


async def test_dead_letters_are_stored_once_and_listed_by_source_shard_and_task(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.replication.dead_letters.PAGE_MAX", 2)
    dead_letters = DeadLetters(store)
    kept = [
        dead_letter(7),
        dead_letter(300),
        dead_letter(9, shard_id=1),
        dead_letter(4, shard_id=11),
        dead_letter(1, source="b"),
    ]
    for one in reversed(kept):
        assert await dead_letters.put(one)
    assert [one async for one in dead_letters.all()] == kept
    assert [one async for one in dead_letters.all(source="a", shard_id=1)] == kept[2:3]
    assert await dead_letters.count(source="a", shard_id=0) == 2
    again = dead_letter(7, error="still not")
    assert not await dead_letters.put(again)
    assert (await dead_letters.page())[0] == again
    assert await dead_letters.remove(again)
    assert not await dead_letters.remove(again)
    assert [one async for one in dead_letters.all()] == kept[1:]


async def test_an_unreadable_dead_letter_is_reported_and_blocks_no_other(store: HistoryStore) -> None:
    dead_letters = DeadLetters(store)
    await store.write_metadata(dead_letter(1).key, b"?", expected_version=0)
    await dead_letters.put(dead_letter(2))
    assert await dead_letters.count(source="a", shard_id=0) == 2
    unreadable, readable = await dead_letters.page()
    assert readable == dead_letter(2)
    assert (unreadable.source, unreadable.shard_id, unreadable.task_id) == ("a", 0, 1)
    assert "replication/dlq/a/000000/00000000000000000001 can't be decoded" in unreadable.error
    b = await OneCluster("b", ["a"], store=store).open()
    try:
        merged = await b.caller.call(b.host, MERGE, DeadLettersRequest(task_ids=(1,)), timeout_s=5)
        assert (merged.done, merged.failures) == (0, ((1, unreadable.error),))
        kept = await store.read_metadata(unreadable.key)
        assert kept is not None
        assert kept.payload == b"?"
        assert await b.caller.call(b.host, PURGE, DeadLettersRequest("a"), timeout_s=5) == ProcessedDeadLetters(2)
    finally:
        await b.close()
    assert await dead_letters.page() == []


async def test_operators_list_merge_and_purge_dead_letters(store: HistoryStore) -> None:
    """FL-69."""
    a = await OneCluster("a", ["b"]).open()
    b = await OneCluster("b", ["a"], store=store).open()
    try:
        b.addresses["a"] = a.address
        run_id = await a.begin("w-1")
        events = await a.events("w-1")
        items = ((len(events), 1),)
        task = ReplicationTask(17, 0, GLOBAL_NAMESPACE.id, "w-1", run_id, 1, len(events), items, b"")
        good = dead_letter_of(task, source="a", shard_id=0, error="for now", attempts=10, dead_ns=1)
        gone = dead_letter(18)
        stranger = dead_letter(19, source="x")
        for one in (good, gone, stranger):
            await b.replication.dead_letters.put(one)
        listed = await b.caller.call(b.host, LIST, DeadLettersRequest(), timeout_s=5)
        assert listed.dead_letters == (good, gone, stranger)
        first = await b.caller.call(b.host, LIST, DeadLettersRequest("a", limit=1), timeout_s=5)
        assert (first.dead_letters, first.next_after) == ((good,), good.key)
        merged = await b.caller.call(b.host, MERGE, DeadLettersRequest(), timeout_s=10)
        assert merged.done == 1
        assert await b.events("w-1") == events
        errors = dict(merged.failures)
        assert set(errors) == {18, 19}
        assert errors[19].startswith("UnknownSource: cluster 'b' is not connected to 'x'")
        left = await b.replication.dead_letters.page()
        assert [(one.task_id, one.attempts) for one in left] == [(18, 2), (19, 2)]
        assert left[0].error == errors[18]
        purge = DeadLettersRequest(task_ids=(19,))
        assert await b.caller.call(b.host, PURGE, purge, timeout_s=5) == ProcessedDeadLetters(1)
        assert await b.caller.call(b.host, PURGE, DeadLettersRequest("a"), timeout_s=5) == ProcessedDeadLetters(1)
        assert await b.replication.dead_letters.page() == []
        status = await b.caller.call(b.host, STATUS, StatusRequest(), timeout_s=5)
        assert (status.here, status.streams) == ("b", ())
    finally:
        await b.close()
        await a.close()
