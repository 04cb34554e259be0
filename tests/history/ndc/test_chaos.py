"""Random actions in several clusters, with replication in any order: at rest all clusters hold the same."""

import pytest

from fairlead.simulations.virtual_loop import run
from tests.depth import IS_DEEP
from tests.history.ndc.chaos import Chaos

SEEDS = 200 if IS_DEEP else 25


def _run(seed: int, steps: int) -> None:
    _, loop = run(Chaos(seed).run(steps))
    assert loop.failures == []


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_clusters_with_all_events_are_equal_and_have_every_signal(seed: int) -> None:
    _run(seed, 120)
