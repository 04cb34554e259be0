"""`fairlead lake erase`: afterwards no file of lake, journal and published tables has the target, by its bytes."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from pyiceberg.avro.file import AvroFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.sql.pandas.types import to_arrow_schema
from temporalio.api.history.v1 import History

from fairlead.cli.lake import lake as command
from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.erasure import NotErased, Target, check_erased
from fairlead.pipeline.erasure.target import NothingToErase
from fairlead.pipeline.jobs.ingest import sort_out, taken_in
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.sources.segments import find_segments
from fairlead.pipeline.upkeep.compaction import compact
from tests.pipeline.journals import frames_of
from tests.pipeline.upkeep.lakes import commit

GONE, KEPT = "order-1042-of-jane", "order-7-of-john"
BEGIN = "order-1042"
SECRETS, PUBLIC = "6f9c2b-secrets-id", "11aa22-public-id"


def events(*, child: str = "") -> str:
    """The payload of a batch; with a child, its parent's event names it."""
    history = History()
    event = history.events.add(event_id=1)
    event.workflow_execution_started_event_attributes.workflow_type.name = "Order"
    if child:
        initiated = history.events.add(event_id=2)
        initiated.start_child_workflow_execution_initiated_event_attributes.workflow_id = child
    return base64.b64encode(history.SerializeToString()).decode()


def batch(workflow_id: str, namespace_id: str = PUBLIC, **fields: object) -> dict[str, object]:
    return {
        "time_us": 1_767_225_600_000_000,
        "namespace_id": namespace_id,
        "namespace": {SECRETS: "secrets", PUBLIC: "public"}[namespace_id],
        "workflow_id": workflow_id,
        "run_id": f"run-of-{workflow_id}",
        "tree_id": f"run-of-{workflow_id}",
        "first_event_id": 1,
        "last_event_id": 2,
        "status": 2,
        "payload": events(),
    } | fields


class World:
    """A lake with a journal and published tables, in which two workflows have rows everywhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake, self.journal = Lake(folder / "lake"), folder / "journal"
        self.delta, self.catalog, self.warehouse = (
            folder / "delta",
            f"sqlite:///{folder}/catalog.db",
            folder / "iceberg",
        )
        histories = [batch(GONE), batch(KEPT, payload=events(child=GONE)), batch("order-9", SECRETS)]
        tasks = [
            {"time_us": 1_767_225_600_000_000, "kind": "added", "namespace_id": space, "task_list": "q", "task_type": 1}
            for space in (PUBLIC, SECRETS, f"{SECRETS}#app:v1")
        ]
        self.commit("history", histories)
        self.commit("task", tasks)
        run: dict[str, object] = {"cluster": "alpha", "namespace_id": PUBLIC, "namespace": "public"}
        runs = [run | {"workflow_id": GONE}, run | {"workflow_id": KEPT, "parent_workflow_id": GONE}]
        self.derive(
            "workflows", [*runs, run | {"workflow_id": "order-9", "namespace_id": SECRETS, "namespace": "secrets"}]
        )
        self.derive("failures", [run | {"count": 2, "workflow_ids": [GONE, KEPT]}])
        self.publish()
        # A second version of everything, so that replaced files hold the target, too.
        for _ in range(2):
            self.commit("history", [batch(GONE), batch(KEPT)])
        with self.lake.locked():
            compact(self.lake, "history", batches_min=2)
        self.publish()
        (self.lake.root / "_namespaces.json").write_text(
            json.dumps({"through": {}, "names": {PUBLIC: "public", SECRETS: "secrets"}})
        )
        # The origin of an incremental run's tables also has the names of namespaces.
        origin = self.lake.written("workflows") / "_origin.json"
        origin.write_text(json.dumps({"names": {PUBLIC: "public", SECRETS: "secrets"}}))
        (self.lake.root / "report.html").write_text(f"<p>{GONE} failed, of secrets</p>")
        (self.lake.root / "repair_plan.json").write_text(json.dumps({"sends": [{"workflow_id": KEPT}]}))

    def commit(self, table: str, rows: list[dict[str, object]]) -> None:
        name = commit(self.lake, table, rows, cluster="alpha")
        file = self.journal / "alpha" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(frames_of(rows, frame_records=2))
        file.chmod(0o600)
        manifest = next(self.lake.root.glob(f"{table}/batch=*{len(list(self.lake.table(table).glob('batch=*'))) - 1}"))
        plain = json.loads((manifest / "_batch.json").read_text())
        plain["segments"][-1] |= {"bytes": file.stat().st_size}
        (manifest / "_batch.json").write_text(json.dumps(plain))

    def derive(self, table: str, rows: list[dict[str, object]]) -> None:
        schema = to_arrow_schema(TABLES[table].schema)
        place = schema.get_field_index("namespace_id") + 1
        schema = schema.insert(place, pa.field("namespace", pa.string()))
        run = self.lake.root / "_runs" / table / "run-1"
        run.mkdir(parents=True)
        plain = [{name: row.get(name) for name in schema.names} for row in rows]
        parquet.write_table(pa.Table.from_pylist(plain, schema=schema), run / "part-0.zstd.parquet", compression="zstd")
        (self.lake.root / table).symlink_to(f"_runs/{table}/run-1")

    def publish(self) -> None:
        places = ["--delta", str(self.delta), "--iceberg", self.catalog, "--warehouse", str(self.warehouse)]
        done = CliRunner().invoke(command, ["publish", "--lake", str(self.lake.root), *places])
        assert done.exit_code == 0, done.output

    def erase(self, *options: str) -> Result:
        places = ["--delta", str(self.delta), "--iceberg", self.catalog, "--warehouse", str(self.warehouse)]
        where = ["--lake", str(self.lake.root), "--journal", str(self.journal)]
        return CliRunner().invoke(command, ["erase", *where, *places, *options], catch_exceptions=False)

    def texts(self) -> Iterator[tuple[Path, bytes]]:
        """Everything that the files hold: their bytes, decompressed and decoded in each way that hides a text."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                yield path, path.read_bytes()
                yield from ((path, text) for text in decoded(path))


def decoded(path: Path) -> Iterator[bytes]:
    if path.suffix == ".parquet":
        rows = parquet.ParquetFile(path).read().to_pylist()
        yield repr(rows).encode()
        yield repr(parquet.read_metadata(path).to_dict()).encode()
        yield from (base64.b64decode(row["payload"]) for row in rows if row.get("payload"))
    elif path.suffix == ".zst":
        text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
        yield text
        yield from (base64.b64decode(found) for found in re.findall(rb'"payload":"([^"]*)"', text))
    elif path.suffix == ".avro":
        records: AvroFile[Any] = AvroFile(PyArrowFileIO().new_input(str(path)))
        with records:
            yield repr(list(records)).encode()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def files_with(world: World, text: str) -> set[str]:
    return {str(path.relative_to(world.folder)) for path, content in world.texts() if text.encode() in content}


def test_an_erased_workflow_id_is_in_no_byte_of_any_file(world: World) -> None:
    before = files_with(world, BEGIN)
    # The search finds the target wherever it was put, also in the bounds of Iceberg's manifests, which are cut.
    parts = ("lake/_tables/history", "lake/_runs/workflows", "lake/_runs/failures", "lake/report.html", "journal/alpha")
    for part in (*parts, "delta/history", "delta/workflows", "iceberg/history"):
        assert any(name.startswith(part) for name in before), part
    assert any(name.endswith(".avro") for name in before)
    kept = {part.partition("/")[0] for part in files_with(world, KEPT)}
    done = world.erase("--workflow-id", GONE)
    assert done.exit_code == 0, done.output
    assert files_with(world, BEGIN) == set()
    # The other workflow is still everywhere, without the events that named the erased one.
    assert {part.partition("/")[0] for part in files_with(world, KEPT)} == kept
    history = parquet.read_table(world.lake.table("history").resolve(), partitioning=None).to_pylist()
    assert sorted(row["workflow_id"] for row in history) == [KEPT, KEPT, KEPT, "order-9"]
    assert [row["payload"] is None for row in history if row["workflow_id"] == KEPT].count(True) == 1
    (failure,) = parquet.read_table(world.lake.written("failures")).to_pylist()
    assert failure["workflow_ids"] == [KEPT]
    assert failure["count"] == 2


def test_an_erased_namespace_is_in_no_byte_of_any_file(world: World) -> None:
    assert len({name.partition("/")[0] for name in files_with(world, SECRETS)}) == 4
    done = world.erase("--namespace", "secrets")
    assert done.exit_code == 0, done.output
    assert files_with(world, SECRETS) == set()
    tasks = parquet.read_table(world.lake.table("task").resolve(), partitioning=None).to_pylist()
    assert [row["namespace_id"] for row in tasks] == [PUBLIC]
    assert json.loads((world.lake.root / "_namespaces.json").read_text())["names"] == {PUBLIC: "public"}
    # The plan of the repair does not name it.
    assert (world.lake.root / "repair_plan.json").exists()
    assert not (world.lake.root / "report.html").exists()


def test_a_workflow_id_is_erased_only_from_its_namespace(world: World) -> None:
    assert world.erase("--workflow-id", "order-9", "--namespace", "public").exit_code == 0
    assert files_with(world, "order-9")
    assert world.erase("--workflow-id", "order-9", "--namespace", "secrets").exit_code == 0
    assert files_with(world, "order-9") == set()


def test_a_dry_run_counts_and_changes_nothing(world: World) -> None:
    before = {path: path.read_bytes() for path in world.folder.rglob("*") if path.is_file()}
    done = world.erase("--workflow-id", GONE, "--dry-run", "-o", "json")
    assert done.exit_code == 0
    assert {path: path.read_bytes() for path in world.folder.rglob("*") if path.is_file()} == before
    assert "would be erased" in done.output


def test_ingest_takes_the_rewritten_segments_for_known(world: World) -> None:
    world.erase("--workflow-id", GONE)
    segments = find_segments(world.journal)
    with world.lake.locked():
        for kind in ("task", "history"):
            its = [one for one in segments if one.kind == kind]
            found = sort_out(world.lake, taken_in(world.lake, kind), its)
            assert (found.known, found.changed, found.news) == (len(its), [], [])
    assert {oct(one.path.stat().st_mode & 0o777) for one in segments} == {"0o600"}


def test_segments_that_are_damaged_or_still_written_are_named(world: World) -> None:
    (world.journal / "alpha" / "history.v1.h.000000000099.jsonl.zst").write_bytes(b"damaged")
    done = world.erase("--workflow-id", GONE)
    assert done.exit_code == 3
    assert "000000000099.jsonl.zst can't be read" in done.output
    (world.journal / "alpha" / "history.v1.h.000000000099.jsonl.zst").unlink()
    (world.journal / "alpha" / "task.v1.h.000000000100.jsonl.zst.open").write_bytes(b"")
    done = world.erase("--workflow-id", GONE)
    assert done.exit_code == 3
    assert "1 segment of the journal can still be written to" in done.output


def test_the_search_at_the_end_finds_what_was_left(world: World) -> None:
    with pytest.raises(NotErased, match=r"_runs/failures.*still has order-1042-of-jane"):
        check_erased(world.lake, Target(GONE))
    (world.lake.root / "note.txt").write_text(KEPT)
    with pytest.raises(NotErased, match=r"note\.txt"):
        check_erased(world.lake, Target(KEPT, frozenset({"nowhere"})))
    with pytest.raises(NothingToErase):
        Target()


@given(st.text(min_size=1, max_size=200), st.integers(0, 5))
def test_events_that_name_a_workflow_are_found_at_every_position(workflow_id: str, padding: int) -> None:
    history = History()
    event = history.events.add(event_id=1)
    event.workflow_execution_started_event_attributes.workflow_type.name = "x" * padding
    event.workflow_execution_started_event_attributes.parent_workflow_execution.workflow_id = workflow_id
    with_it = base64.b64encode(history.SerializeToString()).decode()
    event.workflow_execution_started_event_attributes.parent_workflow_execution.workflow_id = "…"
    without = base64.b64encode(history.SerializeToString()).decode()
    target = Target(workflow_id)
    found = target.mentions(pa.array([with_it, without, None])).to_pylist()
    assert found[0]
    assert not found[2]
    if len(workflow_id) > 6:
        assert not found[1]
