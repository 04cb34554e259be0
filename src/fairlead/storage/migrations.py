"""Schema migrations: numbered, forward only, each in a transaction.

A migration is a file `schema/<database>/<number>_<name>.sql`. A store runs the pending migrations when it is opened,
each in one transaction with the row that records it:

for step in pending(load_migrations("sqlite"), applied=versions, database="tasks.db"): ...
"""

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import NamedTuple

from fairlead.core.errors import GiveUp
from fairlead.storage.tasks import SchemaTooNew

# Table in which each database records its applied migrations: (version, name).
MIGRATIONS_TABLE = "schema_migrations"

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


class BrokenMigrations(GiveUp):
    """The migrations of this release, or those recorded in a database, are not numbered 1, 2, 3, ... without a gap."""


class Migration(NamedTuple):
    """A migration. `sql` holds one or more statements, without BEGIN and COMMIT."""

    version: int
    name: str
    sql: str


def load_migrations(dialect: str) -> list[Migration]:
    """The migrations of this release for one kind of database, in order."""
    folder = files("fairlead.storage") / "schema" / dialect
    migrations = []
    for file in folder.iterdir():
        match = _FILE_NAME.fullmatch(file.name)
        if match is not None:
            migrations.append(Migration(int(match[1]), match[2], file.read_text(encoding="utf-8")))
    migrations.sort()
    _check_numbers([migration.version for migration in migrations], f"the migrations for {dialect}")
    return migrations


def pending(known: Sequence[Migration], *, applied: Iterable[int], database: str) -> list[Migration]:
    """The migrations that a database with the `applied` versions still needs, in order.

    Raises `SchemaTooNew` or `BrokenMigrations`. Call it before any change, so that a database of a newer release stays
    unchanged.
    """
    versions = sorted(applied)
    if versions and versions[-1] > len(known):
        raise SchemaTooNew(
            f"{database} has schema version {versions[-1]}, this release knows versions up to {len(known)}: "
            "nothing was changed; start the release that wrote it, or a later one, or restore an older backup"
        )
    _check_numbers(versions, f"the migrations recorded in {database}")
    return list(known[len(versions) :])


def _check_numbers(versions: Sequence[int], what: str) -> None:
    if list(versions) != list(range(1, len(versions) + 1)):
        raise BrokenMigrations(f"{what} are numbered {list(versions)}: expected 1, 2, 3, ... without a gap")
