import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fairlead.simulations.routing
from fairlead.cli.commands import cli

seeds = pytest.mark.parametrize("seed", [1, 2, 3])
SMALL = ["--task-queues", "20", "--hosts", "10"]


def simulate(*arguments: str) -> Result:
    assert fairlead.simulations.routing.routing.name == "routing"
    return CliRunner().invoke(cli, ["simulate", "routing", *arguments])


@cache
def answer(*arguments: str) -> dict[str, Any]:
    result = simulate("-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    loaded: dict[str, Any] = json.loads(result.output)
    return loaded


def by_batch_size(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["batch_size"]: row for row in rows}


@seeds
def test_spread_routing_removes_the_hot_spots_of_basic_routing(seed: int) -> None:
    """MC-10: partitions of a batch are on different hosts if possible."""
    placement = by_batch_size(answer("--seed", str(seed))["placement"])

    assert placement[0]["most_together"] >= 4
    # Sixteen partitions in batches of 4, 8 and 16: a host has at most one partition of each batch.
    assert placement[4]["most_together"] <= 4
    assert placement[8]["most_together"] <= 2
    assert placement[16]["most_together"] == 1
    assert placement[0]["hosts_per_batch"] is None
    assert all(placement[size]["hosts_per_batch"] == size for size in (4, 8, 16))
    assert placement[16]["hosts_per_task_queue"] == 16
    assert placement[0]["hosts_per_task_queue"] < 12
    assert all(row["fullest_over_mean"] < 1.5 for row in placement.values())


@seeds
def test_larger_batches_move_more_partitions(seed: int) -> None:
    """MC-12: when a host joins or leaves."""
    movement = by_batch_size(answer("--seed", str(seed))["movement"])
    for column in ("when_a_host_leaves", "when_a_host_joins"):
        shares = [movement[size][column] for size in (0, 4, 8, 16)]
        assert shares == sorted(shares)
        assert shares[0] == pytest.approx(1 / 20, abs=0.025)
        assert shares[3] == pytest.approx(17 / 2 / 20, abs=0.12)


@seeds
def test_changing_the_batch_size_moves_most_partitions(seed: int) -> None:
    """MC-14."""
    movement = by_batch_size(answer("--seed", str(seed))["movement"])

    assert movement[0]["when_changed_from_basic"] == 0.0
    assert all(0.8 < movement[size]["when_changed_from_basic"] < 0.95 for size in (4, 8, 16))


@seeds
def test_a_gradual_change_moves_partitions_in_step_with_the_clock(seed: int) -> None:
    """MC-15: partitions move one by one."""
    timetable = answer("--seed", str(seed))["gradual_change"]

    assert timetable[0]["moved_of_those_that_move"] == 0.0
    assert timetable[-1]["moved_of_those_that_move"] == 1.0
    for row in timetable:
        assert row["moved_of_those_that_move"] == pytest.approx(row["window_passed"], abs=0.05)


def test_a_batch_uses_all_hosts_if_there_are_few() -> None:
    """MC-10: with few hosts the partitions wrap around."""
    placement = by_batch_size(answer("--hosts", "3", "--task-queues", "20")["placement"])

    assert [placement[size]["hosts_per_batch"] for size in (4, 8, 16)] == [3, 3, 3]
    # Sixteen partitions on three hosts are at best split into six, five and five.
    assert placement[16]["most_together"] == 6
    assert placement[0]["most_together"] > 6


def test_the_same_seed_gives_the_same_output_and_picture(tmp_path: Path) -> None:
    first = simulate(*SMALL, "--seed", "7", "-o", "json", "--plot", str(tmp_path / "first.png"))
    again = simulate(*SMALL, "--seed", "7", "-o", "json", "--plot", str(tmp_path / "again.png"))

    assert first.exit_code == 0, first.output
    assert first.output == again.output
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    assert simulate(*SMALL, "--seed", "8", "-o", "json").output != first.output


def test_the_json_output_has_the_parameters_and_tables() -> None:
    loaded = answer(*SMALL, "--change-to", "4")

    assert loaded["parameters"] == {"hosts": 10, "task_queues": 20, "partitions": 16, "change_to": 4, "seed": 1}
    assert [row["routing"] for row in loaded["movement"]] == ["basic", "spread, 4", "spread, 8", "spread, 16"]
    assert [row["window_passed"] for row in loaded["gradual_change"]] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_the_smallest_ring_with_a_task_queue_of_one_partition_works() -> None:
    loaded = answer("--hosts", "2", "--task-queues", "1", "--partitions", "1")

    # The only partition is the root, which a change of the batch size never moves.
    assert {row["when_changed_from_basic"] for row in loaded["movement"]} == {0.0}
    assert {row["moved_of_those_that_move"] for row in loaded["gradual_change"]} == {0.0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--hosts", "1"], "--hosts"),
        (["--partitions", "0"], "--partitions"),
        (["--change-to", "0"], "--change-to"),
        (["--task-queues", "1000", "--partitions", "100"], "100,000 partitions, more than 20,000"),
    ],
)
def test_an_invalid_argument_gives_an_error_of_one_line(arguments: list[str], said: str) -> None:
    result = simulate(*arguments)

    assert result.exit_code == 2
    assert said in result.output.splitlines()[-1]
