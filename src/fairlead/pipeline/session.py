"""Opens and closes Spark sessions: local, on a cluster, or through Spark Connect."""

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fairlead.core.errors import FairleadError, FixRequest
from fairlead.pipeline.class_archive import ARCHIVE_WAIT_S_MAX, WRITES_ARCHIVE, ClassArchive
from fairlead.pipeline.java import Java, find_java
from fairlead.pipeline.java_errors import Py4JError
from fairlead.pipeline.spark_log import SparkDidNotStart, first_line, in_one_line, output_in, spark_log

LOCAL_MASTER = "local[*]"
# Heap of local sessions: with Java's other memory, they stay below 2 GB.
LOCAL_MEMORY = "1100m"
REACH_TIMEOUT_S = 5.0
# Seconds in which the first executor of a cluster should register; after that, the default number of partitions stays.
EXECUTOR_WAIT_S_MAX = 10.0
EXECUTOR_CHECK_S = 0.1
# Partitions of a shuffle for each core of a cluster, and Spark's default, which suits a cluster of 70 cores.
PARTITIONS_A_CORE = 3
# Partitions of a shuffle in a small session.
SMALL_PARTITIONS = 2
_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITIONS_DEFAULT = "200"
# Compiled code that Java may hold. With its first compiler alone, Java's default is 48 MB, which the code that Spark
# generates for all jobs together fills: Java then fails. Only the memory in use counts.
CODE_CACHE = "240m"

# Options of Java for small inputs: without the optimizing compiler, which pays off only after minutes.
QUICK_START = ("-XX:TieredStopAtLevel=1", f"-XX:ReservedCodeCacheSize={CODE_CACHE}")

_MASTERS = re.compile(
    r"local|local\[(\d+|\*)(,\s*\d+)?\]|local-cluster\[\d+,\d+,\d+\]|yarn|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*"
    r"|k8s://\S+|sc://\S+"
)


class Profile(StrEnum):
    """Where Spark runs; selects the tuning of the session."""

    TEST = "test"
    LOCAL = "local"
    CLUSTER = "cluster"
    CONNECT = "connect"


class WrongMaster(FixRequest):
    """Spark does not support this master address."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How to open a session. `is_small` favors a fast start over the throughput of long jobs.

    `has_python` says whether a job runs Python on the workers, which then need this package.
    """

    name: str
    profile: Profile = Profile.LOCAL
    master: str = LOCAL_MASTER
    is_small: bool = False
    has_python: bool = True
    memory: str = LOCAL_MEMORY
    settings: Mapping[str, str] = field(default_factory=dict)


def plan_for(master: str | None, *, name: str, is_small: bool = False, has_python: bool = True) -> SessionPlan:
    """Return the plan for the value of `--master`; None means this machine."""
    if master is None:
        return SessionPlan(name=name, is_small=is_small)
    if not _MASTERS.fullmatch(master):
        raise WrongMaster(
            f"--master {master!r}: give local[N], spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT (Connect)"
        )
    if master.startswith("sc://"):
        return SessionPlan(name=name, profile=Profile.CONNECT, master=master, has_python=has_python)
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise WrongMaster("--master yarn: set HADOOP_CONF_DIR to the folder with the cluster's configuration")
    if master.startswith(("local[", "local")) and not master.startswith("local-cluster"):
        return SessionPlan(name=name, master=master, is_small=is_small)
    return SessionPlan(name=name, profile=Profile.CLUSTER, master=master, is_small=is_small, has_python=has_python)


def cache_folder() -> Path:
    """Return the folder for cached files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead"


def settings_of(plan: SessionPlan) -> dict[str, str]:
    """Return Spark's settings for a plan; the plan's own settings override the others."""
    settings = {
        # The day of a row must not depend on the machine's time zone.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # Folders that a task writes concurrently; only with more folders it must sort its rows first.
        "spark.sql.maxConcurrentOutputFileWriters": "4",
        # Spark must never read a damaged file up to the damage and ignore the rest.
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
    }
    if plan.profile is not Profile.CONNECT:
        settings |= {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.catalogImplementation": "in-memory",
        }
    if plan.profile is Profile.CLUSTER:
        # By default, a task waits 3 s for the executor with its data, even if all others have nothing to do.
        settings |= {"spark.locality.wait": "0s"}
    if plan.profile in {Profile.LOCAL, Profile.TEST}:
        settings |= {
            "spark.driver.memory": plan.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            _PARTITIONS: str(_local_partitions(plan)),
        }
    if plan.profile is Profile.TEST:
        settings |= {"spark.sql.adaptive.enabled": "false"}
    return settings | dict(plan.settings)


def _local_partitions(plan: SessionPlan) -> int:
    """Return the partitions of shuffles. With few rows, each further one costs some milliseconds for each stage."""
    return SMALL_PARTITIONS if plan.is_small or plan.profile is Profile.TEST else max(os.cpu_count() or 1, 4)


@contextlib.contextmanager
def open_session(plan: SessionPlan) -> Iterator[SparkSession]:
    """Open a session for the block. Spark's output goes to a log file, which is kept if the block fails."""
    _check_reachable(plan.master)
    if plan.profile is Profile.CONNECT:
        with in_one_line(None), _connect(plan) as spark, _package_for(plan, spark):
            yield spark
        return
    cache = cache_folder()
    java = find_java(cache)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    archive = _archive_for(plan, java, cache)
    with spark_log() as log, _calls_end_quietly():
        with _interrupts_wait() as deliver:
            spark = _start(plan, archive, log)
        try:
            deliver()
            if plan.profile is Profile.CLUSTER:
                _size_shuffles(spark)
            # Inside the session: Spark fetches the text of an error from Java, so it must be converted before Java
            # ends.
            with (
                in_one_line(log),
                _package_for(plan, spark),
            ):
                yield spark
        finally:
            _stop(spark, archive)


def _archive_for(plan: SessionPlan, java: Java, cache: Path) -> "ClassArchive | None":
    archive = ClassArchive.of(java, cache)
    if plan.profile is Profile.TEST and archive is not None and archive.draft is not None:
        # Java takes 20 s of CPU to write it: the sessions of tests only use the one that a command has written.
        return None
    return archive


@contextlib.contextmanager
def _calls_end_quietly() -> Iterator[None]:
    """Suppress the long tracebacks that py4j logs when Ctrl-C ends a call to Java."""

    def is_ours(record: logging.LogRecord) -> bool:
        return not any(said in str(record.msg) for said in ("while sending command", "while shutting down connection"))

    logs = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
    for log in logs:
        log.addFilter(is_ours)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(is_ours)


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C until Spark has started: otherwise the Java process would stay forever.

    Yields a function that delivers a deferred Ctrl-C after the block. It also restores the previous handler of SIGINT,
    which Spark would replace by its own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield lambda: signal.raise_signal(came[0]) if came else None
    finally:
        signal.signal(signal.SIGINT, before)


def java_settings(plan: SessionPlan, archive: "ClassArchive | None") -> dict[str, str]:
    """Return Spark's settings with the options of Java: of the driver, and of a cluster's executors."""
    options = archive.java_options if archive else []
    settings: dict[str, str] = {}
    if plan.is_small or plan.profile is Profile.TEST:
        options = [*options, *QUICK_START]
        if plan.profile is Profile.CLUSTER:
            # A worker without the archive ignores its option. The administrator's own options come after these.
            own = [option for option in options if not option.startswith(WRITES_ARCHIVE)]
            settings["spark.executor.defaultJavaOptions"] = " ".join(own)
        else:
            options = [*options, "-XX:+UseSerialGC"]
    elif plan.profile is Profile.LOCAL:
        # Pauses do not matter here: compared with Java's default collector, this one saves 10% CPU and 300 MB.
        options = [*options, "-XX:+UseParallelGC"]
    given = plan.settings.get("spark.driver.extraJavaOptions")
    settings["spark.driver.extraJavaOptions"] = " ".join([*options, *([given] if given else [])])
    return settings


def _start(plan: SessionPlan, archive: "ClassArchive | None", log: Path) -> SparkSession:
    settings = settings_of(plan) | java_settings(plan, archive)
    builder = SparkSession.builder.appName(plan.name).master(plan.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with output_in(log):
            spark = builder.getOrCreate()
    except Exception as failed:
        raise SparkDidNotStart(
            f"Spark did not start on {plan.master}: {first_line(failed)}; its log is {log}"
        ) from failed
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _size_shuffles(spark: SparkSession) -> None:
    """Set the partitions of shuffles by the cluster's cores, unless the cluster's configuration does.

    Each partition of a stage in Python is a task of its own: with Spark's default of 200, tasks of some milliseconds
    took most of the time on a small cluster.
    """
    if spark.conf.get(_PARTITIONS) != _PARTITIONS_DEFAULT:
        return
    deadline_s = time.monotonic() + EXECUTOR_WAIT_S_MAX
    tracker = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - has no API
    # The driver is one of them.
    while len(tracker.getExecutorInfos()) < 2 and time.monotonic() < deadline_s:
        time.sleep(EXECUTOR_CHECK_S)
    if len(tracker.getExecutorInfos()) >= 2:
        cores = max(spark.sparkContext.defaultParallelism, len(tracker.getExecutorInfos()) - 1)
        spark.conf.set(_PARTITIONS, str(PARTITIONS_A_CORE * cores))


def _stop(spark: SparkSession, archive: "ClassArchive | None") -> None:
    from pyspark import SparkContext  # noqa: PLC0415 - missing with Spark Connect

    gateway = SparkContext._gateway  # noqa: SLF001 - the only way to end Spark's Java process
    with warnings.catch_warnings():
        # After Ctrl-C, Spark can't shut down cleanly: closing Java's input below ends it.
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown", RuntimeWarning)
        try:
            spark.stop()
        except (Py4JError, OSError):
            # Java has already ended: clear Spark's references to it, so that the next session starts a new process.
            SparkContext._active_spark_context = None  # noqa: SLF001
            SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001 - as above: a later session starts a new process
    SparkContext._jvm = None  # noqa: SLF001
    if process is not None:
        _end_java(process, archive)


def _end_java(process: "subprocess.Popen[bytes]", archive: "ClassArchive | None") -> None:
    """End Java, and keep the archive that it writes at its end."""
    # Java ends when its standard input is closed.
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(ARCHIVE_WAIT_S_MAX)
    except subprocess.TimeoutExpired:
        # The session is over, and the next one can write the archive.
        process.kill()
        process.wait()
        if archive is not None:
            archive.discard()
    if archive is not None:
        archive.keep()


@contextlib.contextmanager
def _connect(plan: SessionPlan) -> Iterator[SparkSession]:
    try:
        _check_speaks_grpc(plan.master)
        builder = SparkSession.builder.remote(plan.master).appName(plan.name)
        spark = builder.getOrCreate()
        for name, value in settings_of(plan).items():
            with contextlib.suppress(PySparkException):
                spark.conf.set(name, value)
        # The builder alone does not contact the server.
        _ = spark.version
    except FairleadError:
        raise
    except ImportError as missing:
        raise WrongMaster(
            f"--master {plan.master}: Spark Connect needs more packages: pip install 'fairlead[pipeline]'"
        ) from missing
    except Exception as failed:
        raise SparkDidNotStart(f"Spark Connect at {plan.master} does not answer: {first_line(failed)}") from failed
    try:
        yield spark
    finally:
        spark.stop()


def _check_reachable(master: str) -> None:
    """Raise an error if no master accepts connections: Spark itself would retry for a minute."""
    scheme, _, rest = master.partition("://")
    # One reachable master is enough: the others are on standby.
    addresses = re.findall(r"([^/:,;]+):(\d+)", re.split("[/;]", rest)[0]) if scheme in {"spark", "sc"} else []
    reasons: list[str] = []
    for host, port in addresses:
        try:
            socket.create_connection((host, int(port)), REACH_TIMEOUT_S).close()
        except (OSError, OverflowError) as refused:
            reasons.append(str(refused))
        else:
            return
    if reasons:
        raise SparkDidNotStart(f"--master {master}: no server answers there ({'; '.join(reasons)}): is it running?")


def _check_speaks_grpc(master: str) -> None:
    """Raise an error if the server does not speak gRPC: Spark Connect itself would retry for minutes."""
    import grpc  # noqa: PLC0415 - only for Spark Connect
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    with DefaultChannelBuilder(master).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(REACH_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise SparkDidNotStart(f"--master {master}: the server there is not Spark Connect") from None


def _package_for(plan: SessionPlan, spark: SparkSession) -> contextlib.AbstractContextManager[None]:
    """Send this package to the workers if they run Python and are not processes of this machine's session."""
    is_sent = plan.has_python and plan.profile in {Profile.CLUSTER, Profile.CONNECT}
    return _sent_package(spark) if is_sent else contextlib.nullcontext()


@contextlib.contextmanager
def _sent_package(spark: SparkSession) -> Iterator[None]:
    """Send this package to the workers, which may not have it installed; they must have its dependencies.

    Each worker fetches the file with its first task, so the file is kept until the end of the block.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        archive = Path(folder) / "fairlead.zip"
        package = Path(__file__).parent.parent
        wheel = next((place for place in package.parents if place.is_file()), None)
        if wheel is not None:
            # The package runs from a wheel given to `spark-submit`; workers accept it only with the suffix .zip.
            shutil.copyfile(wheel, archive)
        else:
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
                for file in sorted(package.rglob("*.py")):
                    out.write(file, file.relative_to(package.parent))
        spark.addArtifacts(str(archive), pyfile=True)
        yield
