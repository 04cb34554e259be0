"""The operator's guide: its commands work in their order, and its examples are valid."""

import re
import shutil
from pathlib import Path

import pytest

from fairlead.settings import SETTINGS, parse_file, read_file
from fairlead.settings.static.config import load_config
from tests.cli.processes import run, server

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "operations.md").read_text()
EXAMPLES = sorted((DOCS / "examples").glob("*.yaml"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


# Starts a dozen processes one by one, which takes minutes on a very busy machine.
@pytest.mark.timeout(600)
async def test_the_commands_of_the_guide_work_in_their_order(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(DOCS / "examples", folder)
    laptop = folder / "laptop.yaml"
    # Any free ports: the default ones may be in use.
    laptop.write_text(laptop.read_text().replace(":7233", ":0").replace(":7240", ":0").replace(":9090", ":0"))
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("fairlead ")]
    asked = [command for command in commands if " server start" not in command]
    assert len(asked) >= 10
    async with server("--config", str(laptop)) as started:
        for command in asked:
            done = await run(*command.split()[1:], environment={"FAIRLEAD_ADDRESS": started.address}, folder=folder)
            assert done.code == 0, f"{command}: {done.err}"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_configuration_is_valid(file: Path) -> None:
    if file.name == "dynamic.yaml":
        content, _ = read_file(file)
        assert content is not None
        assert parse_file(content, SETTINGS).problems == ()
    else:
        assert load_config(file, {"FAIRLEAD_DSN": "dbname=fairlead"}).dynamic_file == file.with_name("dynamic.yaml")


def test_the_settings_in_the_guide_are_valid() -> None:
    parsed = [parse_file(block.encode(), SETTINGS) for block in blocks("yaml")]
    assert [one.problems for one in parsed] == [(), ()]
    assert [len(one.rules) for one in parsed] == [3, 2]


def test_the_hosts_of_the_example_differ_only_in_their_addresses() -> None:
    environment = {"FAIRLEAD_DSN": "dbname=fairlead"}
    hosts = [load_config(file, environment) for file in EXAMPLES if file.name.startswith("host-")]
    assert len({host.listen for host in hosts}) == len({host.metrics_listen for host in hosts}) == 3
    assert len({(host.store, host.dynamic_file, host.hand_over_s) for host in hosts}) == 1


def test_the_guide_names_every_key_of_the_configuration() -> None:
    for key in (
        "frontend.listen",
        "listen",
        "name",
        "roles",
        "history.shards",
        "namespaces",
        "store.sqlite.file",
        "store.memory",
        "metrics.listen",
        "stop.handOver",
    ):
        assert f"| `{key}`" in GUIDE
    for key in ("dsn", "dsnEnv", "dsnFile", "pollInterval", "level", "format", "grace"):
        assert key in GUIDE
