"""Pulling a stream: nothing is lost, failures block nothing else, and memory is bounded."""

import asyncio
import random

import msgspec
import pytest
from msgspec.structs import replace
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.api.error_details import namespace_not_found
from fairlead.core.errors import GiveUp, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.core.versions import MalformedBatch
from fairlead.history.messages.ndc import Outcome
from fairlead.history.messages.stream import PullRequest, PullResponse, ReadBranchResponse, ReplicationTask
from fairlead.history.shard.ownership import NotOwner
from fairlead.replication.applier import StillMissing
from fairlead.replication.cursors import Cursor, encode_cursor
from fairlead.replication.dead_letters import DeadLetter, DeadLetters
from fairlead.replication.lanes import TOGETHER_MAX
from fairlead.replication.messages import RemoteReadBranch
from fairlead.replication.puller import Stream
from fairlead.rpc.hosts.caller import CallLost, Unreachable
from fairlead.storage.history import HistoryStore, OutcomeUnknown, StoreUnavailable
from fairlead.storage.memory.history import MemoryHistory
from tests.replication.receivers import Pulling, Receiver, Source, until
from tests.replication.streams import NAMESPACE_ID, Owner

CURSOR = Stream("a", 0).cursor_key


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace intervals of seconds by milliseconds."""
    monkeypatch.setattr("fairlead.history.shard.stream.DELETE_S", 0.001)
    for name, value in {"ATTEMPT_S_MIN": 0.001, "RETRY_S_MIN": 0.001, "RETRY_S_MAX": 0.01, "BUSY_WAIT_S": 0.01}.items():
        monkeypatch.setattr(f"fairlead.replication.puller.{name}", value)


async def test_every_task_is_applied_and_those_of_a_workflow_in_order(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.latency_s = 0.001
    async with Pulling(Source(owner), receiver, store) as pulling:
        for number in range(200):
            await owner.commit(f"w{number % 20}")
        await until(lambda: sum(map(len, receiver.events.values())) == 200)
        assert all(events == list(range(1, 11)) for events in receiver.events.values())
        # Workflows are applied in parallel, up to the limit of concurrent calls.
        assert 4 <= receiver.at_once_max <= 16
        assert set(receiver.outcomes) == {Outcome.APPLIED}
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        status = pulling.puller.status()
        assert (status.lag_tasks, status.outstanding, status.dead_letters, status.error) == (0, 0, 0, "")
        assert sum(pulling.latency.read().counts) == 200
    await owner.stream.close(is_lost=False)


async def test_waiting_batches_of_a_run_are_applied_together(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    for number in range(3 * TOGETHER_MAX):
        await owner.commit(f"w{number % 2}")
        if number == TOGETHER_MAX:
            await owner.progress("w0", 2)
            await owner.progress("w1", 3)
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        assert all(events == list(range(1, 1 + 3 * TOGETHER_MAX // 2)) for events in receiver.events.values())
        # Two calls for each workflow's batches, and one for its progress.
        assert receiver.calls == 6
        assert sum(pulling.latency.read().counts) == 3 * TOGETHER_MAX + 2
    await owner.stream.close(is_lost=False)


async def test_batches_that_can_not_be_applied_together_are_applied_one_by_one(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    poison = [await owner.commit("w") for _ in range(10)][6]

    def fail(_workflow_id: str, event_id: int) -> None:
        if event_id == 7:
            raise MalformedBatch("mixed versions")

    receiver.on_event = fail
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        assert receiver.events["w"] == list(range(1, 7))
        dead_letters = await pulling.dead_letters.page()
        # The later batches need the failed one, and fetch it when they are replayed.
        assert [dead_letter.task_id for dead_letter in dead_letters][:1] == [poison]
        assert [dead_letter.first_event_id for dead_letter in dead_letters] == [7, 8, 9, 10]
    await owner.stream.close(is_lost=False)


async def test_acknowledged_rows_are_deleted_at_the_source_without_further_writes(
    store: HistoryStore,
) -> None:
    owner = await Owner(MemoryHistory()).open()
    async with Pulling(Source(owner), Receiver(), store):
        for number in range(20):
            await owner.commit(f"w{number}")
        async with asyncio.timeout(5):
            while await owner.left():  # noqa: ASYNC110 - the store has no event for it
                await asyncio.sleep(0.01)
        assert owner.stream.acks["b"] >= owner.stream.last_id
    await owner.stream.close(is_lost=False)


async def test_an_idle_stream_is_polled_rarely(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source = Source(owner)
    async with Pulling(source, Receiver(), store):
        await owner.commit()
        await until(lambda: bool(source.pulls) and source.pulls[-1].ack_id == owner.ours[0])
        asked = len(source.pulls)
        # Only time can show that no further pull comes: a busy stream pulls every 10 ms.
        await asyncio.sleep(0.1)
        assert len(source.pulls) <= asked + 1
    await owner.stream.close(is_lost=False)


async def test_a_restarted_receiver_continues_at_its_cursor(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    async with Pulling(source, receiver, store):
        for _ in range(5):
            await owner.commit()
        await until(lambda: receiver.events.get("w") == [1, 2, 3, 4, 5])
    for _ in range(5):
        await owner.commit()
    source.pulls.clear()
    async with Pulling(source, receiver, store):
        await until(lambda: receiver.events["w"] == list(range(1, 11)))
        assert source.pulls[0].after_id >= owner.ours[4]
        assert set(receiver.outcomes) == {Outcome.APPLIED}
    await owner.stream.close(is_lost=False)


async def test_a_killed_receiver_applies_again_what_it_had_not_acknowledged(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    # The second event is never finished: the cursor stays before it.
    blocked = asyncio.Event()

    def fail(workflow_id: str, _event_id: int) -> None:
        if workflow_id == "stuck" and not blocked.is_set():
            raise RetryLater("not now")

    receiver.on_event = fail
    await owner.commit("before")
    stuck = await owner.commit("stuck")
    for number in range(5):
        await owner.commit(f"after{number}")
    async with Pulling(source, receiver, store, attempts=10_000) as first:
        await until(lambda: len(receiver.events) == 6)
        assert first.puller.status().outstanding == 1
    stored = await store.read_metadata(CURSOR)
    assert stored is not None
    blocked.set()
    source.pulls.clear()
    async with Pulling(source, receiver, store):
        await until(lambda: "stuck" in receiver.events)
        assert source.pulls[0].after_id == stuck - 1
        await until(lambda: receiver.outcomes.count(Outcome.DUPLICATE) == 5)
    await owner.stream.close(is_lost=False)


async def test_lost_responses_and_an_unreachable_source_lose_nothing(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    chance = random.Random(5)
    async with Pulling(source, receiver, store) as pulling:
        for number in range(300):
            await owner.commit(f"w{number % 7}")
            source.loses += chance.random() < 0.1
            if number == 100:
                source.is_away = True
                await until(lambda: "does not answer" in pulling.puller.status().error)
            if number == 150:
                source.is_away = False
            await asyncio.sleep(0)
        await until(lambda: sum(map(len, receiver.events.values())) == 300)
        assert set(receiver.outcomes) == {Outcome.APPLIED}
        await until(lambda: not pulling.puller.status().error)
    await owner.stream.close(is_lost=False)


async def test_the_lag_of_an_interrupted_stream_grows(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.replication.puller.IDLE_WAIT_S", 0.02)
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    async with Pulling(source, receiver, store) as pulling:
        await owner.commit()
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        for _ in range(20):
            assert pulling.puller.status().lag_s == 0.0
            # Only time shows that the lag does not grow.
            await asyncio.sleep(0.01)
        source.is_away = True
        await until(lambda: pulling.puller.status().lag_s > 0.3)
        assert pulling.puller.status().outstanding == 0
        source.is_away = False
        await until(lambda: pulling.puller.status().lag_s == 0.0)
        # The lag also grows if the source's calls hang.
        monkeypatch.setattr("fairlead.replication.puller.LATE_S", 0.05)
        source.is_silent = True
        await until(lambda: pulling.puller.status().lag_s > 0.3)
        assert not pulling.puller.status().error
    await owner.stream.close(is_lost=False)


async def test_a_restarted_source_is_pulled_from_its_next_owner(store: HistoryStore) -> None:
    kept = MemoryHistory()
    first = await Owner(kept).open()
    source, receiver = Source(first), Receiver()
    async with Pulling(source, receiver, store):
        for number in range(30):
            await first.commit(f"w{number % 3}")
            if number == 15:
                source.is_away = True
        await first.stream.close(is_lost=True)
        source.owner = await Owner(kept).open()
        source.is_away = False
        await until(lambda: sum(map(len, receiver.events.values())) == 30)
        assert all(events == list(range(1, 11)) for events in receiver.events.values())
    await source.owner.stream.close(is_lost=False)


@pytest.mark.parametrize("is_set_up_anew", [True, False])
async def test_a_source_with_a_new_store_is_pulled_from_the_beginning(
    store: HistoryStore, is_set_up_anew: bool
) -> None:
    """The new store is empty or restored from a backup: known ids are used a second time."""
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    async with Pulling(source, receiver, store) as pulling:
        for number in range(5):
            await owner.commit(f"before-{number}")
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        source.is_away = True
        await owner.stream.close(is_lost=True)
        source.owner = await Owner(MemoryHistory()).open()
        source.source_id = "id-of-another" if is_set_up_anew else "id-a"
        for number in range(10 if is_set_up_anew else 3):
            await source.owner.commit(f"after-{number}")
        source.is_away = False
        wanted = 15 if is_set_up_anew else 8
        await until(lambda: len(receiver.events) == wanted)
        await until(lambda: pulling.puller.status().cursor >= source.owner.ours[-1])
        assert not pulling.puller.status().error
    stored = await store.read_metadata(CURSOR)
    assert stored is not None
    assert stored.payload == _place(pulling.puller.status().cursor, source.source_id)
    await source.owner.stream.close(is_lost=False)


async def test_received_rows_of_a_lost_store_are_applied_before_the_next_store_is_pulled(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    is_well = False

    def fail(workflow_id: str, _event_id: int) -> None:
        if workflow_id == "held" and not is_well:
            raise RetryLater("not now")

    receiver.on_event = fail
    async with Pulling(source, receiver, store, attempts=10_000) as pulling:
        held = await owner.commit("held")
        await until(lambda: pulling.puller.status().outstanding == 1)
        await owner.stream.close(is_lost=True)
        source.owner, source.source_id = await Owner(MemoryHistory()).open(), "id-of-another"
        # This task has the same id as the previous one.
        assert await source.owner.commit("next") == held
        # Only time can show that the next store is not pulled yet.
        await asyncio.sleep(0.05)
        assert list(receiver.events) == []
        is_well = True
        await until(lambda: receiver.events.keys() == {"held", "next"})
        assert pulling.room.bytes == 0
    await source.owner.stream.close(is_lost=False)


async def test_a_source_that_keeps_failing_is_polled_less_and_less_often(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source = Source(owner)
    source.is_stranger = True
    async with Pulling(source, Receiver(), store) as pulling:
        await until(lambda: "from its beginning" in pulling.puller.status().error)
        # Only time can show that the pulls become rarer: without a backoff, there would be hundreds.
        await asyncio.sleep(0.3)
        assert len(source.pulls) < 60
    await owner.stream.close(is_lost=False)


async def test_a_cursor_in_the_older_format_starts_from_the_beginning(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit() for _ in range(3)]
    receiver = Receiver()
    await store.write_metadata(CURSOR, msgspec.msgpack.encode(ids[-1]), expected_version=0)
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: receiver.events.get("w") == [1, 2, 3])
        await until(lambda: pulling.puller.status().cursor >= ids[-1])
    await owner.stream.close(is_lost=False)


async def test_a_gap_is_filled_with_exactly_the_missing_events(store: HistoryStore) -> None:
    """The beginning of the history is no longer in the stream."""
    kept = MemoryHistory()
    owner = await Owner(kept).open()
    ids = [await owner.commit("w", padding=100) for _ in range(8)]
    source, receiver = Source(owner), Receiver()
    receiver.events["w"] = [1, 2]
    await store.write_metadata(CURSOR, _place(ids[5]), expected_version=0)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: receiver.events["w"] == list(range(1, 9)))
        assert [(branch.from_event_id, branch.to_event_id) for branch in source.branches] == [(3, 7)]
        assert receiver.outcomes == [Outcome.GAP, *[Outcome.APPLIED] * 6]
        resent = pulling.metrics.snapshot().events
        assert {metric.name: series for metric, series in resent.items()}["replication_batches_resent"] == {("a",): 4}
    await owner.stream.close(is_lost=False)


async def test_a_gap_is_filled_page_by_page(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.replication.applier.LINE_BYTES_MAX", 250)
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit("w", padding=100) for _ in range(8)]
    source, receiver = Source(owner), Receiver()
    await store.write_metadata(CURSOR, _place(ids[6]), expected_version=0)
    async with Pulling(source, receiver, store):
        await until(lambda: receiver.events.get("w") == list(range(1, 9)))
        assert [branch.from_event_id for branch in source.branches] == [1, 3, 5, 7]
        assert {branch.to_event_id for branch in source.branches} == {8}
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize("failure", [MalformedBatch("mixed versions"), RuntimeError("a bug"), RetryLater("never")])
async def test_a_task_that_can_not_be_applied_becomes_a_dead_letter_and_blocks_no_other(
    store: HistoryStore, failure: Exception
) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()

    def fail(workflow_id: str, _event_id: int) -> None:
        if workflow_id == "poison":
            raise failure

    receiver.on_event = fail
    poison = await owner.commit("poison")
    async with Pulling(Source(owner), receiver, store) as pulling:
        for number in range(50):
            await owner.commit(f"w{number % 5}")
        await until(lambda: sum(map(len, receiver.events.values())) == 50)
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        (dead_letter,) = await pulling.dead_letters.page()
        assert (dead_letter.source, dead_letter.shard_id, dead_letter.task_id) == ("a", 0, poison)
        assert (dead_letter.workflow_id, dead_letter.first_event_id, dead_letter.last_event_id) == ("poison", 1, 1)
        assert dead_letter.error == f"{type(failure).__name__}: {failure}"
        assert dead_letter.attempts == (1 if isinstance(failure, GiveUp) else 3)
        assert dead_letter.dead_ns == 7
        assert pulling.puller.status().dead_letters == 1
        events = {metric.name: series for metric, series in pulling.metrics.snapshot().events.items()}
        assert events["replication_tasks_failed"] == {("a",): dead_letter.attempts}
        assert events["replication_dlq_enqueued"] == {("a",): 1}
    async with Pulling(Source(owner), receiver, store) as again:
        await until(lambda: again.puller.dead_letters == 1)
    await owner.stream.close(is_lost=False)


async def test_an_unreadable_dead_letter_does_not_stop_its_stream(
    store: HistoryStore,
) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    await store.write_metadata("replication/dlq/a/000000/00000000000000000001", b"?", expected_version=0)
    await owner.commit()
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: receiver.events.get("w") == [1])
        assert pulling.puller.dead_letters == 1
    await owner.stream.close(is_lost=False)


async def test_dead_letters_written_concurrently_are_all_counted(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(MalformedBatch("mixed versions"))
    for number in range(20):
        await owner.commit(f"w{number}")
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: not pulling.puller.status().outstanding and pulling.puller.status().read_id >= 0)
        assert len(await pulling.dead_letters.page()) == 20
        assert pulling.puller.status().dead_letters == 20
    await owner.stream.close(is_lost=False)


async def test_a_gap_waits_for_an_unreachable_source_without_a_limit(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit() for _ in range(3)]
    source, receiver = Source(owner), Receiver()
    await store.write_metadata(CURSOR, _place(ids[1]), expected_version=0)

    def cut(_workflow_id: str, event_id: int) -> None:
        source.is_away = source.is_away or (event_id == 3 and len(receiver.outcomes) == 0)

    receiver.on_event = cut
    async with Pulling(source, receiver, store, attempts=2) as pulling:
        await until(lambda: receiver.outcomes.count(Outcome.GAP) > 5)
        assert pulling.puller.status().outstanding == 1
        source.is_away = False
        await until(lambda: receiver.events["w"] == [1, 2, 3])
        assert await pulling.dead_letters.page() == []
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize(
    "failure",
    [
        NotOwner("on its way"),
        Unreachable("no such host"),
        CallLost("no answer"),
        OutcomeUnknown("perhaps"),
        StoreUnavailable("full"),
        NoHosts("all are starting"),
    ],
    ids=lambda failure: type(failure).__name__,
)
async def test_a_receiver_whose_store_fails_makes_no_dead_letters(store: HistoryStore, failure: Exception) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    tried = 0

    def fail(_workflow_id: str, _event_id: int) -> None:
        nonlocal tried
        tried += 1
        if tried < 8:
            raise failure

    receiver.on_event = fail
    await owner.commit()
    async with Pulling(Source(owner), receiver, store, attempts=2) as pulling:
        await until(lambda: receiver.events.get("w") == [1])
        assert pulling.puller.dead_letters == 0
    await owner.stream.close(is_lost=False)


async def test_a_task_waits_for_a_namespace_that_is_not_replicated_yet(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    failures = 0

    def fail(_workflow_id: str, _event_id: int) -> None:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise namespace_not_found("namespace-id")

    receiver.on_event = fail
    await owner.commit()
    async with Pulling(Source(owner), receiver, store, attempts=10) as pulling:
        await until(lambda: receiver.events.get("w") == [1])
        assert await pulling.dead_letters.page() == []
    await owner.stream.close(is_lost=False)


async def test_a_task_is_retried_if_its_dead_letter_can_not_be_written(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(RetryLater("not now"))
    await owner.commit()
    pulling = Pulling(Source(owner), receiver, store)
    dead_letters = pulling.puller._dead_letters = Unwritable(store)
    async with pulling:
        await until(lambda: dead_letters.tried > 3)
        assert pulling.puller.status().outstanding == 1
        receiver.on_event = lambda _workflow_id, _event_id: None
        await until(lambda: receiver.events.get("w") == [1])
    await owner.stream.close(is_lost=False)


class Unwritable(DeadLetters):
    """A dead letter store whose writes fail."""

    tried = 0

    async def put(self, dead_letter: DeadLetter) -> bool:
        self.tried += 1
        raise RetryLater(f"the store does not answer: {dead_letter.key}")


async def test_later_batches_of_a_run_fetch_its_dead_letters_events_once_they_can_be_applied(
    store: HistoryStore,
) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    is_broken = True

    def fail(_workflow_id: str, event_id: int) -> None:
        if is_broken and event_id == 2:
            raise MalformedBatch("for now")

    receiver.on_event = fail
    async with Pulling(Source(owner), receiver, store) as pulling:
        await owner.commit()
        await owner.commit()
        await until(lambda: pulling.puller.dead_letters == 1)
        is_broken = False
        await owner.commit()
        await until(lambda: receiver.events["w"] == [1, 2, 3])
        (dead_letter,) = await pulling.dead_letters.page()
        assert await pulling.applier.replay(dead_letter) == Outcome.DUPLICATE
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize(("ids", "through_id"), [([0, 2, 1], 9), ([1, 1], 9), ([0, 1, 2], 1), ([-1, 0], 9), ([], -2)])
async def test_tasks_with_ids_that_do_not_rise_are_refused(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch, ids: list[int], through_id: int
) -> None:
    monkeypatch.setattr("fairlead.replication.puller.IDLE_WAIT_S", 0.01)
    owner = await Owner(MemoryHistory()).open()
    begin = [await owner.commit("before") for _ in range(2)][-1] + 1
    source, receiver = Disordered(owner), Receiver()
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: receiver.events.get("before") == [1, 2])
        tasks = tuple(_task(begin + place, f"w{number}") for number, place in enumerate(ids))
        source.forged = PullResponse(tasks, begin + through_id, 0)
        await until(lambda: "the response is dropped" in pulling.puller.status().error)
        source.forged = None
        await owner.commit("after")
        await until(lambda: receiver.events.keys() == {"before", "after"})
        assert (pulling.room.bytes, pulling.puller.status().outstanding) == (0, 0)
    await owner.stream.close(is_lost=False)


class Disordered(Source):
    """A source that sends invalid tasks."""

    forged: PullResponse | None = None

    async def pull(self, request: PullRequest) -> PullResponse:
        answer = await super().pull(request)
        return self.forged or answer


def _task(task_id: int, workflow_id: str) -> ReplicationTask:
    events = History(events=[HistoryEvent(event_id=1, version=1)]).SerializeToString()
    return ReplicationTask(task_id, 0, NAMESPACE_ID, workflow_id, f"run-{workflow_id}", 1, 1, ((1, 1),), events)


async def test_a_source_that_always_sends_the_same_events_is_given_up_on(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit() for _ in range(5)]
    source, receiver = Stubborn(owner), Receiver()
    await store.write_metadata(CURSOR, _place(ids[3]), expected_version=0)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: pulling.puller.dead_letters == 1)
        (dead_letter,) = await pulling.dead_letters.page()
        assert "StillMissing" in dead_letter.error
        # The first event is applied, and requested once.
        assert len(source.branches) == 1 + dead_letter.attempts
        with pytest.raises(StillMissing):
            await asyncio.wait_for(pulling.applier.replay(replace(dead_letter, first_event_id=2)), 5)
    await owner.stream.close(is_lost=False)


class Stubborn(Source):
    """A source that always sends the first event and no other."""

    async def read_branch(self, request: RemoteReadBranch) -> ReadBranchResponse:
        return await super().read_branch(replace(request, from_event_id=1, to_event_id=2))


async def test_a_dead_letter_is_replayed_with_the_missing_events_before_it(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    for _ in range(4):
        await owner.commit()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(MalformedBatch("no"))
    source = Source(owner)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: pulling.puller.dead_letters == 4)
        dead_letters = await pulling.dead_letters.page()
        receiver.on_event = lambda _workflow_id, _event_id: None
        assert await pulling.applier.replay(dead_letters[2]) == Outcome.APPLIED
        assert receiver.events["w"] == [1, 2, 3]
        # If the source no longer has the events, the error says so, and the dead letter stays.
        await owner.store.delete_run(0, owner.range_id, owner.key("w"), branches=[("run-w", "branch")])
        with pytest.raises(StillMissing, match="purge"):
            await pulling.applier.replay(dead_letters[3])
    await owner.stream.close(is_lost=False)


async def test_progress_is_applied(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    async with Pulling(Source(owner), receiver, store):
        await owner.commit()
        for attempt in range(2, 5):
            await owner.progress("w", attempt)
        await until(lambda: ("w", 4) in receiver.progress)
    await owner.stream.close(is_lost=False)


async def test_memory_is_bounded_if_the_receiver_is_slow(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.replication.puller.PAGE_BYTES_MIN", 1)
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.latency_s = 0.005
    for number in range(300):
        await owner.commit(f"w{number}", padding=1000)
    async with Pulling(Source(owner), receiver, store, bytes_max=20_000) as pulling:
        held = 0
        while len(receiver.events) < 300:
            held = max(held, pulling.room.bytes)
            await asyncio.sleep(0.001)
        # The limit, plus the page that was in flight meanwhile; each task counts with some overhead.
        assert held <= 20_000 + 20_000 * 1.6
        await until(lambda: pulling.room.bytes == 0)
    await owner.stream.close(is_lost=False)


async def test_two_hosts_that_both_pull_a_stream_do_no_harm(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    async with Pulling(source, receiver, store) as one, Pulling(source, receiver, store) as other:
        for number in range(100):
            await owner.commit(f"w{number % 9}")
        ends = (one.puller, other.puller)
        await until(lambda: all(puller.status().cursor >= owner.ours[-1] for puller in ends))
        assert all(events == sorted(events) for events in receiver.events.values())
        assert sum(map(len, receiver.events.values())) == 100
    stored = await store.read_metadata(CURSOR)
    assert stored is not None
    assert stored.payload == _place(max(puller.status().cursor for puller in ends))
    await owner.stream.close(is_lost=False)


def _place(task_id: int, source_id: str = "id-a") -> bytes:
    return encode_cursor(Cursor(source_id, task_id))
