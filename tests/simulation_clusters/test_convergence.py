"""All clusters converge: the real replication on virtual time, seed by seed (part 5, "What it must show", 1)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation_clusters.world import simulate

# `make sim` searches deeper.
SEEDS = 300 if os.environ.get("HYPOTHESIS_PROFILE") == "sim" else 8


@pytest.mark.sim
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_clusters_converge_and_no_acknowledged_signal_is_lost_or_doubled(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violations, outcome.report()
    assert outcome.events > 0


@pytest.mark.parametrize(("seed", "hash_seed"), [(3, "1"), (4, "77")])
def test_a_run_repeats_itself_byte_for_byte_in_another_process(seed: int, hash_seed: str) -> None:
    """Whatever differs between two processes: the hashes of texts, the addresses of objects, the time."""
    script = f"from tests.simulation_clusters.world import simulate; print(simulate({seed}).digest)"
    ran = subprocess.run(  # noqa: S603 - this very Python
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == simulate(seed).digest


def test_other_seeds_are_other_runs() -> None:
    assert simulate(1).digest != simulate(2).digest
