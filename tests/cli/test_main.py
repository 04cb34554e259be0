"""The command as a user runs it: a process with arguments, an exit code and two streams."""

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
def test_bad_arguments_get_one_clear_line(arguments: list[str], complaint: str) -> None:
    """Issue: 'Bad arguments get one clear line.'"""
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fairlead: ")
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


@pytest.mark.parametrize(
    ("file", "complaint"), [("/no/such/folder/a.png", "there is no folder"), ("picture.jpg", "must end in .png")]
)
def test_a_picture_that_can_not_be_written_is_refused_in_one_line(file: str, complaint: str) -> None:
    done = run("simulate", "fairness", "--duration", "5", "--plot", file)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert complaint in done.stderr


def test_no_arguments_show_the_help() -> None:
    done = run()
    assert done.returncode == 2
    assert "Usage: fairlead" in done.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version").stdout == f"fairlead {version('fairlead')}\n"
