"""Random actions in several clusters, with replication in any order: at rest all clusters hold the same."""

import pytest

from tests.depth import IS_DEEP
from tests.history.ndc.chaos import Chaos
from tests.simulators.matching.virtual_loop import run

SEEDS = 200 if IS_DEEP else 25


def _run(seed: int, steps: int) -> None:
    _, loop = run(Chaos(seed).run(steps))
    assert loop.failures == []


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_clusters_that_heard_of_everything_have_the_same_and_every_signal_is_there(seed: int) -> None:
    _run(seed, 120)
