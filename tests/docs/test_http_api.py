"""The examples of docs/http-api.md: each command is run, and prints what the page says."""

import asyncio
import json
import re
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import pytest

from tests.frontend.http.test_reference import serving
from tests.patience import PATIENCE_S
from tests.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"
_EXAMPLE = re.compile(r"```\n(curl .*?)```\n\n```json\n(.*?)```", re.DOTALL)
_ANYTHING = "…"


def examples() -> list[tuple[str, Any]]:
    return [(command, json.loads(shown)) for command, shown in _EXAMPLE.findall(PAGE.read_text())]


def test_every_command_has_its_response() -> None:
    assert len(examples()) == PAGE.read_text().count("```\ncurl ") >= 10


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_examples_print_what_the_page_says() -> None:
    port = free_port()
    command = (sys.executable, "-m", "fairlead", "server", "start-dev", "--port", "0", "--http-port", str(port))
    async with serving(*command, "--headless", until=b"Ready"):
        for line, shown in examples():
            process = await asyncio.create_subprocess_shell(
                line.replace(":7243", f":{port}"), stdin=DEVNULL, stdout=PIPE, stderr=PIPE
            )
            async with asyncio.timeout(PATIENCE_S):
                out, err = await process.communicate()
            assert process.returncode == 0, (line, err)
            _check(json.loads(out), shown, line)


def _check(got: Any, shown: Any, line: str) -> None:
    if shown == _ANYTHING:
        return
    if isinstance(shown, dict) and shown:
        assert isinstance(got, dict), line
        for name, value in shown.items():
            assert name in got, (line, name)
            _check(got[name], value, line)
    elif isinstance(shown, list):
        assert len(got) >= len(shown), (line, got)
        for one, value in zip(got, shown, strict=False):
            _check(one, value, line)
    else:
        assert got == shown, line
