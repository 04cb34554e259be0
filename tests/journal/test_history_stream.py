"""The stream of a shard's events: commits in any order are journaled in order, and once."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import (
    History,
    HistoryEvent,
    WorkflowExecutionSignaledEventAttributes,
)

from fairlead.history.ndc.reapply import key_of
from fairlead.history.shard import stream
from fairlead.history.shard.journal import HistoryJournal, event_digest, to_record
from fairlead.history.shard.stream import REPLICATION, ShardStream
from fairlead.history.shard.stream_rows import Streamed, StreamRow
from fairlead.journal import HistoryRecord, Journal, read_segment
from fairlead.settings import DynamicSettings
from fairlead.settings.static.journal import JournalPayloads
from fairlead.storage.commit import BatchWrite, Commit, RunWrite
from fairlead.storage.history import LeaseLost, RunKey, TaskKey
from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics
from tests.patience import PATIENCE_S

SHARD = 1


class Owner:
    """A shard owner that commits empty batches with consecutive task ids."""

    def __init__(self, store: MemoryHistory, journal: HistoryJournal) -> None:
        self.store = store
        self.range_id = 0
        self.next_id = 0
        self.is_lost = False
        self.committed: list[int] = []
        self.stream = ShardStream(
            SHARD,
            store=store,
            journal=journal,
            range_id=lambda: self.range_id,
            next_id=lambda: self.next_id,
            on_lost=self._lose,
            shards=1,
        )

    def _lose(self) -> None:
        self.is_lost = True

    async def open(self) -> None:
        lease = await self.store.take_shard(SHARD)
        self.range_id = lease.range_id
        self.next_id = lease.range_id << 24
        self.stream.open(lease.levels.get(REPLICATION))

    async def commit(self, *, after_s: float = 0.0, fails: bool = False) -> int:
        """Reserve a row at once, and commit it `after_s` seconds later."""
        task_id = self.next_id
        self.next_id += 1
        payload = History(events=[HistoryEvent(event_id=1, task_id=task_id)]).SerializeToString()
        run_id = f"run-{task_id}"
        row = StreamRow("ns", "w", run_id, run_id, "branch", 1, 1, 0, ((1, 0),), 1, "", task_id)
        task = self.stream.assign(task_id, row, payload)
        await asyncio.sleep(after_s)
        if fails:
            self.stream.not_written([task_id])
            return task_id
        commit = Commit(
            runs=[RunWrite("ns", "w", run_id, b"", None, 2, 1, 0)],
            batches=[BatchWrite(run_id, "branch", 1, 1, 0, task_id, payload)],
            tasks=[task],
        )
        await self.store.commit(SHARD, self.range_id, commit)
        self.committed.append(task_id)
        self.stream.written([task_id])
        return task_id


class World:
    def __init__(self, folder: Path, journal: Journal) -> None:
        self.store = MemoryHistory()
        self.journal = HistoryJournal(journal, payloads=JournalPayloads.NONE)
        self._folder = folder

    async def owner(self) -> Owner:
        owner = Owner(self.store, self.journal)
        await owner.open()
        return owner

    def records(self) -> list[dict[str, Any]]:
        paths = sorted(self._folder.glob("c/history.*"))
        return [record for path in paths for record in read_segment(path)]

    def task_ids(self) -> list[int]:
        return [record["task_id"] for record in self.records()]

    async def rows_left(self) -> int:
        return len(await self.store.read_tasks(SHARD, REPLICATION, after=TaskKey(-1, -1), until_ns=None, limit=100_000))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    settings = DynamicSettings(overrides={"journal.flushInterval": "10ms"})
    journal = await Journal.open(folder, cluster="c", host="h", settings=settings, metrics=Metrics())
    try:
        yield World(folder, journal)
    finally:
        await journal.close()


async def test_a_committed_row_is_journaled_and_then_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        owner = await here.owner()
        for _ in range(20):
            await owner.commit()
        await owner.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    assert here.task_ids() == owner.committed
    assert all(record["event_types"] == [0] for record in here.records())


async def test_rows_are_journaled_in_task_id_order_even_if_a_later_one_is_committed_first(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        owner = await here.owner()
        slow = asyncio.create_task(owner.commit(after_s=0.3))
        await asyncio.sleep(0)
        later = await owner.commit()
        # Only time can show that the later row waits for the earlier one.
        await asyncio.sleep(0.1)
        assert here.task_ids() == []
        first = await slow
        await owner.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    assert here.task_ids() == [first, later]


async def test_a_failed_commit_does_not_block_later_rows(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        owner = await here.owner()
        failing = asyncio.create_task(owner.commit(after_s=0.05, fails=True))
        await asyncio.sleep(0)
        later = await owner.commit()
        await failing
        await owner.stream.close(is_lost=False)
    assert here.task_ids() == [later]


async def test_a_row_that_cannot_be_encoded_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_FIRST_S", 0.01)
    failures = iter(range(3))

    def make(streamed: Streamed) -> HistoryRecord:
        if next(failures, None) is not None:
            raise ValueError("not now")
        return to_record(streamed, payloads=JournalPayloads.NONE)

    async with world(tmp_path) as here:
        here.journal._queue._make = make
        owner = await here.owner()
        for _ in range(3):
            await owner.commit()
        await owner.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    assert here.task_ids() == owner.committed


async def test_an_unexpected_error_of_the_journal_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "RETRY_FIRST_S", 0.01)
    failures = iter(range(3))

    class Failing(HistoryJournal):
        async def write(self, rows: Sequence[Streamed]) -> None:
            if next(failures, None) is not None:
                raise KeyError("unexpected")
            await super().write(rows)

    async with world(tmp_path) as here:
        here.journal.__class__ = Failing
        owner = await here.owner()
        await owner.commit()
        await owner.stream.close(is_lost=False)
    assert here.task_ids() == owner.committed


async def test_rows_that_do_not_fit_into_memory_are_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.history.shard.stream.RECENT_ROWS_A_SHARD_MAX", 3)
    monkeypatch.setattr("fairlead.history.shard.stream.ROWS_AT_ONCE_MAX", 7)
    async with world(tmp_path) as here:
        owner = await here.owner()
        for _ in range(100):
            await owner.commit()
            assert len(owner.stream._recent) <= 3
        await owner.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    assert here.task_ids() == owner.committed


async def test_the_next_owner_journals_the_remaining_rows_with_the_same_ids(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first = await here.owner()
        for _ in range(5):
            await first.commit()
        # Close as after a crash: no more rows are read.
        await first.stream.close(is_lost=True)
        second = await here.owner()
        await second.commit()
        await second.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    assert sorted(set(here.task_ids())) == first.committed + second.committed


async def test_an_owner_that_has_lost_the_shard_deletes_nothing_and_notices_the_loss(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first = await here.owner()
        second = await here.owner()
        await second.commit()
        await second.stream.close(is_lost=True)
        with pytest.raises(LeaseLost):
            await first.commit()
        # Make the old owner read the row of the new one; it must not delete it.
        first.next_id = second.next_id
        first.stream._under_way.clear()
        first.stream._recent.from_id = first.next_id
        first.stream._wake.set()
        async with asyncio.timeout(5):
            while not first.is_lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert await here.rows_left() == 1
        await first.stream.close(is_lost=True)


async def test_a_row_of_a_deleted_run_is_journaled_without_events(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first = await here.owner()
        slow = asyncio.create_task(first.commit(after_s=0.2))
        await asyncio.sleep(0)
        task_id = await first.commit()
        await first.stream.close(is_lost=True)
        await here.store.delete_run(
            SHARD, first.range_id, RunKey("ns", "w", f"run-{task_id}"), branches=[(f"run-{task_id}", "branch")]
        )
        await slow
        second = await here.owner()
        await second.stream.close(is_lost=False)
    kept, deleted = here.records()
    assert kept["event_types"] == [0]
    assert deleted["task_id"] == task_id
    assert "event_types" not in deleted


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(8))
async def test_all_committed_rows_are_journaled_in_order_despite_failures_and_crashes(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    # A closing owner has enough time to journal the remaining rows, even on a busy machine.
    monkeypatch.setattr("fairlead.history.shard.stream.LAST_ROWS_S_MAX", PATIENCE_S)
    monkeypatch.setattr("fairlead.history.shard.stream.RECENT_ROWS_A_SHARD_MAX", chance.choice([1, 5, 5000]))
    monkeypatch.setattr("fairlead.history.shard.stream.ROWS_AT_ONCE_MAX", chance.choice([1, 3, 2000]))
    monkeypatch.setattr("fairlead.history.shard.stream.BYTES_AT_ONCE_MAX", chance.choice([1, 50, 1 << 20]))
    committed: list[int] = []
    is_ever_lost = False
    async with world(tmp_path) as here:
        for _ in range(chance.randint(1, 3)):
            owner = await here.owner()
            commits = []
            for _ in range(60):
                commits.append(
                    asyncio.create_task(owner.commit(after_s=chance.expovariate(200), fails=chance.random() < 0.1))
                )
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.expovariate(500))
            await asyncio.gather(*commits)
            is_lost = chance.random() < 0.5
            await owner.stream.close(is_lost=is_lost)
            is_ever_lost |= is_lost
            committed += owner.committed
        last = await here.owner()
        await last.stream.close(is_lost=False)
        assert await here.rows_left() == 0
    found = here.task_ids()
    assert list(dict.fromkeys(found)) == sorted(committed), f"seed {seed}"
    # Only the loss of an owner may cause duplicates.
    assert is_ever_lost or len(found) == len(committed), f"seed {seed}"


def signaled(**attributes: Any) -> HistoryEvent:
    return HistoryEvent(
        event_id=3,
        task_id=77,
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        workflow_execution_signaled_event_attributes=WorkflowExecutionSignaledEventAttributes(
            signal_name="stop", **attributes
        ),
    )


ROW = StreamRow("ns", "w", "r", "t", "b", 3, 3, 21, ((2, 11), (3, 21)), 2, "next", 5)


def test_a_record_describes_its_batch() -> None:
    event = signaled(identity="me")
    payload = History(events=[event]).SerializeToString()
    record = to_record(Streamed(9, ROW, payload), payloads=JournalPayloads.WHOLE)
    assert (record.task_id, record.version, record.status, record.new_run_id) == (9, 21, 2, "next")
    assert [(item.event_id, item.version) for item in record.items] == [(2, 11), (3, 21)]
    assert record.event_types == [26]
    assert record.event_digests == [event_digest(event)]
    assert base64.b64decode(record.payload or "") == payload
    assert to_record(Streamed(9, ROW, payload), payloads=JournalPayloads.NONE).payload is None


def test_an_event_digest_does_not_depend_on_the_cluster_or_on_map_order() -> None:
    fields = {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
    one = signaled(input=Payloads(payloads=[Payload(metadata=fields)]))
    other = signaled(input=Payloads(payloads=[Payload(metadata=dict(reversed(fields.items())))]))
    other.task_id = 12
    assert event_digest(one) == event_digest(other)
    assert len(event_digest(one)) == 16
    assert one.task_id == 77
    assert event_digest(one) != event_digest(signaled())


def test_a_signal_is_identified_by_its_request_id_or_by_its_first_event() -> None:
    def signals(event: HistoryEvent) -> list[str] | None:
        streamed = Streamed(9, ROW, History(events=[event]).SerializeToString())
        return to_record(streamed, payloads=JournalPayloads.NONE).signals

    assert signals(signaled(request_id="once")) == ["once"]
    first = signaled()
    assert signals(first) == [f"r:{first.event_id}:{first.version}"]
    # A reapplied signal has the same identity.
    assert signals(signaled(request_id=key_of(first, "r").removeprefix("signal/"))) == signals(first)
    assert signals(HistoryEvent(event_id=1)) is None
