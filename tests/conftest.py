"""Hypothesis profiles: the same properties, shallow in `make test` and deep in `make sim`. And a PostgreSQL server."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from fairlead.telemetry import get_log
from tests.storage.postgres_cluster import PostgresCluster, run_folder_of, shared_cluster

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


@pytest.fixture(scope="session")
def postgres_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresCluster]:
    """The one server of this run of the tests, whatever the number of its processes."""
    with shared_cluster(run_folder_of(tmp_path_factory.getbasetemp())) as cluster:
        yield cluster


@pytest.fixture
def postgres_dsn(postgres_cluster: PostgresCluster) -> str:
    """A database of its own for each test."""
    return postgres_cluster.create_database()


@pytest.fixture(autouse=True)
def logs_as_at_the_start() -> None:
    """Tests of the logs leave them without any configuration: then they would go to standard output."""
    get_log("tests")
