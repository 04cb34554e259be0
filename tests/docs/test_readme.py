"""The programs in README.md run unchanged."""

import importlib
import re
from pathlib import Path

import pytest

from fairlead.testing import FairleadServer
from tests.cli.processes import server

README = Path(__file__).parents[2] / "README.md"
WORKFLOW, TASKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


async def test_the_program_with_a_workflow_runs(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program runs from a file, because the SDK's sandbox imports the workflow's module again."""
    async with FairleadServer.start() as running:
        (programs / "readme_workflow.py").write_text(WORKFLOW.replace("127.0.0.1:7233", running.address))
        await importlib.import_module("readme_workflow").main()
    assert capsys.readouterr().out == "Hello, world!\n"


async def test_the_program_without_workflows_runs(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = programs / "config.yaml"
    config.write_text("frontend: {listen: 127.0.0.1:0}\nlisten: 127.0.0.1:0\nstore: {memory: {}}\n")
    async with server("--config", str(config)) as running:
        (programs / "readme_tasks.py").write_text(TASKS.replace("127.0.0.1:7240", running.address))
        await importlib.import_module("readme_tasks").main()
    assert capsys.readouterr().out == "b'hello'\n"
