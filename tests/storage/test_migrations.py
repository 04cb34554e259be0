"""Migrations bring a database to the schema of this release, step by step, and never back."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.migrations import BrokenMigrations, Migration, load_migrations, pending
from fairlead.storage.sqlite import CannotOpen, SqliteStore
from fairlead.storage.sqlite import file as sqlite_file
from fairlead.storage.sqlite.file import split_statements
from fairlead.storage.tasks import Levels, QueueId, SchemaTooNew, StoredTask

QUEUE = QueueId("namespace", "orders", TaskType.ACTIVITY)
TASK = StoredTask(Level(1, 1), "tenant", 1.0, b"payload")
KNOWN = [Migration(1, "one", ""), Migration(2, "two", ""), Migration(3, "three", "")]


def run(file: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements on a file that no store has open; returns the rows of the last one."""
    with closing(sqlite3.connect(file)) as connection, connection:
        rows = [connection.execute(statement).fetchall() for statement in statements]
    connection.close()
    return rows[-1]


async def made_by_this_release(file: Path) -> None:
    store = await SqliteStore.open(file)
    lease = await store.take_lease(QUEUE)
    await store.append(QUEUE, lease.range_id, 3, [TASK], Levels(LEVEL_ZERO, TASK.level))
    await store.close()


def add_migration(monkeypatch: pytest.MonkeyPatch, *statements: str) -> int:
    """Add another step to this release, and return its number."""
    known = load_migrations("sqlite")
    known.append(Migration(len(known) + 1, "planted", ";\n".join(statements) + ";\n"))
    monkeypatch.setattr(sqlite_file, "load_migrations", lambda _: known)
    return len(known)


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_steps_of_each_database_are_numbered_without_a_gap(dialect: str) -> None:
    migrations = load_migrations(dialect)
    assert [migration.version for migration in migrations] == list(range(1, len(migrations) + 1))
    assert all("CREATE" in migration.sql for migration in migrations[:1])


def test_a_new_database_needs_every_step() -> None:
    assert pending(KNOWN, applied=[], database="x") == KNOWN


def test_an_older_database_needs_the_missing_steps() -> None:
    assert pending(KNOWN, applied=[2, 1], database="x") == KNOWN[2:]
    assert pending(KNOWN, applied=[1, 2, 3], database="x") == []


def test_a_newer_database_is_refused_with_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SchemaTooNew, match=r"x has schema version 5, this release knows versions up to 3: .*start the"):
        pending(KNOWN, applied=[1, 2, 3, 4, 5], database="x")


def test_a_database_that_skipped_a_step_is_refused() -> None:
    with pytest.raises(BrokenMigrations, match=r"recorded in x are numbered \[1, 3\]"):
        pending(KNOWN, applied=[1, 3], database="x")


async def test_applied_steps_are_recorded_in_the_database(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    await made_by_this_release(file)
    recorded = run(file, "SELECT version, name FROM schema_migrations ORDER BY version")
    assert recorded == [(migration.version, migration.name) for migration in load_migrations("sqlite")]


async def test_a_file_of_a_newer_release_is_refused_and_not_changed(tmp_path: Path) -> None:
    file = tmp_path / "tasks.db"
    await made_by_this_release(file)
    known = len(load_migrations("sqlite"))
    run(file, "INSERT INTO schema_migrations SELECT max(version) + 1, 'from_the_future' FROM schema_migrations")
    before = file.read_bytes()
    with pytest.raises(SchemaTooNew, match=f"{file} has schema version {known + 1}, this release knows .* {known}: "):
        await SqliteStore.open(file)
    assert file.read_bytes() == before
    # Nor is the file locked: the newer release can open it.
    run(file, "DELETE FROM schema_migrations WHERE name = 'from_the_future'")
    store = await SqliteStore.open(file)
    await store.close()


async def test_opening_a_file_of_an_older_release_runs_the_missing_steps_and_keeps_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tasks.db"
    await made_by_this_release(file)
    version = add_migration(monkeypatch, "CREATE TABLE more (x TEXT)", "INSERT INTO more VALUES ('a;b')")
    for _ in range(2):
        store = await SqliteStore.open(file)
        assert await store.read(QUEUE, 3, after=LEVEL_ZERO, limit=10) == [TASK]
        await store.close()
    assert run(file, "SELECT * FROM more") == [("a;b",)]
    assert run(file, "SELECT max(version), count(*) FROM schema_migrations") == [(version, version)]


async def test_a_failing_step_is_rolled_back_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tasks.db"
    await made_by_this_release(file)
    version = add_migration(
        monkeypatch, "CREATE TABLE more (x TEXT)", "DELETE FROM tasks", "INSERT INTO nowhere VALUES (1)"
    )
    with pytest.raises(CannotOpen, match="no such table: nowhere"):
        await SqliteStore.open(file)
    assert run(file, "SELECT count(*) FROM sqlite_schema WHERE name = 'more'") == [(0,)]
    assert run(file, "SELECT count(*) FROM tasks") == [(1,)]
    assert run(file, "SELECT max(version) FROM schema_migrations") == [(version - 1,)]


def test_a_script_is_split_into_its_statements() -> None:
    script = "-- a; comment\nCREATE TABLE a (x TEXT);\nINSERT INTO a\nVALUES (';\n');\n\n-- the end\n"
    assert [statement.split()[-1] for statement in split_statements(script)] == ["TEXT);", "');"]
