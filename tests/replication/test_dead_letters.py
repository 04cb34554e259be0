"""Dead letters: kept once each, listed in order, got again or let go, as operators ask."""

import pytest

from fairlead.history.stream_messages import ReplicationTask
from fairlead.replication.dead_letters import DeadLetter, DeadLetters, letter_of
from fairlead.replication.service import (
    LIST,
    MERGE,
    PURGE,
    STATUS,
    DoneWithLetters,
    LettersRequest,
    StatusRequest,
)
from fairlead.storage.history_contract import HistoryStore
from tests.replication.clusters import SHARED, OneCluster


def letter(task_id: int, *, source: str = "a", shard_id: int = 0, error: str = "no") -> DeadLetter:
    task = ReplicationTask(task_id, 0, "n", "w", "r", 1, 2, ((2, 1),), b"")
    return letter_of(task, source=source, shard_id=shard_id, error=error, attempts=1, dead_ns=5)


async def test_letters_are_kept_once_and_listed_by_source_shard_and_task(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.replication.dead_letters.PAGE_MAX", 2)
    letters = DeadLetters(store)
    kept = [letter(7), letter(300), letter(9, shard_id=1), letter(4, shard_id=11), letter(1, source="b")]
    for one in reversed(kept):
        assert await letters.put(one)
    assert [one async for one in letters.all()] == kept
    assert [one async for one in letters.all(source="a", shard_id=1)] == kept[2:3]
    assert await letters.count(source="a", shard_id=0) == 2
    again = letter(7, error="still not")
    assert not await letters.put(again)
    assert (await letters.page())[0] == again
    assert await letters.remove(again)
    assert not await letters.remove(again)
    assert [one async for one in letters.all()] == kept[1:]


async def test_a_letter_that_can_not_be_read_is_told_and_holds_up_no_other(store: HistoryStore) -> None:
    letters = DeadLetters(store)
    await store.write_metadata(letter(1).key, b"?", expected_version=0)
    await letters.put(letter(2))
    assert await letters.count(source="a", shard_id=0) == 2
    unreadable, readable = await letters.page()
    assert readable == letter(2)
    assert (unreadable.source, unreadable.shard_id, unreadable.task_id) == ("a", 0, 1)
    assert "replication/dlq/a/000000/00000000000000000001 can't be read" in unreadable.error
    b = await OneCluster("b", ["a"], store=store).open()
    try:
        merged = await b.caller.call(b.host, MERGE, LettersRequest(task_ids=(1,)), timeout_s=5)
        assert (merged.done, merged.failures) == (0, ((1, unreadable.error),))
        kept = await store.read_metadata(unreadable.key)
        assert kept is not None
        assert kept.payload == b"?"
        assert await b.caller.call(b.host, PURGE, LettersRequest("a"), timeout_s=5) == DoneWithLetters(2)
    finally:
        await b.close()
    assert await letters.page() == []


async def test_operators_list_merge_and_purge(store: HistoryStore) -> None:
    a = await OneCluster("a", ["b"]).open()
    b = await OneCluster("b", ["a"], store=store).open()
    try:
        b.addresses["a"] = a.address
        run_id = await a.begin("w-1")
        events = await a.events("w-1")
        items = ((len(events), 1),)
        task = ReplicationTask(17, 0, SHARED.id, "w-1", run_id, 1, len(events), items, b"")
        good = letter_of(task, source="a", shard_id=0, error="for now", attempts=10, dead_ns=1)
        gone = letter(18)
        stranger = letter(19, source="x")
        for one in (good, gone, stranger):
            await b.replication.letters.put(one)
        listed = await b.caller.call(b.host, LIST, LettersRequest(), timeout_s=5)
        assert listed.letters == (good, gone, stranger)
        first = await b.caller.call(b.host, LIST, LettersRequest("a", limit=1), timeout_s=5)
        assert (first.letters, first.next_after) == ((good,), good.key)
        merged = await b.caller.call(b.host, MERGE, LettersRequest(), timeout_s=10)
        assert merged.done == 1
        assert await b.events("w-1") == events
        errors = dict(merged.failures)
        assert set(errors) == {18, 19}
        assert errors[19].startswith("UnknownSource: cluster 'x' is none that 'b' is connected with")
        left = await b.replication.letters.page()
        assert [(one.task_id, one.attempts) for one in left] == [(18, 2), (19, 2)]
        assert left[0].error == errors[18]
        purge = LettersRequest(task_ids=(19,))
        assert await b.caller.call(b.host, PURGE, purge, timeout_s=5) == DoneWithLetters(1)
        assert await b.caller.call(b.host, PURGE, LettersRequest("a"), timeout_s=5) == DoneWithLetters(1)
        assert await b.replication.letters.page() == []
        status = await b.caller.call(b.host, STATUS, StatusRequest(), timeout_s=5)
        assert (status.here, status.streams) == ("b", ())
    finally:
        await b.close()
        await a.close()
