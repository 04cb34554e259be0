"""A real standalone cluster on this machine: the same job gives the same tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
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


def test_a_cluster_of_two_workers_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    journal, wheel = tmp_path / "journal", build_wheel(tmp_path / "wheel")
    total = write_journal(journal, segments=4)
    ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "local"), journal=journal))
    with cluster(tmp_path) as master:
        submit = (BIN / "spark-submit", "--master", master, "--conf", "spark.ui.enabled=false", "--py-files", wheel)
        answers = {
            # The first way is that of `--master`, the second is usual on an existing cluster.
            "installed": run(sys.executable, CHILD, master, journal, tmp_path / "installed-lake"),
            "wheel": run(*submit, CHILD, master, journal, tmp_path / "wheel-lake"),
        }
    for way, done in answers.items():
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["rows"] == {"task": total, "history": 40}
        # The workers run the package that was sent to them, not an installed one; and both workers had work.
        assert (str(wheel) in answer["driver"]) == (way == "wheel")
        assert all("/fairlead.zip/" in place for place in answer["places"])
        assert len(set(answer["folders"])) == 2
        for name in ("task", "history"):
            assert kills.table(tmp_path / f"{way}-lake", name) == kills.table(tmp_path / "local", name)
    assert answers["installed"].stderr == ""
