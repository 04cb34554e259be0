"""A real standalone cluster on this machine: the same job gives the same tables."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest
from fairlead.pipeline.lake import Lake
from tests.pipeline import killing
from tests.pipeline.writing import write_journal

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
START_WAIT_S_MAX = 150.0


@contextmanager
def running(*arguments: str, folder: Path) -> Iterator[None]:
    """A process of Spark's for the time of the block, in a folder of its own."""
    folder.mkdir()
    environment = os.environ | {
        "SPARK_WORKER_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -Dspark.master.rest.enabled=false",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([SPARK_CLASS, *arguments], env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        own = ("--host", "127.0.0.1", "--webui-port", "0")
        stack.enter_context(running(f"{deploy}.master.Master", *own, "--port", str(port), folder=folder / "master"))
        for number in range(2):
            size = ("--cores", "1", "--memory", "1g")
            place = folder / f"worker-{number}"
            stack.enter_context(running(f"{deploy}.worker.Worker", *own, *size, master, folder=place))
        deadline_s = time.monotonic() + START_WAIT_S_MAX
        logs = [folder / f"worker-{number}" / "log" for number in range(2)]
        while not all("Successfully registered with master" in log.read_text() for log in logs):
            assert time.monotonic() < deadline_s, [log.read_text() for log in logs]
            time.sleep(0.2)
        yield master


@pytest.mark.timeout(300)
def test_a_cluster_of_two_workers_gives_the_same_tables(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    total = write_journal(journal, segments=4)
    ingest.run(JobContext(spark=spark, lake=Lake(tmp_path / "local"), journal=journal))
    child = Path(__file__).with_name("cluster_child.py")
    with cluster(tmp_path) as master:
        done = subprocess.run(
            [sys.executable, child, master, journal, tmp_path / "lake"],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["rows"] == {"task": total, "history": 40}
    # The workers run the package that was sent to them, not one that happens to be installed; and both had work.
    assert all("fairlead.zip" in place for place in answer["places"])
    assert len(set(answer["folders"])) == 2
    for name in ("task", "history"):
        assert killing.table(tmp_path / "lake", name) == killing.table(tmp_path / "local", name)
