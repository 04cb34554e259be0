import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, LiteralString, Self

import psycopg
from psycopg import errors
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from fairlead.core.errors import FixRequest
from fairlead.storage.contract import OutcomeUnknown, StoreUnavailable
from fairlead.storage.postgres.statements import ALLOW_ANY_PLAN, ALLOW_TIME

CONNECT_S_MAX = 5.0
# How much longer than the server's own limit a statement may take before its connection is given up.
ANSWER_GRACE_S = 2.0
REQUESTS_WAITING_MAX = 10_000
ATTEMPTS_MAX = 5
# For a look at all tasks of a queue, which takes longer the more there are: about 1.5 s a million.
SCAN_S_MAX = 600.0

Connection = psycopg.AsyncConnection[tuple[Any, ...]]
Row = tuple[Any, ...]


class Unstorable(FixRequest):
    """A value does not fit into its column: nothing was changed."""


class Connections:
    """A bounded pool of connections. Every use ends in time, and says what is known of the outcome where it fails."""

    def __init__(self, pool: AsyncConnectionPool[Connection], *, statement_s_max: float) -> None:
        self._pool = pool
        self._statement_s_max = statement_s_max
        self._in_use = 0
        self._is_closing = False
        self._unused = asyncio.Event()
        self._unused.set()

    @classmethod
    async def open(cls, dsn: str, *, application_name: str, connections_max: int, statement_s_max: float) -> Self:
        """Connect; raises `StoreUnavailable` where that is not possible."""

        async def configure(connection: Connection) -> None:
            # Whatever the server's and the database's defaults are. Scans in the order of an index, always: the
            # planner, which knows little of a table that fills and empties within minutes, would now and then rather
            # sort a million tasks to read the first thousand.
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
            # A host that vanished holds no lock for longer than about this.
            "tcp_keepalives_idle": "10",
            "tcp_keepalives_interval": "5",
            "tcp_keepalives_count": "3",
        }
        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            dsn,
            kwargs={
                "autocommit": True,
                "application_name": application_name,
                "connect_timeout": round(CONNECT_S_MAX),
                "target_session_attrs": "read-write",
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
            min_size=1,
            max_size=connections_max,
            timeout=CONNECT_S_MAX,
            # After this the next request tries at once: longer, and the pool's growing pauses would delay recovery.
            reconnect_timeout=CONNECT_S_MAX,
            max_waiting=REQUESTS_WAITING_MAX,
            configure=configure,
            open=False,
            name=application_name,
        )
        connections = cls(pool, statement_s_max=statement_s_max)
        try:
            await pool.open(wait=True, timeout=CONNECT_S_MAX)
        except PoolTimeout as failed:
            await pool.close()
            raise StoreUnavailable(f"no connection to PostgreSQL within {CONNECT_S_MAX} s: is it running?") from failed
        return connections

    async def read(self, statement: LiteralString, parameters: Mapping[str, object]) -> list[Row]:
        """The rows that a statement finds which changes nothing."""
        try:
            return await self._execute(statement, parameters, s_max=self._statement_s_max)
        except OutcomeUnknown as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def scan(self, statement: LiteralString, parameters: Mapping[str, object]) -> list[Row]:
        """The same, with more time."""
        try:
            return await self._execute(statement, parameters, s_max=SCAN_S_MAX)
        except OutcomeUnknown as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def search(self, statement: bytes, parameters: Mapping[str, object]) -> list[Row]:
        """The rows that a statement finds which was put together for a query, by whatever plan is the best."""

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
        """Run a statement in a transaction of its own, which is committed when this returns.

        Where it raises anything but `OutcomeUnknown`, nothing was changed.
        """
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await self._execute(statement, parameters, s_max=self._statement_s_max)
            except (errors.DeadlockDetected, errors.SerializationFailure):
                # It lost to another, which has gone on.
                continue
        try:
            return await self._execute(statement, parameters, s_max=self._statement_s_max)
        except (errors.DeadlockDetected, errors.SerializationFailure) as refused:
            raise StoreUnavailable(f"{ATTEMPTS_MAX} attempts were in the way of others: {refused}") from refused

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for the caller alone, in autocommit mode."""
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
            # Not by the pool's own check, which pauses for a second or more after each that it finds dead. In a pool
            # where all were dead the next one is new.
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
        """Take no more requests, wait for those that were begun, and disconnect."""
        self._is_closing = True
        await self._unused.wait()
        await self._pool.close()

    async def _execute(self, statement: LiteralString, parameters: Mapping[str, object], *, s_max: float) -> list[Row]:
        return await self._use(
            lambda connection: self._ask(connection, statement, parameters, s_max=s_max), s_max=s_max
        )

    async def _use(self, ask: Callable[[Connection], Awaitable[list[Row]]], *, s_max: float) -> list[Row]:
        async with self.connection() as connection:
            try:
                async with asyncio.timeout(s_max + ANSWER_GRACE_S):
                    return await ask(connection)
            except TimeoutError as silent:
                await connection.close()
                raise OutcomeUnknown(f"PostgreSQL gave no answer in {s_max + ANSWER_GRACE_S} s: renew the lease") from (
                    silent
                )
            except (errors.DeadlockDetected, errors.SerializationFailure):
                raise
            # The last of them: a key is longer than an index entry can be.
            except (errors.DataError, UnicodeEncodeError, errors.ProgramLimitExceeded) as refused:
                raise Unstorable(f"PostgreSQL can't store it, nothing was changed: {refused}") from refused
            except (psycopg.OperationalError, psycopg.InternalError) as failed:
                # Only a server that is still there has said that the transaction was rolled back.
                if connection.broken or connection.closed:
                    raise OutcomeUnknown(f"the connection was lost before the answer, renew the lease: {failed}") from (
                        failed
                    )
                raise StoreUnavailable(f"PostgreSQL refused, nothing was changed: {failed}") from failed

    async def _ask(
        self, connection: Connection, statement: LiteralString, parameters: Mapping[str, object], *, s_max: float
    ) -> list[Row]:
        if s_max == self._statement_s_max:
            cursor = await connection.execute(statement, parameters, binary=True)
            return await cursor.fetchall() if cursor.description else []
        async with connection.transaction():
            await connection.execute(ALLOW_TIME, {"limit": f"{s_max:.0f}s"})
            cursor = await connection.execute(statement, parameters, binary=True)
            return await cursor.fetchall()


def _was_closed(connection: Connection) -> bool:
    """Whether the server has closed an unused connection; found without asking the server, which would cost time.

    A server says nothing unasked on such a connection but that it ends.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
