"""The first example of docs/testing.md runs unchanged."""

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


async def test_the_first_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example runs from a file, because the SDK's sandbox loads the workflow's module again."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    (tmp_path / "test_reminder.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    example = importlib.import_module("test_reminder")

    await example.test_a_reminder_is_sent_after_a_month()
