"""No acknowledged task is lost: real hosts, clients and partitions under faults, one seed after the other."""

import pytest

from tests.depth import IS_DEEP
from tests.simulators.matching.world import is_careless, is_shrinking, simulate
from tests.simulators.other_process import digest_in_another_process

# `make sim` runs more seeds.
SEEDS = 200 if IS_DEEP else 12
# Seeds in which partitions are added and removed all the time, to find bugs of draining.
SHRINKING = tuple(seed for seed in range(100) if is_shrinking(seed))
# Seeds in which tasks wait outside the counts.
CARELESS = tuple(seed for seed in range(100) if is_careless(seed))
PLANTED = {
    "unfenced-delete": ("which range id", tuple(range(20))),
    "unpinned-ack": ("not above the ack level", tuple(range(20))),
    "read-removed-with-append-in-flight": ("which is not read any more", SHRINKING[:12]),
    "poll-cancel-drops-task": ("is not empty at the end", tuple(range(20))),
    "forwarded-task-stored": ("to which it was only forwarded", tuple(range(20))),
    "source-switch-without-drain": ("left the read partitions with", SHRINKING[:8]),
    "outside-partitions-forgotten": ("was acknowledged and never started", CARELESS[:12]),
    "lost-push-no-repair": ("could not remove the partitions", tuple(range(40))),
}


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_acknowledged_task_is_started_and_no_invariant_is_broken(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violations, outcome.report()
    assert outcome.acknowledged > 0


@pytest.mark.parametrize(("seed", "hash_seed"), [(3, "1"), (8, "77")])
def test_a_seed_gives_the_same_transcript_in_another_process(seed: int, hash_seed: str) -> None:
    assert (
        digest_in_another_process("tests.simulators.matching.world", seed, hash_seed=hash_seed) == simulate(seed).digest
    )


def test_different_seeds_give_different_runs() -> None:
    assert simulate(1).digest != simulate(2).digest


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(plant: str) -> None:
    """At least one seed of the range finds the planted bug; the same seed passes without the bug."""
    complaint, seeds = PLANTED[plant]
    for seed in seeds:
        planted = simulate(seed, plant)
        if any(complaint in violation for violation in planted.violations):
            assert f"replay: python -m tests.simulators.matching --seed {seed} --plant {plant}" in planted.report()
            unplanted = simulate(seed)
            assert not unplanted.violations, unplanted.report()
            return
    pytest.fail(f"{plant} was not found by any of the seeds {seeds}")
