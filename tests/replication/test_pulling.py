"""A stream that is pulled: nothing is lost, nothing that fails holds up the rest, and memory is bounded."""

import asyncio
import random

import msgspec
import pytest
from msgspec.structs import replace
from temporalio.api.history.v1 import History, HistoryEvent

from fairlead.cluster.calls import CallLost, Unreachable
from fairlead.core.errors import GiveUp, RetryLater
from fairlead.core.routing import NoHosts
from fairlead.core.versions import MalformedBatch
from fairlead.history.applying.messages import Outcome
from fairlead.history.refusals import namespace_not_found
from fairlead.history.shard import NotOwner
from fairlead.history.stream_messages import PullAnswer, PullRequest, ReadLineAnswer, ReplicationTask
from fairlead.replication.applying import StillMissing
from fairlead.replication.cursors import Cursor, encode_cursor
from fairlead.replication.dead_letters import DeadLetter, DeadLetters
from fairlead.replication.lanes import TOGETHER_MAX
from fairlead.replication.messages import RemoteReadLine
from fairlead.replication.pulling import Stream
from fairlead.storage.history_contract import HistoryStore, OutcomeUnknown, StoreUnavailable
from fairlead.storage.history_memory import MemoryHistory
from tests.replication.receivers import Pulling, Receiver, Source, until
from tests.replication.streams import NAMESPACE_ID, Owner

CURSOR = Stream("a", 0).cursor_key


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done after seconds is done after milliseconds."""
    monkeypatch.setattr("fairlead.history.streaming.DELETE_S", 0.001)
    for name, value in {"ATTEMPT_S_MIN": 0.001, "RETRY_S_MIN": 0.001, "RETRY_S_MAX": 0.01, "BUSY_WAIT_S": 0.01}.items():
        monkeypatch.setattr(f"fairlead.replication.pulling.{name}", value)


async def test_all_is_taken_in_and_in_the_order_of_each_workflow(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.latency_s = 0.001
    async with Pulling(Source(owner), receiver, store) as pulling:
        for number in range(200):
            await owner.commit(f"w{number % 20}")
        await until(lambda: sum(map(len, receiver.events.values())) == 200)
        assert all(events == list(range(1, 11)) for events in receiver.events.values())
        # In parallel across workflows, and not beyond what may be under way.
        assert 4 <= receiver.at_once_max <= 16
        assert set(receiver.outcomes) == {Outcome.APPLIED}
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        status = pulling.puller.status()
        assert (status.lag_tasks, status.outstanding, status.dead_letters, status.error) == (0, 0, 0, "")
        assert sum(pulling.latency.read().counts) == 200
    await owner.stream.close(is_lost=False)


async def test_batches_of_a_run_that_have_come_are_taken_in_together(store: HistoryStore) -> None:
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


async def test_what_can_not_be_taken_in_together_is_taken_in_one_by_one(store: HistoryStore) -> None:
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
        letters = await pulling.letters.page()
        # Those after it can't be taken in without it, and bring it when they are replayed.
        assert [letter.task_id for letter in letters][:1] == [poison]
        assert [letter.first_event_id for letter in letters] == [7, 8, 9, 10]
    await owner.stream.close(is_lost=False)


async def test_what_is_acknowledged_is_deleted_at_the_source_although_nothing_more_is_written(
    store: HistoryStore,
) -> None:
    owner = await Owner(MemoryHistory()).open()
    async with Pulling(Source(owner), Receiver(), store):
        for number in range(20):
            await owner.commit(f"w{number}")
        async with asyncio.timeout(5):
            while await owner.left():  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.01)
        assert owner.stream.acks["b"] >= owner.stream.last_id
    await owner.stream.close(is_lost=False)


async def test_an_idle_stream_is_asked_seldom(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source = Source(owner)
    async with Pulling(source, Receiver(), store):
        await owner.commit()
        await until(lambda: bool(source.pulls) and source.pulls[-1].ack_id == owner.ours[0])
        asked = len(source.pulls)
        await asyncio.sleep(0.3)
        assert len(source.pulls) <= asked + 1
    await owner.stream.close(is_lost=False)


async def test_a_receiver_that_starts_again_goes_on_where_it_was(store: HistoryStore) -> None:
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


async def test_a_receiver_that_was_killed_takes_again_what_it_had_not_noted(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    # The second event is never done: the cursor stays before it.
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


async def test_lost_answers_and_a_source_that_is_away_lose_nothing(store: HistoryStore) -> None:
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


async def test_a_stream_that_is_cut_lags_behind_more_and_more(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.replication.pulling.IDLE_WAIT_S", 0.02)
    owner = await Owner(MemoryHistory()).open()
    source, receiver = Source(owner), Receiver()
    async with Pulling(source, receiver, store) as pulling:
        await owner.commit()
        await until(lambda: pulling.puller.status().cursor >= owner.ours[-1])
        for _ in range(20):
            assert pulling.puller.status().lag_s == 0.0
            await asyncio.sleep(0.01)
        source.is_away = True
        await until(lambda: pulling.puller.status().lag_s > 0.3)
        assert pulling.puller.status().outstanding == 0
        source.is_away = False
        await until(lambda: pulling.puller.status().lag_s == 0.0)
        # So does one whose source does not even say that it is away.
        monkeypatch.setattr("fairlead.replication.pulling.LATE_S", 0.05)
        source.is_silent = True
        await until(lambda: pulling.puller.status().lag_s > 0.3)
        assert not pulling.puller.status().error
    await owner.stream.close(is_lost=False)


async def test_a_source_that_starts_again_is_followed_by_its_next_owner(store: HistoryStore) -> None:
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
async def test_a_source_whose_store_is_another_one_is_followed_from_its_beginning(
    store: HistoryStore, is_set_up_anew: bool
) -> None:
    """It is empty, or one from a backup: ids that were received are given a second time."""
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


async def test_what_has_come_of_a_store_that_is_lost_is_taken_in_before_the_next_is_pulled(store: HistoryStore) -> None:
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
        # With the very id that the one before has.
        assert await source.owner.commit("next") == held
        await asyncio.sleep(0.05)
        assert list(receiver.events) == []
        is_well = True
        await until(lambda: receiver.events.keys() == {"held", "next"})
        assert pulling.room.bytes == 0
    await source.owner.stream.close(is_lost=False)


async def test_a_source_that_refuses_again_and_again_is_asked_less_and_less(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    source = Source(owner)
    source.is_stranger = True
    async with Pulling(source, Receiver(), store) as pulling:
        await until(lambda: "from its beginning" in pulling.puller.status().error)
        await asyncio.sleep(0.3)
        assert len(source.pulls) < 60
    await owner.stream.close(is_lost=False)


async def test_a_cursor_of_the_older_form_is_begun_anew(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit() for _ in range(3)]
    receiver = Receiver()
    await store.write_metadata(CURSOR, msgspec.msgpack.encode(ids[-1]), expected_version=0)
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: receiver.events.get("w") == [1, 2, 3])
        await until(lambda: pulling.puller.status().cursor >= ids[-1])
    await owner.stream.close(is_lost=False)


async def test_a_gap_is_filled_with_exactly_what_is_missing(store: HistoryStore) -> None:
    """Its beginning is not in the stream any more."""
    kept = MemoryHistory()
    owner = await Owner(kept).open()
    ids = [await owner.commit("w", padding=100) for _ in range(8)]
    source, receiver = Source(owner), Receiver()
    receiver.events["w"] = [1, 2]
    await store.write_metadata(CURSOR, _place(ids[5]), expected_version=0)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: receiver.events["w"] == list(range(1, 9)))
        assert [(line.from_event_id, line.to_event_id) for line in source.lines] == [(3, 7)]
        assert receiver.outcomes == [Outcome.GAP, *[Outcome.APPLIED] * 6]
        resent = pulling.metrics.snapshot().events
        assert {metric.name: series for metric, series in resent.items()}["replication_batches_resent"] == {("a",): 4}
    await owner.stream.close(is_lost=False)


async def test_a_gap_is_filled_page_by_page(store: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairlead.replication.applying.LINE_BYTES_MAX", 250)
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit("w", padding=100) for _ in range(8)]
    source, receiver = Source(owner), Receiver()
    await store.write_metadata(CURSOR, _place(ids[6]), expected_version=0)
    async with Pulling(source, receiver, store):
        await until(lambda: receiver.events.get("w") == list(range(1, 9)))
        assert [line.from_event_id for line in source.lines] == [1, 3, 5, 7]
        assert {line.to_event_id for line in source.lines} == {8}
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize("failure", [MalformedBatch("mixed versions"), RuntimeError("a bug"), RetryLater("never")])
async def test_a_task_that_can_not_be_taken_in_is_kept_and_blocks_nobody_else(
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
        (letter,) = await pulling.letters.page()
        assert (letter.source, letter.shard_id, letter.task_id) == ("a", 0, poison)
        assert (letter.workflow_id, letter.first_event_id, letter.last_event_id) == ("poison", 1, 1)
        assert letter.error == f"{type(failure).__name__}: {failure}"
        assert letter.attempts == (1 if isinstance(failure, GiveUp) else 3)
        assert letter.dead_ns == 7
        assert pulling.puller.status().dead_letters == 1
    async with Pulling(Source(owner), receiver, store) as again:
        await until(lambda: again.puller.dead_letters == 1)
    await owner.stream.close(is_lost=False)


async def test_a_dead_letter_that_can_not_be_read_does_not_keep_its_stream_from_being_pulled(
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


async def test_those_that_are_kept_at_the_same_time_are_all_counted(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(MalformedBatch("mixed versions"))
    for number in range(20):
        await owner.commit(f"w{number}")
    async with Pulling(Source(owner), receiver, store) as pulling:
        await until(lambda: not pulling.puller.status().outstanding and pulling.puller.status().read_id >= 0)
        assert len(await pulling.letters.page()) == 20
        assert pulling.puller.status().dead_letters == 20
    await owner.stream.close(is_lost=False)


async def test_a_gap_waits_for_a_source_that_is_away_however_long(store: HistoryStore) -> None:
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
        assert await pulling.letters.page() == []
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
async def test_a_receiver_that_is_unwell_makes_no_dead_letters(store: HistoryStore, failure: Exception) -> None:
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


async def test_a_namespace_that_is_yet_to_come_is_waited_for(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    refusals = 0

    def fail(_workflow_id: str, _event_id: int) -> None:
        nonlocal refusals
        refusals += 1
        if refusals < 3:
            raise namespace_not_found("namespace-id")

    receiver.on_event = fail
    await owner.commit()
    async with Pulling(Source(owner), receiver, store, attempts=10) as pulling:
        await until(lambda: receiver.events.get("w") == [1])
        assert await pulling.letters.page() == []
    await owner.stream.close(is_lost=False)


async def test_a_dead_letter_that_can_not_be_written_is_tried_again_and_so_is_its_task(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(RetryLater("not now"))
    await owner.commit()
    pulling = Pulling(Source(owner), receiver, store)
    letters = pulling.puller._letters = Unwritable(store)
    async with pulling:
        await until(lambda: letters.tried > 3)
        assert pulling.puller.status().outstanding == 1
        receiver.on_event = lambda _workflow_id, _event_id: None
        await until(lambda: receiver.events.get("w") == [1])
    await owner.stream.close(is_lost=False)


class Unwritable(DeadLetters):
    """Dead letters of a store that takes none."""

    tried = 0

    async def put(self, letter: DeadLetter) -> bool:
        self.tried += 1
        raise RetryLater(f"the store does not answer: {letter.key}")


async def test_later_batches_of_a_run_with_a_dead_letter_bring_it_with_them_once_it_can_be_taken_in(
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
        (letter,) = await pulling.letters.page()
        assert await pulling.applier.replay(letter) == Outcome.DUPLICATE
    await owner.stream.close(is_lost=False)


@pytest.mark.parametrize(("ids", "through_id"), [([0, 2, 1], 9), ([1, 1], 9), ([0, 1, 2], 1), ([-1, 0], 9), ([], -2)])
async def test_tasks_whose_ids_do_not_rise_are_not_taken(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch, ids: list[int], through_id: int
) -> None:
    monkeypatch.setattr("fairlead.replication.pulling.IDLE_WAIT_S", 0.01)
    owner = await Owner(MemoryHistory()).open()
    begin = [await owner.commit("before") for _ in range(2)][-1] + 1
    source, receiver = Disordered(owner), Receiver()
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: receiver.events.get("before") == [1, 2])
        tasks = tuple(_task(begin + place, f"w{number}") for number, place in enumerate(ids))
        source.forged = PullAnswer(tasks, begin + through_id, 0)
        await until(lambda: "nothing is taken" in pulling.puller.status().error)
        source.forged = None
        await owner.commit("after")
        await until(lambda: receiver.events.keys() == {"before", "after"})
        assert (pulling.room.bytes, pulling.puller.status().outstanding) == (0, 0)
    await owner.stream.close(is_lost=False)


class Disordered(Source):
    """A source that sends what it should not."""

    forged: PullAnswer | None = None

    async def pull(self, request: PullRequest) -> PullAnswer:
        answer = await super().pull(request)
        return self.forged or answer


def _task(task_id: int, workflow_id: str) -> ReplicationTask:
    events = History(events=[HistoryEvent(event_id=1, version=1)]).SerializeToString()
    return ReplicationTask(task_id, 0, NAMESPACE_ID, workflow_id, f"run-{workflow_id}", 1, 1, ((1, 1),), events)


async def test_a_source_that_sends_the_same_events_again_and_again_is_not_asked_for_ever(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    ids = [await owner.commit() for _ in range(5)]
    source, receiver = Stubborn(owner), Receiver()
    await store.write_metadata(CURSOR, _place(ids[3]), expected_version=0)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: pulling.puller.dead_letters == 1)
        (letter,) = await pulling.letters.page()
        assert "StillMissing" in letter.error
        # The first event was taken, and is asked for once.
        assert len(source.lines) == 1 + letter.attempts
        with pytest.raises(StillMissing):
            await asyncio.wait_for(pulling.applier.replay(replace(letter, first_event_id=2)), 5)
    await owner.stream.close(is_lost=False)


class Stubborn(Source):
    """A source that has the first event to send and no other."""

    async def read_line(self, request: RemoteReadLine) -> ReadLineAnswer:
        return await super().read_line(replace(request, from_event_id=1, to_event_id=2))


async def test_a_dead_letter_is_replayed_with_all_that_is_missing_before_it(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    for _ in range(4):
        await owner.commit()
    receiver = Receiver()
    receiver.on_event = lambda _workflow_id, _event_id: (_ for _ in ()).throw(MalformedBatch("no"))
    source = Source(owner)
    async with Pulling(source, receiver, store) as pulling:
        await until(lambda: pulling.puller.dead_letters == 4)
        letters = await pulling.letters.page()
        receiver.on_event = lambda _workflow_id, _event_id: None
        assert await pulling.applier.replay(letters[2]) == Outcome.APPLIED
        assert receiver.events["w"] == [1, 2, 3]
        # One whose events the source has no more is told so, and stays.
        await owner.store.delete_run(0, owner.range_id, owner.key("w"), branches=[("run-w", "branch")])
        with pytest.raises(StillMissing, match="purge"):
            await pulling.applier.replay(letters[3])
    await owner.stream.close(is_lost=False)


async def test_progress_is_taken_in(store: HistoryStore) -> None:
    owner = await Owner(MemoryHistory()).open()
    receiver = Receiver()
    async with Pulling(Source(owner), receiver, store):
        await owner.commit()
        for attempt in range(2, 5):
            await owner.progress("w", attempt)
        await until(lambda: ("w", 4) in receiver.progress)
    await owner.stream.close(is_lost=False)


async def test_memory_is_bounded_where_the_receiver_is_slow(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.replication.pulling.PAGE_BYTES_MIN", 1)
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
        # What there is room for, and the page that was on its way meanwhile; a task counts with some bytes more.
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
