"""`scripts/lint-prose`, a part of `make check`, finds texts that break the rules and accepts plain ones."""

import subprocess
import sys
from pathlib import Path

import pytest

LINT = Path(__file__).parents[1] / "scripts" / "lint-prose"


def lint(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, LINT, file], capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('"""What is kept of a run."""\n', "begins with 'What'"),
        ('def f() -> None:\n    """Whoever waits gets it."""\n', "begins with 'Whoever'"),
        ("# Of a batch that is here in part,\n# the end.\nX = 1\n", "begins with 'Of'"),
        ("X = 1  # A cluster that is none of ours.\n", "says 'is none'"),
        ('"""A run. The caller is told of it."""\n', "says 'is told'"),
        ("def test_a_request_is_heard_once() -> None: ...\n", "says 'is heard'"),
        ("def test_what_was_removed_does_not_fire() -> None: ...\n", "begins with 'What'"),
        ('raise ValueError(f"the port asks nobody {x}")\n', "says 'asks nobody'"),
        ("# CPU a workflow, of both servers.\nX = 1\n", "says 'CPU a workflow'"),
        ('"""A new stamp voids the tasks."""\n', "says 'voids'"),
        ("# Read on, however long the history is.\nX = 1\n", "says 'however long'"),
        ('def f() -> None:\n    """The key is not that of the queue."""\n', "says 'not that of'"),
        ('raise ValueError("the caller of the poll has gone")\n', "says 'has gone'"),
    ],
)
def test_a_text_that_must_be_read_twice_is_named_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    result = lint(file)
    assert result.returncode == 1
    assert f"{file}:" in result.stdout
    assert complaint in result.stdout


def test_a_page_is_read_outside_its_code_blocks(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("# What is it?\n\nA page.\n\n```\n# who hears of it\n```\n")
    assert lint(file).returncode == 0
    file.write_text("A page that nobody hears of.\n")
    assert "says 'hears of'" in lint(file).stdout


@pytest.mark.parametrize(
    "text",
    [
        '"""LRU cache of one shard\'s runs. `limit` is None without a limit, and there is none by default."""\n',
        "# What if the caller is a listener? It must not be re-entered.\nX = 1\n",
    ],
)
def test_a_plain_text_passes(tmp_path: Path, text: str) -> None:
    file = tmp_path / "module.py"
    file.write_text(text)
    result = lint(file)
    assert (result.returncode, result.stdout) == (0, "1 files read, no text to put more plainly\n")
