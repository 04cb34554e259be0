"""Visibility rows wait in a log, which is short, survives crashes, and is moved before each list."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from fairlead.storage.commit import Commit
from fairlead.storage.history import RunKey, VisibilityDelete, VisibilityRow
from fairlead.storage.sqlite import SqliteStore, visibility_log
from tests.storage.history.writes import NAMESPACE, SHARD, row


async def commit(store: SqliteStore, *rows: VisibilityRow | VisibilityDelete) -> None:
    lease = await store.history.take_shard(SHARD)
    await store.history.commit(SHARD, lease.range_id, Commit(visibility=rows))


async def listed(store: SqliteStore) -> dict[str, int]:
    """The status of each listed run."""
    rows = await store.history.list_visibility(NAMESPACE, limit=5000)
    return {one.run_id: one.status for one in rows}


def rows_in(file: Path, table: str) -> int:
    connection = sqlite3.connect(file)
    (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - names of this module
    connection.close()
    return int(rows)


async def test_rows_that_were_in_the_log_at_a_crash_are_listed_afterwards(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("moved"), row("deleted"), row("closed"))
    assert len(await listed(store)) == 3
    await commit(store, row("closed", status=2), VisibilityDelete(NAMESPACE, "deleted"), row("new"))
    for name in ("one.db", "one.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("one", "crashed"))
    assert rows_in(tmp_path / "crashed.db", "visibility_log") == 3
    crashed = await SqliteStore.open(tmp_path / "crashed.db")
    assert await listed(crashed) == {"moved": 1, "closed": 2, "new": 1} == await listed(store)
    await crashed.close()
    await store.close()


async def test_a_full_log_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visibility_log, "ROWS_LOGGED_MAX", 10)
    store = await SqliteStore.open(tmp_path / "one.db")
    for number in range(5):
        await commit(store, row(f"a-{number}"), row(f"b-{number}"))
    assert (rows_in(tmp_path / "one.db", "visibility_log"), rows_in(tmp_path / "one.db", "visibility")) == (0, 10)
    await store.close()


async def test_large_memos_are_moved_out_of_the_log(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("large", memo=bytes(visibility_log.BYTES_LOGGED_MAX)))
    assert rows_in(tmp_path / "one.db", "visibility_log") == 0
    await store.close()


async def test_a_closed_store_has_an_empty_log(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("one"), row("two"))
    assert rows_in(tmp_path / "one.db", "visibility_log") == 2
    await store.close()
    assert (rows_in(tmp_path / "one.db", "visibility_log"), rows_in(tmp_path / "one.db", "visibility")) == (0, 2)


async def test_a_row_that_can_not_be_stored_does_not_enter_the_log(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("before"))
    with pytest.raises(Exception, match=r"too large|NOT NULL"):
        await commit(store, row("bad", start_time_ns=2**80))
    with pytest.raises(Exception, match=r"too large|NOT NULL"):
        await commit(store, row("bad", workflow_type=None))
    await commit(store, row("after"))
    assert await listed(store) == {"before": 1, "after": 1}
    await store.close()


async def test_a_deleted_run_whose_row_is_in_the_log_is_not_listed(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("one"), row("two"))
    lease = await store.history.take_shard(SHARD)
    await store.history.delete_run(SHARD, lease.range_id, RunKey(NAMESPACE, row("one").workflow_id, "one"))
    assert await listed(store) == {"two": 1}
    await store.close()


async def test_a_row_that_the_table_rejects_blocks_no_list(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    with sqlite3.connect(tmp_path / "one.db") as connection:
        connection.execute(
            "CREATE TRIGGER rejected BEFORE INSERT ON visibility WHEN NEW.run_id = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    await commit(store, row("one"), row("bad"), row("two"))
    assert await listed(store) == {"one": 1, "two": 1}
    await commit(store, row("one", status=2))
    assert await listed(store) == {"one": 2, "two": 1}
    await store.close()


async def test_the_bytes_in_the_log_are_counted_after_a_restart(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "one.db")
    await commit(store, row("large", memo=bytes(visibility_log.BYTES_LOGGED_MAX - 1000)))
    for name in ("one.db", "one.db-wal"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("one", "crashed"))
    await store.close()
    crashed = await SqliteStore.open(tmp_path / "crashed.db")
    await commit(crashed, row("another", memo=bytes(1000)))
    assert rows_in(tmp_path / "crashed.db", "visibility_log") == 0
    await crashed.close()
