"""Published tables hold exactly the rows of the lake, in one commit for each change. DuckDB reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyiceberg.table import Table

from fairlead.pipeline.lake import Lake
from fairlead.pipeline.publish import (
    CantPublish,
    DeltaPlace,
    IcebergPlace,
    Published,
    delta,
    files,
    iceberg,
    publishing,
)
from fairlead.pipeline.publish.files import PublishedMeanwhile
from fairlead.pipeline.upkeep.compaction import compact
from tests.pipeline.upkeep.lakes import commit, day, history, rows, tasks


class Place(Protocol):
    def publish(self, lake: Lake, table: str) -> Published: ...


class Reader:
    """Reads published tables of one format, by way of its library."""

    def __init__(self, place: DeltaPlace | IcebergPlace) -> None:
        self.place = place

    def table(self, name: str) -> pa.Table:
        if isinstance(self.place, DeltaPlace):
            return DeltaTable(f"{self.place.url}/{name}").to_pyarrow_table()
        return self.iceberg(name).scan().to_arrow()

    def iceberg(self, name: str) -> Table:
        assert isinstance(self.place, IcebergPlace)
        return self.place.open().load_table((self.place.namespace, name))

    def commits(self, name: str) -> int:
        if isinstance(self.place, DeltaPlace):
            return DeltaTable(f"{self.place.url}/{name}").version() + 1
        return len(self.iceberg(name).snapshots())

    def rows(self, name: str, columns: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as connection:
            connection.register("published", self.table(name))
            return connection.execute(f"SELECT {columns} FROM published ORDER BY ALL").fetchall()


@pytest.fixture(params=["delta", "iceberg"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    if request.param == "delta":
        yield Reader(DeltaPlace(str(tmp_path / "my delta")))
    else:
        yield Reader(IcebergPlace(f"sqlite:///{tmp_path}/catalog.db", str(tmp_path / "my iceberg")))


@pytest.fixture(params=["alpha", "eu west=1:%2 ü"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    lake = Lake(tmp_path / "lake")
    for ago in (1, 0):
        commit(lake, "task", tasks(3), ago=ago, cluster=("beta", request.param)[ago])
    commit(lake, "history", [row | {"items": [{"event_id": 4, "version": 1}]} for row in history("r", 4)])
    return lake


COLUMNS = "time_us, kind, namespace_id, segment, position, cluster, day"


def derive(lake: Lake, table: str, run: str, **columns: list[object]) -> None:
    """Write a derived table as a job does: a new folder, and a link to it."""
    folder = lake.root / "_runs" / table / run
    folder.mkdir(parents=True)
    parquet.write_table(pa.table(columns), folder / "part-00000.zstd.parquet")
    link = lake.root / table
    link.unlink(missing_ok=True)
    link.symlink_to(folder.relative_to(lake.root))


def test_a_published_table_has_all_rows_with_cluster_and_day(reader: Reader, lake: Lake) -> None:
    for table in ("task", "history"):
        reader.place.publish(lake, table)
    assert reader.rows("task", COLUMNS) == rows(lake.root, "task", COLUMNS)
    assert {row[-1] for row in reader.rows("task", COLUMNS)} == {day(0), day(1)}
    columns = "run_id, first_event_id, items, cluster, day"
    assert reader.rows("history", columns) == rows(lake.root, "history", columns)


def test_a_second_run_without_changes_makes_no_commit(reader: Reader, lake: Lake) -> None:
    first = reader.place.publish(lake, "task")
    assert (first.rows, first.files_added, first.files_removed) == (6, 2, 0)
    second = reader.place.publish(lake, "task")
    assert (second.rows, second.files_added, second.files_removed) == (6, 0, 0)
    assert reader.commits("task") == 1


def test_a_new_batch_is_one_commit_that_adds_files(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    commit(lake, "task", tasks(5))
    found = reader.place.publish(lake, "task")
    assert (found.files_added, found.files_removed, reader.commits("task")) == (1, 0, 2)
    assert reader.rows("task", COLUMNS) == rows(lake.root, "task", COLUMNS)


def test_a_compaction_is_one_commit_without_a_changed_row(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    commit(lake, "task", tasks(5), cluster="beta")
    before = rows(lake.root, "task", COLUMNS)
    reader.place.publish(lake, "task")
    with lake.locked():
        compact(lake, "task", batches_min=2)
    found = reader.place.publish(lake, "task")
    assert (found.files_added, found.files_removed, reader.commits("task")) == (2, 3, 3)
    assert reader.rows("task", COLUMNS) == before


def test_a_new_run_of_a_job_replaces_its_table(reader: Reader, lake: Lake) -> None:
    derive(lake, "traffic", "1", added=[1, 2])
    reader.place.publish(lake, "traffic")
    derive(lake, "traffic", "2", added=[3])
    found = reader.place.publish(lake, "traffic")
    assert (found.rows, found.files_added, found.files_removed) == (1, 1, 1)
    assert reader.rows("traffic", "added") == [(3,)]


def test_a_kill_between_the_copy_and_the_commit_is_mended_by_the_next_run(
    reader: Reader, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.place.publish(lake, "task")
    commit(lake, "task", tasks(5))

    class Killed(BaseException):
        pass

    def killed(*arguments: Any) -> None:
        files.copy_files(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        for module in (delta, iceberg):
            patched.setattr(module, "copy_files", killed)
        with pytest.raises(Killed):
            reader.place.publish(lake, "task")
    assert len(reader.rows("task", COLUMNS)) == 6
    reader.place.publish(lake, "task")
    assert reader.rows("task", COLUMNS) == rows(lake.root, "task", COLUMNS)


def test_a_column_of_a_newer_release_is_added(reader: Reader, lake: Lake) -> None:
    derive(lake, "traffic", "1", added=[1])
    reader.place.publish(lake, "traffic")
    derive(lake, "traffic", "2", added=[1], colour=["red"])
    reader.place.publish(lake, "traffic")
    assert reader.rows("traffic", "added, colour") == [(1, "red")]


def test_a_column_with_another_type_is_named(reader: Reader, lake: Lake) -> None:
    derive(lake, "traffic", "1", added=[1])
    reader.place.publish(lake, "traffic")
    derive(lake, "traffic", "2", added=["one"])
    with pytest.raises(CantPublish, match=r"added[\s\S]*publish to another place"):
        reader.place.publish(lake, "traffic")
    assert reader.rows("traffic", "added") == [(1,)]


def test_a_lake_on_another_disk_is_copied(reader: Reader, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_linked", lambda *_: False)
    reader.place.publish(lake, "task")
    assert reader.rows("task", COLUMNS) == rows(lake.root, "task", COLUMNS)


def test_the_state_before_a_commit_can_be_read(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    commit(lake, "task", tasks(5))
    reader.place.publish(lake, "task")
    if isinstance(reader.place, DeltaPlace):
        earlier = DeltaTable(f"{reader.place.url}/task", version=0).to_pyarrow_table()
    else:
        table = reader.iceberg("task")
        earlier = table.scan(snapshot_id=table.snapshots()[0].snapshot_id).to_arrow()
    assert earlier.num_rows == 6


def test_the_columns_of_a_published_table_have_their_meaning(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    if isinstance(reader.place, DeltaPlace):
        table = DeltaTable(f"{reader.place.url}/task")
        comments = {field.name: field.metadata.get("comment") for field in table.schema().fields}
        description = table.metadata().description
    else:
        comments = {field.name: field.doc for field in reader.iceberg("task").schema().fields}
        description = reader.iceberg("task").properties["comment"]
    assert comments["partition"] == "number of the partition; 0 is the root"
    assert comments["day"] == "UTC day of `time_us`; a folder of the table"
    assert description == "A row is something that happened at a partition."


def test_a_filter_by_day_reads_only_the_files_of_that_day(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    if isinstance(reader.place, DeltaPlace):
        found = DeltaTable(f"{reader.place.url}/task").file_uris(file_pruning_predicate=[("day", "=", str(day(1)))])
    else:
        found = [task.file.file_path for task in reader.iceberg("task").scan(f"day = '{day(1)}'").plan_files()]
    assert len(found) == 1
    assert f"day={day(1)}" in found[0]


def test_an_empty_table_that_was_never_published_is_left_out(reader: Reader, tmp_path: Path) -> None:
    empty = Lake(tmp_path / "empty")
    commit(empty, "task", [])
    assert reader.place.publish(empty, "task").files_added == 0


def test_a_table_that_lost_all_its_rows_becomes_empty(reader: Reader, lake: Lake) -> None:
    reader.place.publish(lake, "task")
    for file in lake.table("task").resolve().rglob("*.parquet"):
        file.unlink()
    assert reader.place.publish(lake, "task").files_removed == 2
    assert reader.table("task").num_rows == 0


def test_two_runs_at_once_publish_no_row_twice(reader: Reader, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    reader.place.publish(lake, "task")
    commit(lake, "task", tasks(5))

    def raced(*arguments: Any) -> None:
        # Another run publishes the same batch while this one copies its file.
        monkeypatch.undo()
        reader.place.publish(lake, "task")
        files.copy_files(*arguments)

    for module in (delta, iceberg):
        monkeypatch.setattr(module, "copy_files", raced)
    with pytest.raises(PublishedMeanwhile, match="publish again"):
        reader.place.publish(lake, "task")
    assert reader.rows("task", COLUMNS) == rows(lake.root, "task", COLUMNS)
    assert reader.place.publish(lake, "task").files_added == 0


def test_only_one_run_publishes_a_lake_at_a_time(lake: Lake) -> None:
    with publishing(lake), pytest.raises(PublishedMeanwhile, match="wait until it ends"), publishing(lake):
        pass


def test_a_published_table_is_not_split_over_two_warehouses(lake: Lake, tmp_path: Path) -> None:
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    IcebergPlace(catalog, str(tmp_path / "first")).publish(lake, "task")
    with pytest.raises(CantPublish, match="give the folder above it"):
        IcebergPlace(catalog, str(tmp_path / "second")).publish(lake, "task")


def test_a_folder_with_a_percent_sign_is_refused(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(CantPublish, match="give another folder"):
        DeltaPlace(str(tmp_path / "d%41")).publish(lake, "task")
