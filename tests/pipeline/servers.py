"""Spark's own servers on this machine, from the jars of PySpark; each is stopped by pid when its block ends."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

from tests.ports import free_port

BIN = Path(pyspark.__file__).parent / "bin"
START_WAIT_S_MAX = 150.0
STOP_WAIT_S_MAX = 30.0
CHECK_S = 0.2
# Java options of short-lived servers: the optimizing compiler pays off only after minutes.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"


class Running(NamedTuple):
    """A process of Spark and its output."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def said(self) -> str:
        return self.log.read_text()


@contextmanager
def running(program: str, *arguments: str, folder: Path, memory: str) -> Iterator[Running]:
    """Run one of Spark's programs during the block, in its own folder."""
    folder.mkdir()
    environment = os.environ | {
        "SPARK_WORKER_DIR": str(folder),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": memory,
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} -Dspark.master.rest.enabled=false",
        "PYSPARK_PYTHON": sys.executable,
    }
    with (folder / "log").open("w") as log:
        # Spark's scripts replace themselves by the server (exec), so the pid stays the same.
        process = subprocess.Popen([BIN / program, *arguments], env=environment, stdout=log, stderr=log, cwd=folder)
    try:
        yield Running(process, folder / "log")
    finally:
        process.terminate()
        try:
            process.wait(STOP_WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(is_there: Callable[[], bool], *servers: Running) -> None:
    deadline_s = time.monotonic() + START_WAIT_S_MAX
    while not is_there():
        if time.monotonic() > deadline_s or any(server.process.poll() is not None for server in servers):
            raise AssertionError("\n".join(server.said()[-5_000:] for server in servers))
        time.sleep(CHECK_S)


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Start a master and two workers with one core each; yields the master's address."""
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    own = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> Running:
            return stack.enter_context(running("spark-class", *arguments, folder=folder / name, memory="256m"))

        first = start("master", f"{deploy}.master.Master", *own, "--port", str(port))
        size = ("--cores", "1", "--memory", "1g")
        workers = [start(f"worker-{number}", f"{deploy}.worker.Worker", *own, *size, master) for number in range(2)]
        wait_until(
            lambda: all("Successfully registered with master" in worker.said() for worker in workers), first, *workers
        )
        yield master


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Start a Spark Connect server; yields its address."""
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    arguments = ("--class", service, "--master", "local[2]", *given, "spark-internal")
    with running("spark-submit", *arguments, folder=folder / "connect", memory="1g") as server:

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers, server)
        yield f"sc://127.0.0.1:{port}"
