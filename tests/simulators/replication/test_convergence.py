"""All clusters converge: the real replication on virtual time, one seed after the other."""

import pytest

from tests.depth import IS_DEEP
from tests.simulators.other_process import digest_in_another_process
from tests.simulators.replication.world import simulate

# `make sim` runs more seeds.
SEEDS = 300 if IS_DEEP else 8


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_clusters_converge_and_no_acknowledged_signal_is_lost_or_duplicated(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violations, outcome.report()
    assert outcome.events > 0


# Namespaces of seed 139 get two clusters at once, and the two hash seeds order the names of the clusters differently.
@pytest.mark.parametrize(("seed", "hash_seed"), [(3, "1"), (4, "77"), (139, "0"), (139, "2")])
def test_a_seed_gives_the_same_transcript_in_another_process(seed: int, hash_seed: str) -> None:
    assert (
        digest_in_another_process("tests.simulators.replication.world", seed, hash_seed=hash_seed)
        == simulate(seed).digest
    )


def test_different_seeds_give_different_runs() -> None:
    assert simulate(1).digest != simulate(2).digest
