"""Each planted bug is found by a seed of a short range."""

from dataclasses import dataclass

import pytest

from tests.depth import IS_DEEP
from tests.simulators.replication.world import simulate


@dataclass(frozen=True)
class Planted:
    """A planted bug: the violation that it causes, the seeds to search, and the first seed that found it."""

    complaint: str
    seeds: range
    found_by: int

    def search_order(self) -> list[int]:
        """`make sim` searches from the start; `make test` begins with the seed that is known to find the bug."""
        return [*self.seeds] if IS_DEEP else [self.found_by, *self.seeds]


# A change of the code may change the run of a seed. Then the search continues through the range; update `found_by`.
PLANTED = {
    "prefix-unchecked": Planted("the current branch is", range(6), found_by=2),
    "in-memory-deduplication": Planted("on the current branch", range(40), found_by=17),
    "current-branch-moved-without-newer-version": Planted("the branches are", range(6), found_by=2),
    "tasks-not-regenerated": Planted("have not ended", range(6), found_by=2),
    "buffer-not-flushed": Planted("is on no current branch", range(40), found_by=2),
    "cursor-saved-before-applied": Planted("the branches are", range(60), found_by=39),
    "zombie-written": Planted("have not ended", range(150), found_by=75),
}


@pytest.mark.sim
@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(plant: str) -> None:
    """At least one seed of the range finds the planted bug; the same seed passes without the bug."""
    bug = PLANTED[plant]
    for seed in bug.search_order():
        planted = simulate(seed, clusters=3, plant=plant)
        if any(bug.complaint in violation for violation in planted.violations):
            replay = f"replay: python -m tests.simulators.replication {seed} --clusters 3 --plant {plant}"
            assert replay in planted.report()
            unplanted = simulate(seed, clusters=3)
            assert not unplanted.violations, unplanted.report()
            return
    pytest.fail(f"{plant} was not found by any of the seeds {bug.seeds}")
