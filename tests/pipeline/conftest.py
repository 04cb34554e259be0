"""Tests of the pipeline may take as long as a busy machine needs to start a Spark."""

from pathlib import Path

import pytest

# A busy machine starts a Spark in a minute.
TEST_S_MAX = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What has no limit of its own gets that of this folder."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(folder) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_S_MAX))
