import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fairlead.simulations.replication as module
from fairlead.cli.commands import cli
from fairlead.core.versions import BranchTree, draw_tree
from fairlead.simulations.data_centers import OUTCOMES, Snapshot


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["simulate", "replication", *arguments])


def simulate_json(*arguments: str) -> dict[str, Any]:
    done = simulate("-o", "json", *arguments)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.output)
    return answer


def branches_by_center(rows: list[dict[str, Any]]) -> dict[str, list[tuple[str, bool]]]:
    centers: dict[str, list[tuple[str, bool]]] = {}
    for row in rows:
        centers.setdefault(row["data_center"], []).append((row["version_history"], row["current"]))
    return centers


@pytest.mark.parametrize("seed", range(12))
def test_the_data_centers_diverge_and_then_converge(seed: int) -> None:
    """NDC-9, FL-55, with the default arguments."""
    answer = simulate_json("--seed", str(seed))
    before, after = (branches_by_center(answer[moment]) for moment in ("before", "after"))
    assert set(before) == set(after) == {"A", "B", "C"}
    assert len({tuple(branches) for branches in before.values()}) > 1
    assert len({tuple(branches) for branches in after.values()}) == 1
    assert sum(row["forked"] for row in answer["deliveries"]) > 0
    assert sum(row["switched"] for row in answer["deliveries"]) >= 1
    assert [row["all_agree"] for row in answer["agreement"]] == [False, True]
    assert [row["events"] for row in answer["agreement"]] == [80, 80]
    for branches in after.values():
        last_versions = [int(history.rstrip(")").rpartition(",")[2]) for history, _ in branches]
        assert [current for _, current in branches] == [version == max(last_versions) for version in last_versions]


@pytest.mark.parametrize("clusters", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_data_centers_converges(clusters: int, seed: int) -> None:
    result = module.run(Random(seed), clusters=clusters, events=150, failovers=10)
    trees = list(result.after.trees.values())
    assert len(trees) == clusters
    assert all(set(tree.branches) == set(trees[0].branches) for tree in trees)
    assert all(tree.current == trees[0].current for tree in trees)
    assert all(draw_tree(tree) == draw_tree(trees[0]) for tree in trees)
    contents = list(result.after.contents.values())
    assert all(held == contents[0] for held in contents)
    assert len(contents[0]) == len(set(contents[0].values())) == 150
    assert result.after.is_agreed


def test_data_centers_agree_only_with_the_same_branches_current_branch_and_events() -> None:
    result = module.run(Random(1), clusters=2, events=40, failovers=3)
    after = result.after
    assert after.is_agreed
    other_tree = BranchTree((after.trees["B"].current.truncate(1),))
    assert not Snapshot({**after.trees, "B": other_tree}, after.contents).is_agreed
    assert not Snapshot({**after.trees, "B": BranchTree()}, after.contents).is_agreed
    changed = {**after.contents["B"], next(iter(after.contents["B"])): "another content"}
    assert not Snapshot(after.trees, {**after.contents, "B": changed}).is_agreed


def test_no_branch_forks_without_a_failover() -> None:
    answer = simulate_json("--failovers", "0", "--events", "30")
    assert sum(row["forked"] + row["switched"] for row in answer["deliveries"]) == 0
    assert {row["version_history"] for row in answer["after"]} == {"(30,1)"}
    assert answer["tree"] == [{"tree": "1-30 v1  <- current"}]


def test_every_kind_of_delivery_happens_with_the_default_arguments() -> None:
    answers = [simulate_json("--seed", str(seed)) for seed in range(3)]
    for outcome in OUTCOMES:
        assert sum(row[outcome] for answer in answers for row in answer["deliveries"]) > 0


def test_the_json_output_has_the_parameters_and_tables() -> None:
    answer = simulate_json("--seed", "7", "--clusters", "4")
    assert list(answer) == ["subject", "headline", "parameters", "before", "after", "deliveries", "agreement", "tree"]
    assert answer["parameters"] == {"clusters": 4, "events": 80, "failovers": 5, "seed": 7}
    assert set(answer["before"][0]) == {"data_center", "events", "version_history", "current"}
    assert [row["data_center"] for row in answer["deliveries"]] == ["A", "B", "C", "D"]


def test_the_same_seed_gives_the_same_output_and_picture(tmp_path: Path) -> None:
    pictures = [tmp_path / "one.png", tmp_path / "two.png"]
    outputs = [simulate("--seed", "3", "--plot", str(picture)) for picture in pictures]
    assert [done.exit_code for done in outputs] == [0, 0]
    assert outputs[0].output.replace("one.png", "two.png") == outputs[1].output
    assert "all data centers agree" in outputs[0].output
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert pictures[0].read_bytes().startswith(b"\x89PNG")
    assert simulate("--seed", "4").output != simulate("--seed", "3").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clusters", "1"], "1 is not in the range 2<=x<=5"),
        (["--clusters", "6"], "6 is not in the range 2<=x<=5"),
        (["--events", "0"], "0 is not in the range"),
        (["--failovers", "19"], "19 is not in the range"),
        (["--events", "5", "--failovers", "5"], "--failovers 5 needs more than 5 --events, not 5"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str) -> None:
    done = simulate(*arguments)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("arguments", [["--events", "1", "--failovers", "0"], ["--events", "19", "--failovers", "18"]])
def test_the_smallest_runs_converge(arguments: list[str]) -> None:
    for seed in range(5):
        assert simulate_json("--seed", str(seed), *arguments)["agreement"][1]["all_agree"]
