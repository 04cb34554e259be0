import asyncio
import logging
import sqlite3
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from fairlead.core.fairness import Level
from fairlead.core.partitions import TaskType
from fairlead.storage import watched
from fairlead.storage.commit import Commit
from fairlead.storage.failures import PoolReasons, follow_pool, reason_of
from fairlead.storage.history import HistoryStore
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.memory.tasks import MemoryStore
from fairlead.storage.tasks import LeaseLost, Levels, Member, OutcomeUnknown, QueueId, StoreUnavailable, TaskStore
from fairlead.storage.watched import UNAVAILABLE_AFTER_S, WatchedStore
from fairlead.telemetry import Metrics
from tests.telemetry.scrapes import scrape, value, values

QUEUE = QueueId("default", "orders", TaskType.ACTIVITY)
LEVELS = Levels(Level(1, 0), Level(1, 0))
NOON_S = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _all_levels() -> Iterator[None]:
    """Capture the log at every level, regardless of the configuration."""
    config = structlog.get_config()
    structlog.reset_defaults()
    # Mark the log as configured: otherwise the first import of a module with a log, inside a test, would hide info
    # lines.
    structlog.configure()
    yield
    structlog.configure(**config)


class Faults:
    """Errors and waits of the store; none unless a test sets them."""

    error: Exception | None = None
    answered: asyncio.Event | None = None

    async def before(self, operation: str, queue: QueueId | None) -> None:
        if self.answered is not None:
            await self.answered.wait()
        if self.error is not None:
            raise self.error

    async def after(self, operation: str, queue: QueueId | None) -> None:
        return


class CorruptIndex(Exception):
    """Stands for psycopg.errors.IndexCorrupted, which needs the driver."""

    sqlstate = "XX002"


async def until_waiting(event: asyncio.Event) -> None:
    while not event._waiters:  # noqa: ASYNC110 - it happens in another task
        await asyncio.sleep(0)


class HistoryFaults:
    """A history store that fails with the given error, if there is one."""

    error: Exception | None = None

    async def before(self, operation: str, shard_id: int | None) -> None:
        if self.error is not None:
            raise self.error

    async def after(self, operation: str, shard_id: int | None) -> None:
        return


class World:
    def __init__(self) -> None:
        self.now_s = NOON_S
        self.faults = Faults()
        self.metrics = Metrics()
        self.history_faults = HistoryFaults()
        store = MemoryStore(self.faults)
        store.history = MemoryHistory(self.history_faults)
        self.store = WatchedStore(store, self.metrics, clock=lambda: self.now_s)

    async def beat(self) -> None:
        await self.store.heartbeat(Member("host", self.now_s + 10))

    def trouble(self) -> str | None:
        return self.store.trouble

    def failing_since_s(self) -> float | None:
        return self.store.is_failing_since_s


@pytest.fixture
def world() -> World:
    return World()


def unavailable() -> StoreUnavailable:
    error = StoreUnavailable("the changes could not be written")
    error.__cause__ = sqlite3.OperationalError("database or disk is full")
    return error


async def test_a_watched_store_returns_the_stores_results(world: World) -> None:
    store: TaskStore = world.store
    lease = await store.take_lease(QUEUE)
    await store.save_levels(QUEUE, lease.range_id, {3: LEVELS})
    assert (await store.take_lease(QUEUE)).levels == {3: LEVELS}
    assert await store.read(QUEUE, 3, after=Level(0, 0), limit=5) == []
    assert await store.list_queues(None, after=None, limit=5) == [QUEUE]
    with pytest.raises(LeaseLost):
        await store.renew_lease(QUEUE, lease.range_id)
    await store.close()


async def test_a_failure_is_counted_and_logged_with_the_stores_message(world: World) -> None:
    world.faults.error = unavailable()
    with capture_logs() as lines, pytest.raises(StoreUnavailable):
        await world.beat()
    (line,) = lines
    assert (line["event"], line["log_level"], line["operation"]) == ("store failed", "error", "heartbeat")
    assert (line["error_type"], line["reason"]) == ("StoreUnavailable", "database or disk is full")
    world.faults.error = OutcomeUnknown("who knows")
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await world.store.members(now_s=0)
    counts = scrape(world.metrics)
    assert value(counts, "persistence_error_with_type", operation="heartbeat", error_type="StoreUnavailable") == 1
    assert value(counts, "persistence_error_with_type", operation="members", error_type="OutcomeUnknown") == 2


async def test_an_unexpected_exception_counts_as_a_failure(world: World) -> None:
    world.faults.error = sqlite3.DatabaseError("database disk image is malformed")
    with pytest.raises(sqlite3.DatabaseError):
        await world.beat()
    assert world.store.is_failing_since_s == NOON_S
    assert value(scrape(world.metrics), "persistence_error_with_type", error_type="DatabaseError") == 1


async def test_a_refused_write_does_not_count_as_a_failure(world: World) -> None:
    world.faults.error = LeaseLost("another has it")
    with capture_logs() as lines, pytest.raises(LeaseLost):
        await world.store.take_lease(QUEUE)
    assert (lines, world.store.is_failing_since_s) == ([], None)
    assert values(scrape(world.metrics), "persistence_error_with_type") == []


async def test_the_store_is_unavailable_only_after_all_writes_have_failed_for_long(world: World) -> None:
    world.faults.error = unavailable()
    with pytest.raises(StoreUnavailable):
        await world.beat()
    world.now_s += UNAVAILABLE_AFTER_S - 0.1
    assert world.trouble() is None
    world.now_s += 0.2
    assert world.trouble() == "store unavailable since 2027-01-15T08:00:00Z"
    with pytest.raises(StoreUnavailable):
        await world.beat()
    assert world.store.is_failing_since_s == NOON_S


async def test_one_successful_write_makes_the_store_available_again_and_a_read_does_not(world: World) -> None:
    world.faults.error = unavailable()
    with pytest.raises(StoreUnavailable):
        await world.beat()
    world.now_s += UNAVAILABLE_AFTER_S
    world.faults.error = None
    await world.store.members(now_s=0)
    assert world.trouble() is not None
    with capture_logs() as lines:
        await world.beat()
        await world.beat()
    assert world.trouble() is None
    assert [(line["event"], line["failed_s"]) for line in lines] == [("store takes writes again", UNAVAILABLE_AFTER_S)]


async def test_a_store_that_does_not_respond_to_a_heartbeat_is_out_of_service(world: World) -> None:
    answered = asyncio.Event()
    world.faults.answered = answered
    beating = asyncio.create_task(world.beat())
    await until_waiting(answered)
    assert world.trouble() is None
    world.now_s += UNAVAILABLE_AFTER_S
    assert world.trouble() == "store unavailable since 2027-01-15T08:00:00Z: a heartbeat got no response"
    answered.set()
    await beating
    assert world.trouble() is None


@pytest.mark.parametrize("cause", [sqlite3.DatabaseError("database disk image is malformed"), CorruptIndex()])
async def test_damage_that_a_read_finds_puts_the_store_out_of_service_at_once(world: World, cause: Exception) -> None:
    world.faults.error = StoreUnavailable("the rows could not be read")
    world.faults.error.__cause__ = cause
    with pytest.raises(StoreUnavailable):
        await world.store.members(now_s=0)
    world.faults.error = None
    # Writes elsewhere in the file still succeed.
    await world.beat()
    assert world.trouble() == "store damaged, found at 2027-01-15T08:00:00Z: see the log"


async def test_a_failing_read_does_not_make_the_store_unavailable(world: World) -> None:
    world.faults.error = unavailable()
    with pytest.raises(StoreUnavailable):
        await world.store.members(now_s=0)
    assert world.store.is_failing_since_s is None


async def test_an_error_of_a_closing_store_does_not_count_as_a_failure(world: World) -> None:
    await world.store.close()
    world.faults.error = StoreUnavailable("the store is closing")
    with capture_logs() as lines, pytest.raises(StoreUnavailable):
        await world.beat()
    assert (lines, world.store.is_failing_since_s) == ([], None)


def test_times_are_shown_in_utc() -> None:
    assert watched.moment(0.0) == "1970-01-01T00:00:00Z"


class PoolTimeout(Exception):
    """An error like the pool's own, which says only how long it waited."""


@pytest.fixture
def pool_log() -> Iterator[logging.Logger]:
    log = logging.getLogger("psycopg.pool")
    level, filters = log.level, list(log.filters)
    follow_pool()
    follow_pool()
    yield log
    log.setLevel(level)
    log.filters[:] = filters


def test_the_pools_warnings_are_kept_as_failure_reasons_and_not_logged(
    pool_log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = StoreUnavailable("no connection within 5 s")
    timeout.__cause__ = PoolTimeout("after 5 sec")
    pool_log.info("connection requested from %r", "fairlead")
    pool_log.warning("error connecting in %r: %s", "fairlead", OSError("connection\n refused"))
    pool_log.warning("reconnection attempt in pool %r failed after %s sec", "fairlead", 5.0)
    assert reason_of(timeout) == "connection refused"
    pool_log.error("broken")
    assert caplog.messages == ["broken"]


def test_an_old_failure_reason_is_not_reported() -> None:
    reasons = PoolReasons()
    assert reasons.latest == ""
    warning = logging.LogRecord("psycopg.pool", logging.WARNING, "", 0, "%s", (OSError("refused"),), None)
    assert reasons.filter(warning) is False
    assert reasons.latest == "refused"
    reasons._reported_s -= 31
    assert reasons.latest == ""


def test_a_failure_reason_is_never_empty() -> None:
    assert reason_of(TimeoutError()) == "TimeoutError"


async def test_the_history_part_of_a_store_is_watched_like_its_task_part(world: World) -> None:
    history = world.store.history
    lease = await history.take_shard(1)
    await history.commit(1, lease.range_id, Commit())
    with pytest.raises(LeaseLost):
        await history.commit(1, lease.range_id + 1, Commit())
    assert world.failing_since_s() is None
    world.history_faults.error = unavailable()
    with pytest.raises(StoreUnavailable):
        await history.commit(1, lease.range_id, Commit())
    assert world.failing_since_s() == NOON_S
    assert value(scrape(world.metrics), "persistence_error_with_type", operation="commit") == 1
    world.history_faults.error = None
    await history.write_metadata("key", b"value", expected_version=0)
    assert world.failing_since_s() is None


class BegunCommits(MemoryHistory):
    """A store whose commits begin without a coroutine, like those of the databases."""

    error: Exception | None = None

    def begin_commit(self, shard_id: int, range_id: int, commit: Commit) -> "asyncio.Future[None]":
        if self.error is not None:
            raise self.error
        return asyncio.ensure_future(self.commit(shard_id, range_id, commit))


async def test_a_commit_that_could_not_begin_counts_as_a_failure_until_one_succeeds(world: World) -> None:
    history = BegunCommits()
    store = MemoryStore()
    store.history = history
    watched_store = WatchedStore(store, world.metrics, clock=lambda: world.now_s)
    begin = watched_store.history.begin_commit  # type: ignore[attr-defined] # not of every store
    lease = await watched_store.history.take_shard(1)
    history.error = unavailable()
    with pytest.raises(StoreUnavailable):
        begin(1, lease.range_id, Commit())
    assert watched_store.is_failing_since_s == NOON_S
    history.error = None
    await begin(1, lease.range_id, Commit())
    await asyncio.sleep(0)
    assert watched_store.is_failing_since_s is None


def test_every_operation_of_a_store_is_watched(world: World) -> None:
    for contract, store in ((TaskStore, world.store), (HistoryStore, world.store.history)):
        asked = [name for name in vars(contract) if not name.startswith("_") and name != "close"]
        assert asked
        assert [name for name in asked if name not in vars(store)] == []
