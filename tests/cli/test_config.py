"""`fairlead config` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.settings import SETTINGS
from fairlead.settings.dynamic.reference import reference

FAIRLEAD = Path(sys.executable).with_name("fairlead")

GOOD = """\
matching.numTasklistReadPartitions:
  - value: 4
  - value: 16
    constraints: {namespace: orders, taskQueueName: "[/b] list", taskType: activity}
matching.longPollExpirationInterval:
  - value: 30s
"""
BAD = """\
matching.numTasklistReadPartition:
  - value: 4
matching.numTasklistWritePartitions:
  - value: 0
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FAIRLEAD, "config", *arguments], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return str(path)


def test_list_shows_every_setting_with_its_full_key() -> None:
    done = run("list")
    assert done.returncode == 0
    for setting in SETTINGS:
        assert setting.key in done.stdout
    assert f"{len(list(SETTINGS))} settings, 0 of them not at their default" in done.stdout


def test_list_shows_the_values_in_force_and_their_sources(good: str) -> None:
    scope = ["--namespace", "orders", "--task-list", "[/b] list", "--type", "activity"]
    done = run("list", "numTASKqueue", "--file", good, *scope, "-o", "json")
    read, write = json.loads(done.stdout)["settings"]
    assert read["key"] == "matching.numTasklistReadPartitions"
    assert (read["value"], read["from"], read["default"]) == (16, "line 3", 1)
    assert read["constraints"] == "namespace orders, taskQueueName [/b] list, taskType activity"
    assert (write["value"], write["from"], write["constraints"]) == (1, "default", None)
    as_table = run("list", "numTasklist", "--file", good, *scope)
    assert as_table.returncode == 0, as_table.stderr
    assert "taskQueueName [/b] list" in as_table.stdout


def test_list_includes_values_from_the_command_line(good: str) -> None:
    value = "matching.numTasklistReadPartitions=7"
    done = run("list", "numTasklistRead", "--file", good, "--dynamic-config-value", value, "-o", "json")
    (read,) = json.loads(done.stdout)["settings"]
    assert (read["value"], read["from"]) == (7, "command line")


def test_get_shows_every_property_of_one_setting(good: str) -> None:
    done = run("get", "MATCHING.NumTaskqueueReadPartitions", "--file", good)
    assert done.returncode == 0
    for fact in ("1 to 10000", "task queue", "matching.numTaskqueueReadPartitions", "line 2"):
        assert fact in done.stdout
    reported = json.loads(run("get", "matching.longPollExpirationInterval", "--file", good, "-o", "json").stdout)
    assert (reported["value"], reported["default"], reported["scope"]) == ("30s", "1m", "task queue")


def test_get_shows_the_value_false() -> None:
    assert "value     false" in run("get", "matching.enableAdaptiveScaler").stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["get", "matching.numTasklistReadPartition"], "did you mean matching.numTasklistReadPartitions?"),
        (["list", "--file", "/no/such/file"], "/no/such/file can't be read: No such file or directory"),
        (["list", "--dynamic-config-value", "matching.unknown"], "is not of the form KEY=JSON"),
        (["list", "--dynamic-config-value", "matching.rqs=1"], "'matching.rqs' is not a setting"),
        (["get", "matching.rps"], "'matching.rps' has no effect here: Only the frontend limits calls"),
    ],
)
def test_a_setting_that_can_not_be_shown_is_reported_in_one_line(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


def test_an_invalid_file_is_not_shown_as_in_force(bad: str) -> None:
    done = run("list", "--file", bad)
    assert done.returncode == 2
    assert done.stdout == ""
    assert f"{bad} has 2 problems: line 1: " in done.stderr


def test_validate_accepts_a_valid_file(good: str) -> None:
    done = run("validate", good)
    assert done.returncode == 0
    assert done.stdout == f"{good}: valid. It sets 3 values of 2 settings.\n"


def test_validate_reports_each_problem_on_its_own_line(bad: str) -> None:
    """FL-73: every problem with its line."""
    done = run("validate", bad)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        (
            f"{bad}:1: 'matching.numTasklistReadPartition' is not a setting: "
            "did you mean matching.numTasklistReadPartitions?"
        ),
        f"{bad}:4: matching.numTasklistWritePartitions: 0 is out of bounds: choose 1 to 10000",
    ]


def test_validate_has_json_output(bad: str, good: str) -> None:
    done = run("validate", bad, "-o", "json")
    assert done.returncode == 1
    reported = json.loads(done.stdout)
    assert reported["is_valid"] is False
    assert [problem["line"] for problem in reported["problems"]] == [1, 4]
    assert json.loads(run("validate", good, "-o", "json").stdout)["is_valid"] is True


def test_validate_of_a_missing_file_fails(tmp_path: Path) -> None:
    done = run("validate", str(tmp_path / "none.yaml"))
    assert done.returncode == 1
    assert "can't be read: No such file or directory" in done.stdout


def test_docs_prints_the_reference() -> None:
    assert run("docs").stdout == reference()
