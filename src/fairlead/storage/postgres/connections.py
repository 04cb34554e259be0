import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, LiteralString, Self, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from fairlead.core.errors import FixRequest
from fairlead.storage.postgres.pipeline import ANSWER_GRACE_S, Connection, Parameter, Pipeline, Prepared, Row
from fairlead.storage.postgres.statements import ALLOW_ANY_PLAN, ALLOW_TIME
from fairlead.storage.tasks import OutcomeUnknown, StoreUnavailable

CONNECT_S_MAX = 5.0
# Seconds between two attempts to open the connection of a pipeline.
CONNECT_PAUSE_S = 0.1
REQUESTS_WAITING_MAX = 10_000
ATTEMPTS_MAX = 5
# Maximum seconds of a scan of all tasks of a queue; a scan takes about 1.5 s per million tasks.
SCAN_S_MAX = 600.0
# Number of rows of a scan that are converted before other work of the event loop runs: some milliseconds.
SCAN_PAGE_ROWS = 2_000

Found = TypeVar("Found")


class Unstorable(FixRequest):
    """A value does not fit into its column: nothing was changed."""


class Connections:
    """A bounded pool of connections.

    Every use has a timeout. Its errors tell whether the change may have taken effect.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Connection],
        *,
        connect: Callable[[], Awaitable[Connection]],
        statement_s_max: float,
    ) -> None:
        self._pool = pool
        self._connect = connect
        # The statements that pipelines have prepared on each connection.
        self._prepared: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()
        self._statement_s_max = statement_s_max
        self._in_use = 0
        self._is_closing = False
        self._unused = asyncio.Event()
        self._unused.set()

    @classmethod
    async def open(cls, dsn: str, *, application_name: str, connections_max: int, statement_s_max: float) -> Self:
        """Connect; raises `StoreUnavailable` if that fails."""

        async def configure(connection: Connection) -> None:
            # Override the defaults of the server and the database. Force index scans: the planner has no good
            # statistics of a table that fills and empties within minutes, and would sometimes sort a million tasks to
            # read the first thousand.
            await connection.execute(
                "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS s (name, value)",
                (list(settings), list(settings.values())),
            )

        settings = {
            "synchronous_commit": "on",
            "default_transaction_isolation": "read committed",
            "statement_timeout": f"{round(statement_s_max * 1000)}ms",
            "enable_seqscan": "off",
            "enable_bitmapscan": "off",
            "enable_sort": "off",
            "jit": "off",
            # Limits the time for which a host that is gone can hold a lock.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        options: dict[str, Any] = {
            "autocommit": True,
            "application_name": application_name,
            "connect_timeout": round(CONNECT_S_MAX),
            "target_session_attrs": "read-write",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }

        async def connect() -> Connection:
            connection = await psycopg.AsyncConnection.connect(dsn, **options)
            try:
                await configure(connection)
                # The statements of a pipeline look up each row by its key, for any number of rows: planning them for
                # each call takes longer than a small batch.
                await connection.execute("SET plan_cache_mode = force_generic_plan")
            except BaseException:
                await connection.close()
                raise
            return connection

        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            dsn,
            kwargs=options,
            min_size=1,
            max_size=connections_max,
            timeout=CONNECT_S_MAX,
            # After this time, the next request reconnects at once. With a longer timeout, the pool's growing backoff
            # would delay the recovery.
            reconnect_timeout=CONNECT_S_MAX,
            max_waiting=REQUESTS_WAITING_MAX,
            configure=configure,
            open=False,
            name=application_name,
        )
        connections = cls(pool, connect=connect, statement_s_max=statement_s_max)
        try:
            await pool.open(wait=True, timeout=CONNECT_S_MAX)
        except PoolTimeout as failed:
            await pool.close()
            raise StoreUnavailable(f"no connection to PostgreSQL within {CONNECT_S_MAX} s: is it running?") from failed
        return connections

    async def read(self, statement: LiteralString, parameters: Mapping[str, object]) -> list[Row]:
        """The rows of a statement that only reads."""
        try:
            return await self._execute(statement, parameters)
        except OutcomeUnknown as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def scan(
        self, statement: LiteralString, parameters: Mapping[str, object], make: Callable[[Row], Found]
    ) -> list[Found]:
        """Return `make(row)` of each row. A scan may take long, and its rows are converted a page at a time."""

        async def ask(connection: Connection) -> list[Found]:
            async with connection.transaction():
                await connection.execute(ALLOW_TIME, {"limit": f"{SCAN_S_MAX:.0f}s"})
                cursor = await connection.execute(statement, parameters, binary=True)
                found: list[Found] = []
                while page := await cursor.fetchmany(SCAN_PAGE_ROWS):
                    found += map(make, page)
                    await asyncio.sleep(0)
                return found

        try:
            return await self._use(ask, s_max=SCAN_S_MAX)
        except OutcomeUnknown as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def search(self, statement: bytes, parameters: Mapping[str, object]) -> list[Row]:
        """The rows of a statement that was built for a query; the planner may choose any plan."""

        async def ask(connection: Connection) -> list[Row]:
            async with connection.transaction():
                await connection.execute(ALLOW_ANY_PLAN)
                cursor = await connection.execute(statement, parameters, binary=True)
                return await cursor.fetchall()

        try:
            return await self._use(ask, s_max=self._statement_s_max)
        except OutcomeUnknown as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def write(self, statement: LiteralString, parameters: Mapping[str, object]) -> list[Row]:
        """Execute a statement in its own transaction, which is committed when this returns.

        If it raises anything but `OutcomeUnknown`, nothing was changed.
        """
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._execute(statement, parameters)
            except (errors.DeadlockDetected, errors.SerializationFailure):
                # Deadlock or serialization failure: the other transaction won; retry.
                continue
        try:
            return await self._execute(statement, parameters)
        except (errors.DeadlockDetected, errors.SerializationFailure) as refused:
            raise StoreUnavailable(
                f"other transactions won in {ATTEMPTS_MAX} attempts, nothing was changed: {refused}"
            ) from refused

    async def open_pipeline(self) -> Pipeline:
        """A pipeline with its own connection, in addition to the pool's connections; the caller closes it."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        failure: psycopg.Error | None = None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                while True:
                    try:
                        connection = await self._connect()
                    except psycopg.Error as failed:
                        failure = failed
                        await asyncio.sleep(CONNECT_PAUSE_S)
                    else:
                        return Pipeline(connection, prepared=set(), statement_s_max=self._statement_s_max)
        except TimeoutError as late:
            raise StoreUnavailable(f"PostgreSQL can't be reached, nothing was changed: {failure or late}") from failure

    async def pipelined(self, statement: Prepared, parameters: Sequence[Parameter]) -> list[Row]:
        """The rows of a prepared statement on a connection of the pool. Raises PostgreSQL's errors unchanged."""
        async with self.connection() as connection:
            prepared = self._prepared.setdefault(connection, set())
            pipeline = Pipeline(connection, prepared=prepared, statement_s_max=self._statement_s_max)
            try:
                return await pipeline.send(statement, parameters)
            finally:
                pipeline.release()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend the caller a connection, in autocommit mode."""
        if self._is_closing:
            raise StoreUnavailable("the store is closing: nothing was changed")
        self._in_use += 1
        self._unused.clear()
        try:
            connection = await self._get()
            try:
                yield connection
            finally:
                await self._pool.putconn(connection)
        finally:
            self._in_use -= 1
            if not self._in_use:
                self._unused.set()

    async def _get(self) -> Connection:
        try:
            connection = await self._pool.getconn()
            # Don't use the pool's own check, which pauses for a second or more after each dead connection. If all
            # connections of the pool are dead, the next connection is a new one.
            for _ in range(self._pool.max_size):
                if not _was_closed(connection):
                    break
                await connection.close()
                await self._pool.putconn(connection)
                connection = await self._pool.getconn()
        except (PoolTimeout, PoolClosed, TooManyRequests) as failed:
            raise StoreUnavailable(f"PostgreSQL can't be reached, nothing was changed: {failed}") from failed
        return connection

    async def close(self) -> None:
        """Reject new requests, wait for the requests that have begun, and disconnect."""
        self._is_closing = True
        await self._unused.wait()
        await self._pool.close()

    async def _execute(self, statement: LiteralString, parameters: Mapping[str, object]) -> list[Row]:
        async def ask(connection: Connection) -> list[Row]:
            cursor = await connection.execute(statement, parameters, prepare=True, binary=True)
            return await cursor.fetchall() if cursor.description else []

        return await self._use(ask, s_max=self._statement_s_max)

    async def _use(self, ask: Callable[[Connection], Awaitable[list[Found]]], *, s_max: float) -> list[Found]:
        async with self.connection() as connection:
            try:
                async with asyncio.timeout(s_max + ANSWER_GRACE_S):
                    return await ask(connection)
            except TimeoutError as silent:
                await connection.close()
                raise OutcomeUnknown(
                    f"no response from PostgreSQL in {s_max + ANSWER_GRACE_S} s: renew the lease"
                ) from (silent)
            except (errors.DeadlockDetected, errors.SerializationFailure):
                raise
            except (psycopg.Error, UnicodeEncodeError) as failed:
                # Only over a connection that still exists can the server have confirmed the rollback.
                if (connection.broken or connection.closed) and isinstance(failed, psycopg.OperationalError):
                    raise OutcomeUnknown(
                        f"the connection was lost before the response, renew the lease: {failed}"
                    ) from (failed)
                raise translated(failed) from failed


def translated(failed: psycopg.Error | UnicodeEncodeError) -> Exception:
    """The store's error for an error of PostgreSQL that changed nothing; unknown errors are returned unchanged."""
    translation: Exception = failed
    # ProgramLimitExceeded: a key is longer than an index entry can be.
    if isinstance(failed, errors.DataError | UnicodeEncodeError | errors.ProgramLimitExceeded):
        translation = Unstorable(f"PostgreSQL can't store it, nothing was changed: {failed}")
    elif isinstance(failed, psycopg.OperationalError | psycopg.InternalError):
        translation = StoreUnavailable(f"PostgreSQL returned an error, nothing was changed: {failed}")
    if translation is not failed:
        translation.__cause__ = failed
    return translation


def _was_closed(connection: Connection) -> bool:
    """Whether the server has closed an idle connection, checked without a round trip.

    A server sends nothing on an idle connection, except when it closes it.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
