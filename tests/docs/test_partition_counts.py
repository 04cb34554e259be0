"""The commands and settings of docs/partition-counts.md do what the page says, in its order."""

import asyncio
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from tests.cli.processes import run, server

PAGE = (Path(__file__).parents[2] / "docs" / "partition-counts.md").read_text()
CONFIG = """
listen: 127.0.0.1:0
frontend: {listen: "127.0.0.1:0"}
store:
  sqlite: {file: fairlead.db}
dynamicConfig: {file: dynamic.yaml, pollInterval: 1s}
"""
# For each `describe` on the page: the source, the read partitions in the database and those in force.
DESCRIBED = [("settings", 4, 4), ("database", 4, 4), ("settings", 6, 6)]


async def test_the_page_leads_from_the_settings_to_the_database_and_back(tmp_path: Path) -> None:
    blocks = [
        (language, textwrap.dedent(block)) for language, block in re.findall(r"```(yaml|sh)\n(.*?)```", PAGE, re.DOTALL)
    ]
    (tmp_path / "server.yaml").write_text(CONFIG)
    dynamic = tmp_path / "dynamic.yaml"
    language, first = blocks.pop(0)
    assert language == "yaml"
    dynamic.write_text(first)
    seen: list[tuple[str, int, int]] = []
    async with server("--config", str(tmp_path / "server.yaml")) as started:

        async def fairlead(command: str) -> str:
            done = await run(*command.split()[1:], environment={"FAIRLEAD_ADDRESS": started.address})
            assert done.code == 0, f"{command}: {done.err}"
            return done.out

        for language, block in blocks:
            if language == "yaml":
                dynamic.write_text(block)
                continue
            for command in block.strip().splitlines():
                if " describe " in command:
                    expected = DESCRIBED[len(seen)]
                    await _until(fairlead, f"{command} -o json", expected)
                    seen.append(expected)
                else:
                    await fairlead(command)
    assert seen == DESCRIBED


async def _until(fairlead: Any, command: str, expected: tuple[str, int, int]) -> None:
    """Wait until the output is as expected: the server reads its settings file periodically."""
    found: tuple[str, int, int] | None = None
    async with asyncio.timeout(30):
        while found != expected:
            described = json.loads(await fairlead(command))
            (source,) = [row["source"] for row in described["counts"] if row["is_used"]]
            (database,) = [row["read"] for row in described["counts"] if row["source"] == "database"]
            found = (source, database, described["configuration"]["read"])
