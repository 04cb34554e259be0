"""Hypothesis profiles: shallow in `make test`, deep in `make sim`. And what tests share: a PostgreSQL, a Spark."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings

from fairlead.telemetry import get_log
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


# Any worker may be given tests that need a Spark, and has one of its own until the end.
WORKER_BYTES = 2 << 30


def pytest_xdist_auto_num_workers() -> int:
    """One for each core, but no more than the machine has memory for."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() or 1, memory_bytes // WORKER_BYTES))


@pytest.fixture(scope="session")
def postgres_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    """The one server of this run of the tests, whatever the number of its processes."""
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """One Spark for all tests that need one: on two threads, quick to start, and always in UTC."""
    # Most tests need none, and it takes a while to load.
    from fairlead.pipeline.session import Profile, SessionPlan, open_session  # noqa: PLC0415

    with open_session(SessionPlan(name="tests", profile=Profile.TEST, master="local[2]", memory="1g")) as session:
        yield session


@pytest.fixture
def postgres_dsn(postgres_cluster: PostgresCluster) -> str:
    """A database of its own for each test."""
    return postgres_cluster.create_database()


@pytest.fixture(autouse=True)
def logs_as_at_the_start() -> None:
    """Tests of the logs leave them without any configuration: then they would go to standard output."""
    get_log("tests")
