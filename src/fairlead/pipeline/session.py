"""How a Spark session is opened and closed: here, on a cluster, or through Spark Connect."""

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

import xxhash
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import __file__ as pyspark_file
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fairlead.core.errors import FairleadError, FixRequest, GiveUp, RetryLater
from fairlead.pipeline.java import Java, find_java

LOCAL_MASTER = "local[*]"
# With what Java needs beside it, less than 2 GB.
LOCAL_MEMORY = "1100m"
REACH_TIMEOUT_S = 5.0
ARCHIVE_WAIT_S_MAX = 120.0
END_WAIT_S = 0.2
DRAFT_AGE_S_MAX = 3600.0

_MASTERS = re.compile(
    r"local|local\[(\d+|\*)(,\s*\d+)?\]|local-cluster\[\d+,\d+,\d+\]|yarn|spark://[^\s/:]+:\d+(,[^\s/:]+:\d+)*"
    r"|k8s://\S+|sc://\S+"
)


class Profile(StrEnum):
    """Where the work is done, and so what the session is tuned for."""

    TEST = "test"
    LOCAL = "local"
    CLUSTER = "cluster"
    CONNECT = "connect"


class WrongMaster(FixRequest):
    """The address of a master is none that Spark knows."""


class SparkDidNotStart(RetryLater):
    """Spark could not be started or reached."""


class SparkFailed(GiveUp):
    """Spark gave up in the middle of the work."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How to open a session. `is_small` trades the speed of long work for that of the start."""

    name: str
    profile: Profile = Profile.LOCAL
    master: str = LOCAL_MASTER
    is_small: bool = False
    memory: str = LOCAL_MEMORY
    settings: Mapping[str, str] = field(default_factory=dict)


def plan_for(master: str | None, *, name: str, is_small: bool = False) -> SessionPlan:
    """The plan for what `--master` says: nothing means this machine."""
    if master is None:
        return SessionPlan(name=name, is_small=is_small)
    if not _MASTERS.fullmatch(master):
        raise WrongMaster(
            f"--master {master!r}: give local[N], spark://HOST:PORT, yarn, k8s://..., or sc://HOST:PORT (Connect)"
        )
    if master.startswith("sc://"):
        return SessionPlan(name=name, profile=Profile.CONNECT, master=master)
    if master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        raise WrongMaster("--master yarn: set HADOOP_CONF_DIR to the folder that says where the cluster is")
    if master.startswith(("local[", "local")) and not master.startswith("local-cluster"):
        return SessionPlan(name=name, master=master, is_small=is_small)
    return SessionPlan(name=name, profile=Profile.CLUSTER, master=master)


def cache_folder() -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead"


def settings_of(plan: SessionPlan) -> dict[str, str]:
    """Spark's settings for a plan, those of the plan itself last."""
    settings = {
        # The day of a row must not depend on the machine.
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.parquet.compression.codec": "zstd",
        # So many folders are written to at once, by each task; it sorts its rows only where there are more.
        "spark.sql.maxConcurrentOutputFileWriters": "4",
        # A prefix of a damaged file must never pass for the whole.
        "spark.sql.files.ignoreCorruptFiles": "false",
        "spark.sql.files.ignoreMissingFiles": "false",
    }
    if plan.profile is not Profile.CONNECT:
        settings |= {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.catalogImplementation": "in-memory",
        }
    if plan.profile in {Profile.LOCAL, Profile.TEST}:
        settings |= {
            "spark.driver.memory": plan.memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 if plan.profile is Profile.TEST else max(os.cpu_count() or 1, 4)),
        }
    if plan.profile is Profile.TEST:
        settings |= {"spark.sql.adaptive.enabled": "false"}
    return settings | dict(plan.settings)


@contextlib.contextmanager
def open_session(plan: SessionPlan) -> Iterator[SparkSession]:
    """A session that ends with the block. What Spark has to say goes to a file, which is kept if the block fails."""
    _check_reachable(plan.master)
    if plan.profile is Profile.CONNECT:
        with _told_in_one_line(None), _connect(plan) as spark, _sent_package(spark):
            yield spark
        return
    cache = cache_folder()
    java = find_java(cache)
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    archive = _Archive.of(plan, java, cache)
    with _spark_log() as log, _calls_end_quietly():
        with _interrupts_wait() as deliver:
            spark = _start(plan, archive, log)
        try:
            deliver()
            # Within: Spark asks Java for the text of an error, so it must be told before Java ends.
            with (
                _told_in_one_line(log),
                _sent_package(spark) if plan.profile is Profile.CLUSTER else contextlib.nullcontext(),
            ):
                yield spark
        finally:
            _stop(spark, archive)


@contextlib.contextmanager
def _calls_end_quietly() -> Iterator[None]:
    """Without the pages that the bridge to Java logs, in nobody's name, when Ctrl-C ends a call."""

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
    """Ctrl-C waits: a Java whose start is not waited for stays for ever. Gives what lets it through after the block.

    It also keeps whoever handles Ctrl-C in charge: Spark would put a handler of its own in place.
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


def _start(plan: SessionPlan, archive: "_Archive | None", log: Path) -> SparkSession:
    settings = settings_of(plan)
    options = archive.java_options if archive else []
    if plan.is_small or plan.profile is Profile.TEST:
        # Without the optimizing compiler, which pays only after minutes, and a collector for much memory.
        options = [*options, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    elif plan.profile is Profile.LOCAL:
        # Nobody waits for an answer within milliseconds: against Java's default a tenth less work, and 300 MB.
        options = [*options, "-XX:+UseParallelGC"]
    given = settings.get("spark.driver.extraJavaOptions")
    settings["spark.driver.extraJavaOptions"] = " ".join([*options, *([given] if given else [])])
    builder = SparkSession.builder.appName(plan.name).master(plan.master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _output_in(log):
            spark = builder.getOrCreate()
    except Exception as failed:
        raise SparkDidNotStart(
            f"Spark did not start on {plan.master}: {_first_line(failed)}; its log is {log}"
        ) from failed
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _stop(spark: SparkSession, archive: "_Archive | None") -> None:
    from pyspark import SparkContext  # noqa: PLC0415 - there is none with Spark Connect

    gateway = SparkContext._gateway  # noqa: SLF001 - Spark gives no other way to end its Java process
    with warnings.catch_warnings():
        # After Ctrl-C it can't: then Java ends when its input does, below.
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown", RuntimeWarning)
        try:
            spark.stop()
        except (Py4JError, OSError):
            # Java has ended before. What Spark remembers of it is not for the next session.
            SparkContext._active_spark_context = None  # noqa: SLF001
            SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = None  # noqa: SLF001 - as above: a later session starts a process of its own
    SparkContext._jvm = None  # noqa: SLF001
    if process is not None:
        # Java ends when its input does.
        process.stdin.close()
        with contextlib.suppress(Exception):
            process.wait(ARCHIVE_WAIT_S_MAX)
    if archive is not None:
        archive.keep()


@dataclass(frozen=True, slots=True)
class _Archive:
    """Spark's classes as Java has them in memory, kept from the first run: later ones start in half the time."""

    file: Path
    draft: Path | None

    @staticmethod
    def of(plan: SessionPlan, java: Java, cache: Path) -> "_Archive | None":
        if plan.profile is Profile.CLUSTER:
            return None
        # Java takes an archive only with the very classes it was made of.
        place = xxhash.xxh32_hexdigest(f"{java.home} {java.version} {pyspark_file}".encode())
        file = cache / f"spark-{spark_version}-{place}.jsa"
        if file.exists():
            return _Archive(file, None)
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if not os.access(cache, os.W_OK):
            return None
        # A process that was killed leaves its draft.
        for draft in cache.glob(f"{file.name}.*"):
            with contextlib.suppress(FileNotFoundError):
                if draft.stat().st_mtime < time.time() - DRAFT_AGE_S_MAX:
                    draft.unlink()
        return _Archive(file, file.with_name(f"{file.name}.{os.getpid()}"))

    @property
    def java_options(self) -> list[str]:
        if self.draft is not None:
            return [f"-XX:ArchiveClassesAtExit={self.draft}"]
        return [f"-XX:SharedArchiveFile={self.file}"]

    def keep(self) -> None:
        """Put what Java wrote at its end in place; another process may have done it before."""
        if self.draft is not None and self.draft.exists():
            self.draft.replace(self.file)


@contextlib.contextmanager
def _connect(plan: SessionPlan) -> Iterator[SparkSession]:
    try:
        _check_speaks_grpc(plan.master)
        builder = SparkSession.builder.remote(plan.master).appName(plan.name)
        spark = builder.getOrCreate()
        for name, value in settings_of(plan).items():
            with contextlib.suppress(PySparkException):
                spark.conf.set(name, value)
        # The builder alone does not reach for the server.
        _ = spark.version
    except FairleadError:
        raise
    except ImportError as missing:
        raise WrongMaster(
            f"--master {plan.master}: Spark Connect needs more: pip install 'fairlead[pipeline]'"
        ) from missing
    except Exception as failed:
        raise SparkDidNotStart(f"Spark Connect at {plan.master} does not answer: {_first_line(failed)}") from failed
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _spark_log() -> Iterator[Path]:
    """A file for what Java and the Python workers print; it goes when all went well."""
    descriptor, name = tempfile.mkstemp(prefix="fairlead-spark-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    try:
        yield log
    except (SparkFailed, SparkDidNotStart):
        # Its error names the file.
        raise
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    log.unlink(missing_ok=True)


@contextlib.contextmanager
def _output_in(log: Path) -> Iterator[None]:
    """What is started in this block has the log for its output and errors, for as long as it lives."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours = {number: os.dup(number) for number in (1, 2)}
    try:
        with log.open("ab") as file, warnings.catch_warnings():
            for number in ours:
                os.dup2(file.fileno(), number)
            yield
    finally:
        for number, kept in ours.items():
            os.dup2(kept, number)
            os.close(kept)


@contextlib.contextmanager
def _told_in_one_line(log: Path | None) -> Iterator[None]:
    """Spark's own errors, which are pages long, as one of ours."""
    try:
        yield
    except FairleadError:
        raise
    except (PySparkException, Py4JError, ConnectionError) as failed:
        where = f"; its log is {log}" if log else ""
        why = _first_line(failed)
        if "OutOfMemoryError" in why:
            why += ": do less at a time (--since, --until), or do it on a cluster (--master)"
        else:
            # Without it, Spark's errors are of anything.
            why = _end_of_java() or why
        raise SparkFailed(f"Spark failed: {why}{where}") from failed


def _end_of_java() -> str | None:
    """How the Java process of this session has ended; None if it has not, or there is none."""
    from pyspark import SparkContext  # noqa: PLC0415 - there is none with Spark Connect

    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - Spark gives no other way to its process
    if process is None:
        return None
    try:
        # Who hears that it does not answer hears it before the process is quite gone.
        code = process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        return None
    if code == -signal.SIGKILL:
        return "Java has ended: it was killed, as the system does where memory is short"
    return f"Java has ended with {code}"


def _check_reachable(master: str) -> None:
    """Refuse a master that nothing answers for: Spark itself would try for a minute."""
    scheme, _, rest = master.partition("://")
    # Of several masters one is enough: the others stand by.
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
        raise SparkDidNotStart(f"--master {master}: nothing answers there ({'; '.join(reasons)}): is it started?")


def _check_speaks_grpc(master: str) -> None:
    """Refuse a server that accepts connections and is none of Spark Connect: Spark itself would try for minutes."""
    import grpc  # noqa: PLC0415 - only for Connect
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    with DefaultChannelBuilder(master).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(REACH_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            raise SparkDidNotStart(f"--master {master}: what listens there is no Spark Connect") from None


@contextlib.contextmanager
def _sent_package(spark: SparkSession) -> Iterator[None]:
    """Send this package to the workers, which need not have it; what it imports they must have.

    Each worker fetches the file when it first has work, so it stays as long as the block.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        archive = Path(folder) / "fairlead.zip"
        package = Path(__file__).parent.parent
        wheel = next((place for place in package.parents if place.is_file()), None)
        if wheel is not None:
            # Given to `spark-submit`, which has the driver use it; but workers only take what is called a zip.
            shutil.copyfile(wheel, archive)
        else:
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
                for file in sorted(package.rglob("*.py")):
                    out.write(file, file.relative_to(package.parent))
        spark.addArtifacts(str(archive), pyfile=True)
        yield


def _first_line(failed: BaseException) -> str:
    """What went wrong, of all that Spark has to say: the last cause that it names, else the beginning."""
    try:
        lines = [re.sub("^(: |Caused by: )", "", line.strip()) for line in str(failed).splitlines() if line.strip()]
    except (PySparkException, Py4JError, OSError):  # Spark asks Java for the text, and Java may be gone.
        return type(failed).__name__
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised or lines or [type(failed).__name__])[0 if not raised else -1][:300]
