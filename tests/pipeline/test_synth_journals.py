"""The synthetic journals as a whole, and the command that writes them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.journal.segments import read_segment
from fairlead.pipeline.sources.segments import find_segments
from fairlead.pipeline.synth.journals import CLUSTERS, JournalManifest, read_manifest, write_journals
from fairlead.pipeline.synth.traffic import JournalInUse

SMALL = 0.1
# Makes every import of Spark fail.
WITHOUT_SPARK = (
    "import sys; sys.modules['pyspark'] = None\nfrom fairlead.cli.main import main; sys.argv[0] = 'fairlead'; main()"
)


def synth(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, "pipeline", "synth", *map(str, arguments)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )


def content(journal: Path) -> dict[str, bytes]:
    return {str(file.relative_to(journal)): file.read_bytes() for file in journal.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("synth") / "journal"
    done = synth("--journal", folder, "--scale", SMALL, "--seed", 7, "-o", "json")
    assert (done.returncode, done.stderr) == (0, ""), done
    manifest = read_manifest(folder)
    answer = json.loads(done.stdout)
    assert answer["task_records"] == manifest.task_records
    assert answer["runs"] == manifest.histories.runs
    assert sum(answer["defects"].values()) == len(manifest.histories.planted)
    return folder


@pytest.fixture(scope="module")
def manifest(journal: Path) -> JournalManifest:
    return read_manifest(journal)


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(journal: Path, tmp_path: Path) -> None:
    heard: list[int] = []
    write_journals(tmp_path / "same", scale=SMALL, seed=7, notify=lambda _subject, made: heard.append(made))
    write_journals(tmp_path / "other", scale=SMALL, seed=8, notify=lambda *_: None)
    assert content(tmp_path / "same") == content(journal)
    assert content(tmp_path / "other").keys() == content(journal).keys()
    assert content(tmp_path / "other") != content(journal)
    made = read_manifest(journal)
    assert sum(heard) == made.task_records + made.histories.runs


def test_all_clusters_have_traffic_and_histories(journal: Path, manifest: JournalManifest) -> None:
    segments = find_segments(journal)
    assert {(one.cluster, one.name.partition(".")[0]) for one in segments} == {
        (cluster, kind) for cluster in CLUSTERS for kind in ("task", "history")
    }
    damaged = {(one.cluster, one.segment) for one in (*manifest.damaged, *manifest.copied)}
    sound = [one for one in segments if one.key not in damaged]
    rows = {
        kind: sum(sum(1 for _ in read_segment(one.path)) for one in sound if one.name.startswith(kind))
        for kind in ("task", "history")
    }
    assert rows == {"task": manifest.task_records, "history": manifest.histories.records}


def test_each_damaged_segment_is_beside_the_sound_ones_and_damaged_in_its_own_way(
    journal: Path, manifest: JournalManifest
) -> None:
    keys = {one.key for one in find_segments(journal)}
    assert {(one.cluster, one.segment) for one in manifest.damaged} <= keys
    assert sorted(one.damage for one in manifest.damaged) == ["flipped", "foreign", "future", "newer", "torn"]


def test_a_folder_that_is_not_empty_is_refused_in_one_line(journal: Path, tmp_path: Path) -> None:
    before = content(journal)
    done = synth("--journal", journal, "--scale", SMALL)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"fairlead: --journal {journal}: the folder is not empty: give an empty or a new one\n"
    assert content(journal) == before
    (tmp_path / "file").touch()
    with pytest.raises(JournalInUse):
        write_journals(tmp_path / "file", scale=SMALL, seed=0, notify=lambda *_: None)


def test_an_invalid_scale_is_refused_in_one_line(tmp_path: Path) -> None:
    done = synth("--journal", tmp_path / "journal", "--scale", 0)
    assert done.returncode == 2
    assert "0.0 is not in the range" in done.stderr
    assert not (tmp_path / "journal").exists()
