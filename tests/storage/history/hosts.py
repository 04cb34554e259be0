"""Several hosts on one database of PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from fairlead.storage.postgres import PostgresStore
from tests.patience import PATIENCE_S

Raw = psycopg.AsyncConnection[tuple[Any, ...]]
OpenStore = Callable[..., Awaitable[PostgresStore]]

SHARDS = range(1, 21)


@asynccontextmanager
async def raw_connection(dsn: str) -> AsyncIterator[Raw]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


async def transactions_of_runs(dsn: str) -> list[int]:
    """The number of runs that each transaction wrote."""
    async with raw_connection(dsn) as connection:
        found = await connection.execute("SELECT count(*) FROM history_runs GROUP BY xmin ORDER BY 1")
        return [int(rows) for (rows,) in await found.fetchall()]


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await is_so():  # noqa: ASYNC110 - the database has no event to wait for
            await asyncio.sleep(0.005)


async def outcomes_of(*writes: Awaitable[object]) -> list[type]:
    """The types of the results or errors of writes that begin together."""
    return [type(outcome) for outcome in await asyncio.gather(*writes, return_exceptions=True)]
