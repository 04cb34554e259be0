"""A real standalone cluster on this machine: the same job gives the same tables."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline import session
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from tests.depth import IS_DEEP
from tests.pipeline import kills
from tests.pipeline.journals import write_journal
from tests.pipeline.servers import BIN, cluster

PROJECT = Path(__file__).parent.parent.parent
CHILD = Path(__file__).with_name("cluster_child.py")


def build_wheel(folder: Path) -> Path:
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--wheel-dir", folder)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, PROJECT], check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.sim
def test_a_cluster_of_two_workers_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    """`make sim` also submits the package as a wheel, which starts three more Java processes."""
    journal = tmp_path / "journal"
    total = write_journal(journal, segments=4)
    ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "local"), journal=journal))
    with cluster(tmp_path) as master:
        # The way of `--master`.
        answers = {"installed": run(sys.executable, CHILD, master, journal, tmp_path / "installed-lake")}
        if IS_DEEP:
            # The usual way on an existing cluster.
            wheel = build_wheel(tmp_path / "wheel")
            submit = (BIN / "spark-submit", "--master", master, "--conf", "spark.ui.enabled=false", "--py-files", wheel)
            answers["wheel"] = run(*submit, CHILD, master, journal, tmp_path / "wheel-lake")
    for way, done in answers.items():
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["rows"] == {"task": total, "history": 40}
        # The workers run the package that was sent to them, not an installed one; and both workers had work.
        assert (".whl" in answer["driver"]) == (way == "wheel")
        assert all("/fairlead.zip/" in place for place in answer["places"])
        assert len(set(answer["folders"])) == 2
        assert all(" -XX:TieredStopAtLevel=1 " in command for command in answer["commands"])
        for name in ("task", "history"):
            assert kills.table(tmp_path / f"{way}-lake", name) == kills.table(tmp_path / "local", name)
    assert answers["installed"].stderr == ""


class Workers:
    """Stands for a session; keeps a copy of each archive that is sent to its workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.archives: list[Path] = []

    def addArtifacts(self, archive: str, *, pyfile: bool) -> None:  # noqa: N802 - the name in Spark
        assert pyfile
        self.archives.append(Path(shutil.copy(archive, self._folder)))


def test_the_workers_get_the_wheel_from_which_the_driver_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "fairlead-1.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr("fairlead/pipeline/session.py", "of the wheel")
    monkeypatch.setattr(session, "__file__", str(wheel / "fairlead" / "pipeline" / "session.py"))
    (folder := tmp_path / "sent").mkdir()
    workers = Workers(folder)
    with session._sent_package(cast("SparkSession", workers)):
        pass
    # Workers accept a wheel only with the suffix of other archives.
    assert [archive.name for archive in workers.archives] == ["fairlead.zip"]
    assert workers.archives[0].read_bytes() == wheel.read_bytes()
