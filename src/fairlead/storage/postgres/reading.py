"""A PostgreSQL database that is only read, beside the servers that use it."""

from typing import Self

from fairlead.core.errors import FixRequest
from fairlead.storage.migrations import load_migrations, pending
from fairlead.storage.postgres import statements
from fairlead.storage.postgres.connections import Connections
from fairlead.storage.postgres.history import PostgresHistory

CONNECTIONS_MAX = 2
STATEMENT_S_MAX = 60.0


class NotAStore(FixRequest):
    """The database is none that servers of this release use."""


class PostgresReading:
    """The workflows of a store, to be read only: nothing is made or brought up to date."""

    def __init__(self, connections: Connections) -> None:
        """Use `open`."""
        self._connections = connections
        self.history = PostgresHistory(connections)

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect; `NotAStore` or `SchemaTooNew` if the database is no store of this release."""
        connections = await Connections.open(
            dsn,
            application_name="fairlead-reading",
            connections_max=CONNECTIONS_MAX,
            statement_s_max=STATEMENT_S_MAX,
        )
        try:
            await _check(connections)
        except BaseException:
            await connections.close()
            raise
        return cls(connections)

    async def close(self) -> None:
        """Disconnect."""
        await self._connections.close()


async def _check(connections: Connections) -> None:
    async with connections.connection() as connection:
        database = f"PostgreSQL database {connection.info.dbname!r}"
        if await (await connection.execute(statements.HAS_MIGRATIONS_TABLE)).fetchone() != (True,):
            raise NotAStore(f"{database} is no store: no server has been started with it")
        applied = [version async for (version,) in await connection.execute(statements.APPLIED_MIGRATIONS)]
    if steps := pending(load_migrations("postgres"), applied=applied, database=database):
        raise NotAStore(
            f"{database} has schema version {len(applied)}, this release reads {steps[-1].version}: "
            "start a server of this release with it, which brings it up to date"
        )
