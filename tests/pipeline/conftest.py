"""Tests of the pipeline have a long timeout, because a busy machine starts Spark slowly."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.all_jobs import Run

# Timeout of a test in seconds; a busy machine needs up to a minute to start Spark.
TEST_S_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without a timeout of their own get this folder's timeout."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX))


@pytest.fixture(scope="session")
def run(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of all jobs; tests only look at it."""
    return Run(tmp_path_factory.mktemp("all"), spark)
