"""One Spark for all tests of the pipeline that need one: small, quick to start, and always in UTC."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from fairlead.pipeline.session import Profile, SessionPlan, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two threads that lives as long as the run of the tests."""
    with open_session(SessionPlan(name="tests", profile=Profile.TEST, master="local[2]", memory="1g")) as session:
        yield session
