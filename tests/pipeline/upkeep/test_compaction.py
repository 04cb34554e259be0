"""Compaction merges small batches: no row is lost or doubled, and nothing is ingested again."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pyspark.sql import SparkSession

from fairlead.pipeline.lake import Lake
from fairlead.pipeline.upkeep import compaction, generations
from fairlead.pipeline.upkeep.batches import Batch, NewerColumns, batches_of
from fairlead.pipeline.upkeep.compaction import compact, mergeable
from tests.pipeline.upkeep.lakes import commit, day, rows, tasks


def compacted(lake: Lake, table: str = "task", *, batches_min: int = 2) -> compaction.Compacted:
    with lake.locked():
        return compact(lake, table, batches_min=batches_min)


def filled(folder: Path, *, batches: int = 9) -> Lake:
    lake = Lake(folder / "lake")
    for number in range(batches):
        commit(lake, "task", tasks(5), ago=number % 2, cluster=("alpha", "beta")[number % 3 == 0])
    return lake


def test_a_compaction_keeps_every_row_once_and_all_partitions(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    before = rows(lake.root, "task", "* EXCLUDE (batch)")
    done = compacted(lake)
    assert (done.batches_before, done.batches, done.files_before, done.files) == (9, 1, 9, 4)
    assert done.rows_rewritten == 45
    assert rows(lake.root, "task", "* EXCLUDE (batch)") == before


def test_spark_reads_a_compacted_table(spark: SparkSession, tmp_path: Path) -> None:
    lake = filled(tmp_path)
    before = sorted(map(tuple, lake.read(spark, "task").collect()), key=str)
    running = lake.read(spark, "task")
    compacted(lake)
    assert sorted(map(tuple, lake.read(spark, "task").collect()), key=str) == before
    # A job that planned its reads before the compaction continues with the files of the earlier generation.
    assert sorted(map(tuple, running.collect()), key=str) == before


def test_segments_of_merged_batches_stay_known_with_their_arrival(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    before, unknown = sorted(lake.segments("task"), key=str), lake.unknown("task")
    compacted(lake)
    assert sorted(lake.segments("task"), key=str) == before
    assert lake.unknown("task") == unknown


def test_the_next_batch_follows_the_merged_one(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    compacted(lake)
    commit(lake, "task", tasks(1))
    assert [batch.number for batch in batches_of(lake.table("task"))] == [8, 9]
    assert len(rows(lake.root, "task")) == 46


def test_a_second_compaction_replaces_the_table_again(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    compacted(lake)
    for _ in range(9):
        commit(lake, "task", tasks(2))
    assert compacted(lake).batches == 1
    assert len(rows(lake.root, "task")) == 45 + 18


def test_replaced_generations_are_removed_when_no_reader_can_need_them(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    compacted(lake)
    assert len(list((lake.root / "_tables" / "task").iterdir())) == 2
    with lake.locked():
        generations.remove_replaced(lake, "task", age_s=0)
    assert list((lake.root / "_tables" / "task").iterdir()) == [lake.table("task").resolve()]
    assert len(rows(lake.root, "task")) == 45


@pytest.mark.parametrize("moment", ["merge", "swap", "cleanup"])
def test_a_kill_during_a_compaction_changes_nothing_that_readers_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    lake = filled(tmp_path)
    before = rows(lake.root, "task")

    class Killed(BaseException):
        pass

    def kill(*_arguments: object, **_options: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if moment == "merge":
            patched.setattr(compaction, "write_json", kill)
        elif moment == "swap":
            patched.setattr(Path, "symlink_to", kill)
        else:
            patched.setattr(generations, "remove_replaced", kill)
        with pytest.raises(Killed):
            compacted(lake)
    assert rows(lake.root, "task") == before
    # The next run finishes the work, and leaves nothing in the staging folder.
    assert compacted(Lake(lake.root)).batches == 1
    assert rows(lake.root, "task") == before
    with lake.locked():
        assert not (lake.root / "_staging" / "batches").exists()


def test_a_file_of_a_newer_release_is_not_rewritten_without_its_columns(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    file = next(lake.table("task").rglob("*.parquet"))
    newer = parquet.ParquetFile(file).read()
    newer = newer.append_column("colour", newer.column("kind"))
    parquet.write_table(newer, file)
    with pytest.raises(NewerColumns, match="colour"):
        compacted(lake)
    assert len(rows(lake.root, "task", "segment")) == 45


def test_a_batch_without_rows_keeps_its_segments(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    with lake.locked():
        lake.commit("task", lake.stage("task"), list(lake.segments("task"))[:1])
    segments = sorted(lake.segments("task"), key=str)
    compacted(lake)
    assert sorted(lake.segments("task"), key=str) == segments


def test_the_files_of_a_merged_batch_have_the_comments_of_the_columns(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    compacted(lake)
    metadata = parquet.read_schema(next(lake.table("task").resolve().rglob("*.parquet"))).metadata
    assert b"wait of a matched task" in metadata[b"org.apache.spark.sql.parquet.row.metadata"]


def test_one_partition_is_a_folder_for_a_cluster_and_a_day(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    compacted(lake)
    (batch,) = batches_of(lake.table("task").resolve())
    clusters = ("alpha", "beta")
    assert {str(part) for part in batch.parts()} == {
        f"cluster={cluster}/day={day(ago)}" for cluster in clusters for ago in (0, 1)
    }


def batch(number: int, size: int) -> Batch:
    return Batch(Path(f"batch={number}"), number, size, 1)


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(2, 5))
def test_groups_are_consecutive_and_within_the_bound(sizes: Sequence[int], batches_min: int) -> None:
    batches = [batch(number, size) for number, size in enumerate(sizes)]
    groups = mergeable(batches, batches_min=batches_min, bytes_max=100)
    for group in groups:
        numbers = [one.number for one in group]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(group) >= batches_min
        assert sum(one.bytes for one in group) <= 100
        # The first batch, the oldest, is worth the rewrite.
        assert group[0].bytes <= sum(one.bytes for one in group[1:])
    taken = [one.number for group in groups for one in group]
    assert len(taken) == len(set(taken))


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    """2,048 batches of one byte, with a compaction after every eighth: as a stream does it."""
    batches: list[Batch] = []
    rewritten = 0
    for number in range(2_048):
        batches.append(batch(number, 1))
        if number % 8 == 7:
            for group in mergeable(batches, batches_min=8, bytes_max=1 << 20):
                size = sum(one.bytes for one in group)
                rewritten += size
                batches = [one for one in batches if one not in group]
                batches.append(batch(group[-1].number, size))
                batches.sort(key=lambda one: one.number)
    assert rewritten / 2_048 <= 11
    assert len(batches) <= 64


def test_a_table_with_few_batches_is_left_alone(tmp_path: Path) -> None:
    lake = filled(tmp_path, batches=7)
    generation = lake.table("task").resolve()
    assert compacted(lake, batches_min=8).batches == 7
    assert lake.table("task").resolve() == generation


def test_a_table_of_an_earlier_release_becomes_a_link(tmp_path: Path) -> None:
    lake = filled(tmp_path)
    table = lake.table("task")
    before = rows(lake.root, "task")
    generation = table.resolve()
    table.unlink()
    generation.rename(table)
    assert not table.is_symlink()
    compacted(lake)
    assert table.is_symlink()
    assert rows(lake.root, "task") == before
