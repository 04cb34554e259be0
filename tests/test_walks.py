"""The walks in ARCHITECTURE.md are true and at most 30 hops long: two are read from the stacks of running servers."""

import ast
import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client

from fairlead.history.shard.stream import ShardStream
from fairlead.matching.handlers import reserve_poll
from fairlead.replication.lanes import Lanes
from fairlead.rpc.client.channel import Channel
from fairlead.rpc.responses import Responses
from fairlead.storage.sqlite.group_commit import GroupCommit
from fairlead.storage.sqlite.history_tables import HistoryTables
from fairlead.testing import FairleadClusters, FairleadServer
from tests.patience import until

ROOT = Path(__file__).parents[1]
HOPS_MAX = 30
# Words in backticks that are no function: values, modules and fields of the text around the walks.
NOT_FUNCTIONS = frozenset({"fairlead.client", "gateway/service", "storage/watched", "rpc/hosts", "tests/test_walks.py"})
DEFINED = re.compile(r"^\s*(?:async )?def (\w+)|^class (\w+)", re.MULTILINE)
START, BATCH = "A start", "A replicated batch"


def _section() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return text.split("## The way of a call\n")[1].split("\n## ")[0]


def _names(text: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", text) if name not in NOT_FUNCTIONS]


def _defined() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "src").rglob("*.py"):
        for function, kind in DEFINED.findall(file.read_text()):
            found.add(function or kind)
    return found


def test_every_hop_is_a_function_of_the_code() -> None:
    defined = _defined()
    parts = {part for name in _names(_section()) for part in name.split(".")}
    modules = {file.stem for file in (ROOT / "src").rglob("*.py")} | {
        folder.name for folder in (ROOT / "src").rglob("*") if folder.is_dir()
    }
    assert sorted(parts - defined - modules) == []


def _methods() -> dict[str, set[str]]:
    """The methods of each class, with those of its bases; classes of one name together."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
                own.setdefault(node.name, set()).update(each.name for each in functions)
                bases.setdefault(node.name, set()).update(each.id for each in node.bases if isinstance(each, ast.Name))

    def with_bases(name: str) -> set[str]:
        return own.get(name, set()).union(*map(with_bases, bases.get(name, set()) - {name}))

    return {name: with_bases(name) for name in own}


def test_every_hop_with_a_class_is_a_method_of_it() -> None:
    methods = _methods()
    pairs = [name.split(".") for name in _names(_section()) if name.count(".") == 1]
    assert [pair for pair in pairs if pair[0] in methods and pair[1] not in methods[pair[0]]] == []


def _rows(walk: str) -> dict[str, list[str]]:
    """The hops of a walk that is a table, by the part in the first column; without the words after "of"."""
    (text,) = [text for text in re.split(r"\n\*\*", _section()) if text.startswith(walk)]
    table = text.split("| part | hops |")[1].split("\n\n")[0]
    cells = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| ")]
    return {part: _names(re.sub(r"` of `[^`]+`", "`", hops.split("; then")[0])) for part, hops in cells}


def _said(walk: str) -> int:
    said = re.search(rf"\*\*{walk}[^*]*\*\*: (\d+) hops", _section())
    assert said is not None
    return int(said[1])


@pytest.mark.parametrize("walk", [START, BATCH, "A task of a client"])
def test_a_walk_has_as_many_hops_as_it_says_and_at_most_30(walk: str) -> None:
    assert sum(map(len, _rows(walk).values())) == _said(walk) <= HOPS_MAX


def test_the_walk_of_a_record_has_as_many_hops_as_it_says() -> None:
    (text,) = [text for text in re.split(r"\n\*\*", _section()) if text.startswith("A journal record")]
    assert len(_names(text)) == _said("A journal record") <= HOPS_MAX


def _last_words(hops: list[str]) -> list[str]:
    return [hop.rpartition(".")[2] for hop in hops]


def _stack() -> list[str]:
    """The functions of ours that are running, the outermost first."""
    frame: FrameType | None = sys._getframe(2)
    found: list[str] = []
    while frame is not None:
        if "/src/fairlead/" in frame.f_code.co_filename:
            found.append(frame.f_code.co_name)
        frame = frame.f_back
    return [name for name in reversed(found) if not name.startswith("<")]


def _packages() -> list[str]:
    """The packages of the functions of ours that are running, the outermost first, without repetition and `aio`."""
    frame: FrameType | None = sys._getframe(2)
    found: list[str] = []
    while frame is not None:
        _, is_ours, path = frame.f_code.co_filename.partition("/src/fairlead/")
        package = path.partition("/")[0]
        if is_ours and package != "aio" and found[-1:] != [package]:
            found.append(package)
        frame = frame.f_back
    return found[::-1]


class Stacks:
    """The stacks of calls of watched functions, each with the function itself at its end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.seen: dict[str, list[list[str]]] = {}
        self.packages: set[tuple[str, ...]] = set()

    def watch(self, owner: type, name: str, *, is_meant: Callable[..., bool] = lambda *_: True) -> None:
        original = getattr(owner, name)
        seen = self.seen.setdefault(f"{owner.__name__}.{name}", [])

        def watched(*arguments: Any, **options: Any) -> Any:
            if is_meant(*arguments):
                seen.append([*_stack(), name])
                self.packages.add(tuple(_packages()))
            return original(*arguments, **options)

        self._patch.setattr(owner, name, watched)

    def of(self, name: str, *, through: str = "") -> list[str]:
        """The first stack of a watched function that has `through` in it."""
        return next(stack for stack in self.seen[name] if not through or through in stack)


def _steps_up(packages: tuple[str, ...]) -> list[str]:
    """The packages to which a stack returns without a call to a host, and the composition root, which is on no walk."""
    found: list[str] = []
    passed: set[str] = set()
    for name in packages:
        if name == "rpc":
            passed.clear()
        elif name in passed or name == "server":
            found.append(name)
        passed.add(name)
    return found


def test_a_step_up_is_found() -> None:
    assert _steps_up(("rpc", "frontend", "matching", "rpc", "matching", "history", "storage")) == []
    assert _steps_up(("rpc", "frontend", "history", "frontend")) == ["frontend"]
    assert _steps_up(("rpc", "frontend", "server", "history")) == ["server"]


async def _poll(client: Client) -> None:
    request = PollWorkflowTaskQueueRequest(namespace="default", identity="test")
    request.task_queue.name = "queue"
    await client.workflow_service.poll_workflow_task_queue(request)


async def _start_until(client: Client, is_true: Callable[[], bool]) -> None:
    """Start workflows until one of them finds a waiting poll: a poll may arrive later than the start after it."""
    for number in range(100):
        polling = asyncio.create_task(_poll(client))
        # Loads the partition, and gives the poll time to arrive there.
        await client.count_workflows()
        await client.start_workflow("any", id=f"workflow-{number}", task_queue="queue")
        await polling
        if is_true():
            return


async def test_the_walk_of_a_start_is_that_of_a_running_server(tmp_path: Path) -> None:
    rows = {part: _last_words(hops) for part, hops in _rows(START).items()}
    with pytest.MonkeyPatch.context() as patch:
        # Before the server starts: it keeps some of these functions bound.
        stacks = Stacks(patch)
        stacks.watch(
            Responses, "_answer", is_meant=lambda _, stream, *__: stream.path.endswith("/StartWorkflowExecution")
        )
        stacks.watch(GroupCommit, "begin")
        stacks.watch(HistoryTables, "commit")
        stacks.watch(GroupCommit, "_answer")
        stacks.watch(reserve_poll._Reserved, "give")
        async with FairleadServer.start(db_filename=str(tmp_path / "store.db")) as server:
            await _start_until(await server.connect(), lambda: bool(stacks.seen["_Reserved.give"]))
    assert stacks.of("Responses._answer") == rows["socket"]
    expected = [rows["socket"][-1], *rows["frontend"], *rows["shard"]]
    assert stacks.of("GroupCommit.begin", through="write_step") == [*expected, *rows["commit"]]
    assert [*stacks.of("HistoryTables.commit"), *stacks.of("GroupCommit._answer")[-1:]] == rows["writer thread"]
    assert stacks.of("_Reserved.give", through="write_step") == [*expected, *rows["worker"]]
    assert {packages: up for packages in stacks.packages if (up := _steps_up(packages))} == {}


async def test_the_walk_of_a_replicated_batch_is_that_of_running_clusters(tmp_path: Path) -> None:
    rows = {part: _last_words(hops) for part, hops in _rows(BATCH).items()}
    async with FairleadClusters.start("a", "b", folder=tmp_path) as clusters:
        client = await clusters["a"].connect()
        with pytest.MonkeyPatch.context() as patch:
            stacks = Stacks(patch)
            stacks.watch(Channel, "stream")
            stacks.watch(ShardStream, "_page")
            stacks.watch(ShardStream, "written")
            stacks.watch(Lanes, "add")
            stacks.watch(GroupCommit, "begin")
            await client.start_workflow("any", id="workflow", task_queue="queue")
            await until(lambda: any("_advance" in stack for stack in stacks.seen["GroupCommit.begin"]))
            await until(lambda: any("read" in stack for stack in stacks.seen["ShardStream._page"]))
            await until(lambda: any("_parts" in stack for stack in stacks.seen["Channel.stream"]))
    assert stacks.of("Channel.stream", through="_parts")[:-1] == rows["pull"]
    # After the function of the transport that runs the handler.
    assert stacks.of("ShardStream._page", through="read")[1:-1] == rows["source"]
    assert stacks.of("ShardStream.written")[-1:] == rows["wake"]
    lanes = stacks.of("Lanes.add")
    assert lanes == [*rows["pull"][:2], *rows["lanes"][:2]]
    assert stacks.of("GroupCommit.begin", through="_advance")[:-1] == [*rows["lanes"][2:], *rows["apply"]]
    assert {packages: up for packages in stacks.packages if (up := _steps_up(packages))} == {}
