"""Bugs like those that such systems have had are found, each by some seed of a short range."""

import pytest

from tests.simulation_clusters.world import simulate

# What is complained of, and the seeds of which one must find it.
PLANTED = {
    "prefix-unchecked": ("the current branch is", range(6)),
    "in-memory-deduplication": ("on the winning line", range(40)),
    "current-branch-moved-without-newer-version": ("the branches are", range(6)),
    "tasks-not-regenerated": ("have not ended", range(6)),
    "buffer-not-flushed": ("is on no winning line", range(40)),
    "cursor-saved-before-applied": ("the branches are", range(60)),
    "zombie-written": ("have not ended", range(60)),
}


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(plant: str) -> None:
    """Not by one seed that happens to fit: some seed of a range finds it, and passes without the bug."""
    complaint, seeds = PLANTED[plant]
    for seed in seeds:
        planted = simulate(seed, clusters=3, plant=plant)
        if any(complaint in violation for violation in planted.violations):
            replay = f"replay: python -m tests.simulation_clusters {seed} --clusters 3 --plant {plant}"
            assert replay in planted.report()
            unplanted = simulate(seed, clusters=3)
            assert not unplanted.violations, unplanted.report()
            return
    pytest.fail(f"{plant} was found by none of the seeds {seeds}")
