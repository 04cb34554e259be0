"""A shard's stream with several readers: each gets its rows in order, and rows are kept until all have them."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead.api.errors import OutOfRange
from fairlead.api.namespaces import Namespace
from fairlead.history.messages.progress import decode_progress
from fairlead.history.shard.journal import READERS_MAX, HistoryJournal
from fairlead.history.shard.stream import REPLICATION
from fairlead.history.shard.stream_rows import Streamed, UnreadableRow
from fairlead.journal import Journal, read_segment
from fairlead.settings import DynamicSettings
from fairlead.settings.static.journal import JournalPayloads
from fairlead.storage.commit import Commit, TaskWrite
from fairlead.storage.history import HistoryStore, LeaseLost, RunKey
from fairlead.telemetry import Metrics
from tests.patience import step as event_loop_turns
from tests.replication.streams import NAMESPACE_ID, SHARD, Owner


async def settled(owner: Owner) -> list[int]:
    """The rows that are left after acknowledged ones are deleted."""
    await event_loop_turns()
    # Only this task deletes rows after an acknowledgement; it ends when no row is left to delete.
    deleting = owner.stream._deleting
    if deleting is not None:
        await deleting
    return await owner.left()


@pytest.fixture(autouse=True)
def deletes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.history.shard.stream.DELETE_S", 0.001)


async def test_each_cluster_reads_from_its_own_position(store: HistoryStore) -> None:
    owner = await Owner(store, remotes=["b", "c"]).open()
    ids = [await owner.commit(f"w{number % 3}") for number in range(9)]
    assert await owner.read("b", rows=4) == (ids[:4], ids[3])
    assert await owner.read("c", rows=2) == (ids[:2], ids[1])
    assert await owner.read("b", ids[3]) == (ids[4:], ids[-1])
    assert await owner.read("c", ids[1]) == (ids[2:], ids[-1])
    await owner.stream.close(is_lost=False)


async def test_a_row_is_deleted_once_every_cluster_has_acknowledged_it(store: HistoryStore) -> None:
    owner = await Owner(store, remotes=["b", "c"]).open()
    ids = [await owner.commit() for _ in range(6)]
    owner.stream.acknowledge("b", ids[3])
    assert await settled(owner) == ids
    owner.stream.acknowledge("c", ids[1])
    assert await settled(owner) == ids[2:]
    # A removed cluster is no longer waited for.
    owner.remotes = frozenset(["b"])
    owner.stream.acknowledge("b", ids[4])
    assert await settled(owner) == ids[5:]
    await owner.stream.close(is_lost=False)


async def test_a_page_is_bounded_in_rows_and_bytes_but_has_at_least_one_row(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    ids = [await owner.commit(f"w{number}", padding=1000) for number in range(6)]
    assert (await owner.read(size=2500))[0] == ids[:2]
    assert (await owner.read(size=1))[0] == ids[:1]
    assert (await owner.read(rows=3))[0] == ids[:3]
    # The same holds when the rows are read from the store.
    again = await Owner(store).open()
    assert (await again.read(size=2500))[0] == ids[:2]
    assert (await again.read(size=1))[0] == ids[:1]
    assert (await again.read(rows=3))[0] == ids[:3]
    await owner.stream.close(is_lost=True)
    await again.stream.close(is_lost=True)


async def test_rows_after_a_commit_in_flight_are_not_read(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    slow = asyncio.create_task(owner.commit("slow", after_s=0.05))
    await asyncio.sleep(0)
    later = await owner.commit("quick")
    assert await owner.read() == ([], later - 2)
    # A waiting reader wakes when the row that blocks it is written.
    assert await owner.read(wait_s=5.0) == ([later - 1, later], later)
    await slow
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_row_blocked_by_another_clusters_commit_is_sent_when_that_ends(
    store: HistoryStore, fails: bool
) -> None:
    owner = await Owner(store).open()
    slow = asyncio.create_task(owner.commit("slow", after_s=0.05, origin="b", fails=fails))
    await asyncio.sleep(0)
    ours = await owner.commit("quick")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await owner.read(wait_s=5.0) == ([ours], ours)
    # The reader was woken before its timeout.
    assert loop.time() - began_s < 4.0
    await slow
    await owner.stream.close(is_lost=False)


async def test_rows_of_other_clusters_and_local_namespaces_are_not_sent_and_block_nothing(
    store: HistoryStore,
) -> None:
    owner = await Owner(store).open()
    first = await owner.commit("w1")
    foreign = [await owner.commit("w2", origin="b"), await owner.commit("w3", version=0)]
    assert await owner.read() == ([first], foreign[-1])
    owner.stream.acknowledge("b", first)
    # Only the first was acknowledged, but the rest is not for this cluster.
    assert await settled(owner) == []
    assert owner.stream.acks == {"b": foreign[-1]}
    await owner.stream.close(is_lost=False)


async def test_a_waiting_reader_gets_its_next_row_or_an_empty_page_at_the_timeout(
    store: HistoryStore,
) -> None:
    owner = await Owner(store).open()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert (await owner.read(wait_s=0.05))[0] == []
    assert loop.time() - began_s >= 0.05
    waiting = asyncio.create_task(owner.read(wait_s=5.0))
    # The reader usually waits by now; if not, the result must be the same.
    await asyncio.sleep(0.01)
    await owner.commit("theirs", origin="b")
    # Only time can show that this row does not wake the reader.
    await asyncio.sleep(0.01)
    assert not waiting.done()
    ours = await owner.commit("ours")
    assert (await waiting)[0] == [ours]
    # Readers of a released shard don't wait.
    waiting = asyncio.create_task(owner.read(after_id=ours, wait_s=5.0))
    # The reader usually waits by now; if not, the result must be the same.
    await asyncio.sleep(0.01)
    await owner.stream.close(is_lost=False)
    assert (await asyncio.wait_for(waiting, 1.0))[0] == []


async def test_memory_is_bounded_even_if_a_cluster_does_not_read(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.history.shard.stream.RECENT_BYTES_MAX", 20_000)
    monkeypatch.setattr("fairlead.history.shard.stream.RECENT_BYTES_A_SHARD_MIN", 0)
    owner = await Owner(store, remotes=["b", "away"]).open()
    ids = []
    for number in range(100):
        ids.append(await owner.commit(f"w{number % 7}", padding=1000))
        assert owner.stream._recent.bytes <= 20_000
    found: list[int] = []
    place = -1
    while len(found) < len(ids):
        page, place = await owner.read("b", place, rows=9)
        found += page
    assert found == ids
    # The latest rows are still in memory.
    assert 0 < len(owner.stream._recent) < 20
    await owner.stream.close(is_lost=False)


async def test_the_next_owner_sends_the_remaining_rows_with_the_same_ids(store: HistoryStore) -> None:
    first = await Owner(store).open()
    ids = [await first.commit(f"w{number % 2}") for number in range(5)]
    first.stream.acknowledge("b", ids[1])
    assert await settled(first) == ids[2:]
    await first.stream.close(is_lost=True)
    second = await Owner(store).open()
    found, through = await second.read(after_id=ids[1])
    assert found == ids[2:]
    assert through >= ids[-1]
    # This owner has no acknowledgement yet.
    assert await settled(second) == ids[2:]
    second.stream.acknowledge("b", through)
    assert await settled(second) == []
    await second.stream.close(is_lost=False)


async def test_payloads_are_the_same_from_memory_and_from_the_store(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    for number in range(20):
        await owner.commit(f"w{number % 3}", padding=number)
    from_memory, _ = await owner.stream.read("b", -1, rows_max=100, bytes_max=1 << 20, wait_s=0)
    again = await Owner(store).open()
    from_store, _ = await again.stream.read("b", -1, rows_max=100, bytes_max=1 << 20, wait_s=0)
    assert from_store == from_memory
    assert len(from_store) == 20
    await owner.stream.close(is_lost=True)
    await again.stream.close(is_lost=True)


async def test_the_row_of_a_deleted_run_is_sent_without_events(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    await owner.commit("gone")
    await owner.commit("kept")
    await store.delete_run(
        SHARD, owner.range_id, RunKey(NAMESPACE_ID, "gone", "run-gone"), branches=[("run-gone", "branch")]
    )
    await owner.stream.close(is_lost=True)
    again = await Owner(store).open()
    rows, _ = await again.stream.read("b", -1, rows_max=100, bytes_max=1 << 20, wait_s=0)
    assert [(streamed.row.workflow_id, streamed.payload is None) for streamed in rows] == [
        ("gone", True),
        ("kept", False),
    ]
    await again.stream.close(is_lost=True)


async def test_progress_is_sent_once_a_page_at_its_last_position_with_its_current_state(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    await owner.commit("w")
    last = [await owner.progress("w", attempt) for attempt in range(2, 6)][-1]
    other = await owner.commit("other")
    for reader in (owner, await Owner(store).open()):
        rows, through = await reader.stream.read("b", -1, rows_max=100, bytes_max=1 << 20, wait_s=0)
        assert [streamed.task_id for streamed in rows] == [owner.committed[0], last, other]
        assert through >= other
        progress = rows[1]
        assert progress.payload is not None
        assert [(one[:2], one[2].attempt) for one in decode_progress(progress.payload)] == [((1, 1), 5)]
        await reader.stream.close(is_lost=True)


async def test_the_lag_is_counted_in_rows_for_other_clusters(store: HistoryStore) -> None:
    owner = await Owner(store).open()
    ids = [await owner.commit(f"w{number}") for number in range(10)]
    await owner.commit("theirs", origin="b")
    assert await owner.stream.count_behind(-1) == 10
    assert await owner.stream.count_behind(ids[3]) == 6
    assert await owner.stream.count_behind(ids[-1]) == 0
    await owner.stream.close(is_lost=True)
    again = await Owner(store).open()
    await again.commit("more")
    assert await again.stream.count_behind(ids[3]) == 6 + 1 + 1
    await again.stream.close(is_lost=True)


def test_a_namespace_is_streamed_only_to_clusters_that_share_it() -> None:
    stream = Owner(None, remotes=["b"]).stream  # type: ignore[arg-type]
    local = Namespace(id="1", name="local", retention_ns=1)
    shared = Namespace(id="2", name="shared", retention_ns=1, is_global=True, clusters=("a", "b"))
    with_others = Namespace(id="3", name="others", retention_ns=1, is_global=True, clusters=("a", "c"))
    assert [stream.wants(one) for one in (local, shared, with_others)] == [False, True, False]


async def test_the_journal_gets_every_row_once_even_if_rows_wait_for_a_cluster_over_a_restart(
    store: HistoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.history.shard.stream.NOTE_S", 0.0)
    settings = DynamicSettings(overrides={"journal.flushInterval": "10ms"})
    folder = tmp_path / "journal"
    journal = await Journal.open(folder, cluster="a", host="h", settings=settings, metrics=Metrics())
    kept = HistoryJournal(journal, payloads=JournalPayloads.NONE)
    first = await Owner(store, journal=kept).open()
    ids = [
        await first.commit("w1"),
        await first.commit("w2", origin="b"),
        await first.commit("w3", version=0),
        await first.progress("w1", 2),
    ]
    await first.stream.close(is_lost=False)
    # Cluster b has not acknowledged anything.
    assert await first.left() == ids
    second = await Owner(store, journal=kept).open()
    more = await second.commit("w4")
    await second.stream.close(is_lost=False)
    await journal.close()
    found = [record["task_id"] for path in sorted(folder.glob("a/history.*")) for record in read_segment(path)]
    assert found == [*ids[:3], more]
    again = await Owner(store).open()
    assert (await again.read())[0] == [ids[0], ids[3], more]
    await again.stream.close(is_lost=True)


async def test_every_row_is_journaled_despite_any_failures(
    store: HistoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.history.shard.stream.RETRY_FIRST_S", 0.01)
    settings = DynamicSettings(overrides={"journal.flushInterval": "10ms"})
    journal = await Journal.open(tmp_path / "journal", cluster="a", host="h", settings=settings, metrics=Metrics())
    kept = HistoryJournal(journal, payloads=JournalPayloads.NONE)
    write, tried = kept.write, asyncio.Event()

    async def fail(_rows: Sequence[Streamed]) -> None:
        tried.set()
        raise RuntimeError("a bug")

    monkeypatch.setattr(kept, "write", fail)
    owner = await Owner(store, remotes=(), journal=kept).open()
    await owner.commit()
    await asyncio.wait_for(tried.wait(), 5)
    monkeypatch.setattr(kept, "write", write)
    async with asyncio.timeout(5):
        while await owner.left():  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.01)
    await owner.stream.close(is_lost=False)
    await journal.close()


async def test_an_unreadable_row_is_reported_as_such(store: HistoryStore) -> None:
    former = await Owner(store).open()
    await former.stream.close(is_lost=True)
    await store.commit(SHARD, former.range_id, Commit(tasks=[TaskWrite(REPLICATION, 0, former.next_id, b"\xc1")]))
    owner = await Owner(store).open()
    with pytest.raises(UnreadableRow):
        await owner.read()
    await owner.stream.close(is_lost=False)


async def test_rows_that_are_not_journaled_yet_are_kept_even_if_every_cluster_has_them(
    store: HistoryStore, tmp_path: Path
) -> None:
    settings = DynamicSettings(overrides={"journal.flushInterval": "10ms"})
    journal = await Journal.open(tmp_path / "journal", cluster="a", host="h", settings=settings, metrics=Metrics())
    kept = HistoryJournal(journal, payloads=JournalPayloads.NONE)
    for _ in range(READERS_MAX):
        await kept.readers.acquire()
    owner = await Owner(store, journal=kept).open()
    ids = [await owner.commit(f"w{number}") for number in range(5)]
    owner.stream.acknowledge("b", ids[-1])
    assert await settled(owner) == ids
    kept.readers.release()
    await owner.stream.close(is_lost=False)
    assert await owner.left() == []
    await journal.close()


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(10))
async def test_each_cluster_gets_all_its_rows_in_order_despite_restarts_and_lost_responses(
    store: HistoryStore, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("fairlead.history.shard.stream.RECENT_ROWS_A_SHARD_MAX", chance.choice([1, 5, 5000]))
    got: dict[str, list[int]] = {"b": [], "c": []}
    places = dict.fromkeys(got, -1)
    ours: list[int] = []

    async def follow(owner: Owner, cluster: str, is_over: asyncio.Event) -> None:
        while not is_over.is_set() or places[cluster] < owner.stream.last_id:
            found, through = await owner.read(
                cluster,
                places[cluster],
                rows=chance.choice([1, 3, 100]),
                size=chance.choice([1, 200, 1 << 20]),
                wait_s=chance.choice([0, 0.005, 0.02]),
            )
            # The response may be lost; the reader then asks again.
            if chance.random() < 0.8:
                got[cluster] += found
                places[cluster] = through
                if chance.random() < 0.5:
                    owner.stream.acknowledge(cluster, through)
            await asyncio.sleep(0)

    for number in range(chance.randint(1, 3)):
        owner = await Owner(store, remotes=got).open()
        is_over = asyncio.Event()
        followers = [asyncio.create_task(follow(owner, cluster, is_over)) for cluster in got]
        commits = []
        for step in range(50):
            commit = owner.commit(
                f"w{number}-{step}",
                after_s=chance.expovariate(300),
                fails=chance.random() < 0.1,
                origin=chance.choice(["", "", "b"]),
            )
            commits.append(asyncio.create_task(commit))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.expovariate(500))
        await asyncio.gather(*commits)
        is_over.set()
        await asyncio.gather(*followers)
        await owner.stream.close(is_lost=chance.random() < 0.5)
        ours += sorted(owner.ours)
    assert got == {"b": ours, "c": ours}, f"seed {seed}"


async def test_an_acknowledgement_of_an_unused_id_is_refused_by_the_owner_only(store: HistoryStore) -> None:
    former = await Owner(store).open()
    await former.commit()
    await former.stream.check_given(former.ours[-1])
    with pytest.raises(OutOfRange):
        await former.stream.check_given(former.next_id)
    present = await Owner(store).open()
    given = await present.commit("other")
    # A former owner can't know which rows were written since, and raises an error.
    with pytest.raises(LeaseLost):
        await former.stream.check_given(given)
    assert former.is_lost
    await present.stream.check_given(given)
    await present.stream.close(is_lost=False)
    await former.stream.close(is_lost=True)
