"""The commands of docs/security.md lead from nothing to a locked server, in their order; its examples are right."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.settings.static.config import load_config
from tests.cli.processes import ANSWER_S_MAX
from tests.frontend.served import needs_command_line
from tests.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
FILES = re.compile(r"```(sh|yaml|python)\n(.*?)```", re.DOTALL)


def free_ports(count: int) -> list[int]:
    return [free_port() for _ in range(count)]


@needs_command_line
async def test_the_first_ten_minutes_work(tmp_path: Path) -> None:
    frontend, hosts = free_ports(2)
    page = PAGE.partition("## Roles")[0].replace("127.0.0.1:7233", f"127.0.0.1:{frontend}")
    script = ["set -eu"]
    for language, block in FILES.findall(page.replace("127.0.0.1:7240", f"127.0.0.1:{hosts}")):
        if language == "sh":
            # Python sometimes aborts at its end, after the worker has stopped, while threads of the SDK still run.
            script.append(block.replace("python worker.py", "python worker.py || test $? = 134"))
            continue
        name = re.match(r"# (\w+\.\w+)\n", block)
        assert name is not None, block
        script.append(f"cat > {name[1]} <<'END_OF_FILE'\n{block}END_OF_FILE\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", "\n".join(script)),
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    try:
        assert shell.stdout is not None
        async with asyncio.timeout(ANSWER_S_MAX):
            # Until the script ends; the server continues, and has its own output.
            said = (await shell.stdout.read()).decode()
            await shell.wait()
        assert shell.returncode == 0, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
    assert "refused, as it should be" in said
    assert "revoked" in said.splitlines()[-1]
    assert "COMPLETED" in said.upper()
    assert "order-workers" in said


def test_every_example_is_a_valid_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef")
    examples = [block for language, block in FILES.findall(PAGE) if language == "yaml"]
    assert len(examples) == 7
    for example in examples:
        file = tmp_path / "example.yaml"
        file.write_text(re.sub(r"/etc/fairlead/[\w-]+", str(tmp_path / "secret"), example))
        load_config(file, {})


@pytest.mark.parametrize(
    "key", ["keySourceURIs", "permissionsRegex", "requireClientAuth", "hostOverrides", "secretEnv"]
)
def test_the_page_names_the_keys(key: str) -> None:
    assert key in PAGE
