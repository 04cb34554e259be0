"""Read-only access to a PostgreSQL store, while servers use it."""

from typing import Self

from fairlead.core.errors import FixRequest
from fairlead.storage.migrations import load_migrations, pending
from fairlead.storage.postgres import statements
from fairlead.storage.postgres.connections import Connections
from fairlead.storage.postgres.history import PostgresHistory

CONNECTIONS_MAX = 2
STATEMENT_S_MAX = 60.0


class NotAStore(FixRequest):
    """The database is not a store that this release can read."""


class PostgresReadOnly:
    """The history of a store, read-only: creates and migrates nothing."""

    def __init__(self, connections: Connections) -> None:
        """Call `open` instead of this constructor."""
        self._connections = connections
        self.history = PostgresHistory(connections)

    @classmethod
    async def open(cls, dsn: str) -> Self:
        """Connect; raises `NotAStore` or `SchemaTooNew` if the database is not a store of this release."""
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
        await self.history.close()
        await self._connections.close()


async def _check(connections: Connections) -> None:
    async with connections.connection() as connection:
        database = f"PostgreSQL database {connection.info.dbname!r}"
        if await (await connection.execute(statements.HAS_MIGRATIONS_TABLE)).fetchone() != (True,):
            raise NotAStore(f"{database} is not a store: no server was ever started with it")
        applied = [version async for (version,) in await connection.execute(statements.APPLIED_MIGRATIONS)]
    if steps := pending(load_migrations("postgres"), applied=applied, database=database):
        raise NotAStore(
            f"{database} has schema version {len(applied)}, this release reads {steps[-1].version}: "
            "start a server of this release with it to migrate it"
        )
