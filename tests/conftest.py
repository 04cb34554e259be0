"""Hypothesis profiles (shallow in `make test`, deep in `make sim`), and the PostgreSQL server and Spark session that
tests share.
"""

import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

from fairlead.telemetry import get_log
from tests.schedule import schedule
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark forks before it starts Java. gRPC's fork handlers, which run if a client of the same process is in use at that
# moment, break the child: Spark then ends before it has started.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

settings.register_profile(
    "test",
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "sim",
    max_examples=1000,
    stateful_step_count=80,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))


def take_interrupts() -> None:
    """Restore the SIGINT handler: a shell script starts its background jobs with SIGINT ignored.

    The processes that tests start inherit the handling, and tests must be able to interrupt them as Ctrl-C does.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


take_interrupts()

# Bytes of memory for each worker process: any of them may start a Spark session, which it keeps until the end.
WORKER_BYTES = 2 << 30


def pytest_xdist_auto_num_workers() -> int:
    """Two workers more than there are cores, as far as the memory suffices: tests often wait for other processes."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min((os.cpu_count() or 1) + 2, memory_bytes // WORKER_BYTES))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the modules of the tests out of garbage collection: they are never freed, and each full collection would
    visit half a million objects of theirs.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish() -> None:
    """Let the modules be collected again, so that libraries see their objects freed at exit: DuckDB reports leaks."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests for several workers; the order of a single process stays."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        items[:] = schedule(
            items,
            workers,
            file_of=lambda item: item.nodeid.partition("::")[0],
            fixtures_of=lambda item: getattr(item, "fixturenames", ()),
        )


@pytest.fixture(scope="session")
def postgres_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    """The PostgreSQL server that all worker processes of this test run share."""
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The Spark session that all tests of a worker process share: two threads, fast to start, always in UTC."""
    # Imported here: most tests don't need Spark, and it loads slowly.
    from fairlead.pipeline.session import Profile, SessionPlan, open_session  # noqa: PLC0415

    with open_session(SessionPlan(name="tests", profile=Profile.TEST, master="local[2]", memory="1g")) as session:
        yield session


@pytest.fixture
def postgres_dsn(postgres_cluster: PostgresCluster) -> str:
    """A new database for each test, without tables."""
    return postgres_cluster.create_database()


@pytest.fixture
def migrated_dsn(postgres_cluster: PostgresCluster) -> str:
    """A new database for each test, with the schema of a store."""
    return postgres_cluster.create_database(template=postgres_cluster.migrated_template())


@pytest.fixture(autouse=True)
def logs_as_at_the_start() -> Iterator[None]:
    """Restore the logs after each test: a test may have sent them to a stream of its own, or removed the configuration.

    Without any configuration, logs would go to standard output.
    """
    get_log("tests")
    config, root = structlog.get_config(), logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    structlog.configure(**config)
    root.setLevel(level)
    for handler in [one for one in root.handlers if one not in handlers]:
        root.removeHandler(handler)
