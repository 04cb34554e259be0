"""The command as a user runs it: a process with arguments, an exit code and two streams."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

FAIRLEAD = Path(sys.executable).with_name("fairlead")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FAIRLEAD, *arguments], capture_output=True, text=True, check=False, timeout=60)  # noqa: S603


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["simulate", "nonsense"], "No such command 'nonsense'"),
        (["simulate", "fairness", "--keys", "0"], "'--keys': 0 is not in the range"),
        (["simulate", "fairness", "--seed", "-1"], "'--seed': -1 is not in the range"),
        (["simulate", "fairness", "--seed", "one"], "'one' is not a valid integer range"),
        (["simulate", "fairness", "-o", "xml"], "'xml' is not one of 'table', 'json'"),
        (["simulate", "fairness", "--unknown"], "No such option"),
        (["simulate", "fairness", "extra"], "unexpected extra argument"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments: list[str], complaint: str) -> None:
    """FL-18: the command line reports an error in one line."""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("file", "complaint"), [("/no/such/folder/a.png", "there is no folder"), ("picture.jpg", "ends in .png")]
)
def test_a_plot_file_that_can_not_be_written_is_reported_in_one_line(file: str, complaint: str) -> None:
    done = run("simulate", "fairness", "--duration", "5", "--plot", file)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_failing_standard_output_is_reported_in_one_line_and_fails_the_command(output: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(  # noqa: S603
            [FAIRLEAD, "simulate", "replication", "-o", output],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["simulate", "scaling"], ["simulate", "replication"], ["simulate", "replication", "-o", "json"]]
)
def test_the_output_works_on_a_terminal_with_only_ascii(arguments: list[str]) -> None:
    done = subprocess.run(  # noqa: S603
        [FAIRLEAD, *arguments],
        capture_output=True, check=False, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fairlead", "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.startswith("fairlead ")


def test_no_arguments_show_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: fairlead" in done.stderr


def test_the_version_is_the_packages_version() -> None:
    assert run("--version").stdout == f"fairlead {version('fairlead')}\n"
