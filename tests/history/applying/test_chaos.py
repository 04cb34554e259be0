"""Whatever happens in several clusters, in whatever order they hear of it: at rest all of them have the same."""

import os

import pytest

from tests.history.applying.chaos import Chaos
from tests.simulation.virtual_loop import run

SEEDS = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "sim" else 25


def _run(seed: int, steps: int) -> None:
    _, loop = run(Chaos(seed).run(steps))
    assert loop.failures == []


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_clusters_that_heard_of_everything_have_the_same_and_every_signal_is_there(seed: int) -> None:
    _run(seed, 120)
