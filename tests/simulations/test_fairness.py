import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fairlead.cli.commands import cli
from fairlead.core.fairness.measures import jain_index


def simulate(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["simulate", "fairness", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def report(*arguments: str) -> dict[str, Any]:
    answer = json.loads(simulate(*arguments, "-o", "json"))
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_every_key_gets_its_fair_share_during_a_flood(seed: str) -> None:
    """FL-39: the share of each key is within 3 % of its fair share."""
    answer = report("--seed", seed)
    for key in answer["keys"]:
        assert key["fair_share"] == pytest.approx(key["deserved_share"], rel=0.03)
    fair, queue = answer["summary"]
    assert fair["jain_index"] > 0.999
    assert queue["jain_index"] < 0.9


def test_a_short_flood_does_not_count_as_treated_unfairly() -> None:
    answer = report("--flood-tasks", "100")
    fair, queue = answer["summary"]
    assert fair["jain_index"] > 0.999
    assert fair["jain_index"] > queue["jain_index"]


def test_a_plain_queue_lets_the_flood_starve_the_other_keys() -> None:
    answer = report("--flood-tasks", "20000")
    fair, queue = answer["summary"]
    assert (fair["keys_starved"], queue["keys_starved"]) == (0, 6)
    flood = answer["keys"][0]
    assert (flood["key"], flood["queue_share"]) == ("flood", 1.0)


def test_small_keys_wait_for_their_own_backlog_not_for_the_flood() -> None:
    for key in report()["keys"][1:]:
        assert key["fair_wait_s"] < key["queue_wait_s"] / 3


def test_too_many_tasks_are_rejected() -> None:
    arguments = ["simulate", "fairness", "--rate", "2000", "--duration", "300"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "make more than 200,000 tasks" in result.output


def test_the_same_seed_gives_the_same_output_and_picture(tmp_path: Path) -> None:
    arguments = ("--duration", "10", "--flood-tasks", "500")
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    first = simulate(*arguments, "--plot", str(one))
    second = simulate(*arguments, "--plot", str(two))
    assert first.replace("one.png", "two.png") == second
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(b"\x89PNG")
    assert simulate(*arguments, "--seed", "2") != simulate(*arguments)


@pytest.mark.parametrize(("shares", "index"), [([1, 1, 1, 1], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0)])
def test_the_jain_index_is_1_for_equal_shares_and_1_over_n_for_a_single_share(
    shares: list[float], index: float
) -> None:
    assert jain_index(shares) == index
