"""Diverging branches, a switch of the current branch and reapplied events on SQLite, where branches share events."""

from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from fairlead.history.messages.ndc import Outcome
from fairlead.history.messages.stream import BranchesRequest, BranchesResponse
from fairlead.storage.sqlite import SqliteStore
from tests.history.ndc.several import Cluster, Several
from tests.history.shard_world import complete, kinds, schedule_activity

FLOW = "flow-1"


async def _branches(cluster: Cluster) -> tuple[tuple[tuple[int, int], ...], set[tuple[tuple[int, int], ...]]]:
    answer = await cluster.host.call("Branches", FLOW, BranchesRequest(FLOW, ""))
    branches = [items for _, items in msgspec.msgpack.decode(answer, type=BranchesResponse).branches]
    return branches[0], set(branches)


async def test_two_clusters_with_files_end_with_the_same(tmp_path: Path) -> None:
    several = Several(("a", "b"))
    async with AsyncExitStack() as stack:
        for name, cluster in several.clusters.items():
            store = await SqliteStore.open(tmp_path / f"{name}.db")
            stack.push_async_callback(store.close)
            cluster.world.store = store.history  # type: ignore[assignment]
        await stack.enter_async_context(several)
        a, b = several["a"], several["b"]
        await a.host.begin(FLOW)
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task, [schedule_activity()])
        await several.bring("a")
        await several.fail_over(2, "b")
        await a.host.signal(FLOW, "lost", "r1")
        await b.host.signal(FLOW, "won", "r2")
        await several.fail_over(2, "a")
        assert Outcome.REBUILT in await several.bring("b", "a")
        await several.converge()
        # Diverge once more, so that a branch is forked from a forked branch.
        await several.fail_over(11, "a")
        await b.host.signal(FLOW, "lost again", "r3")
        await a.host.signal(FLOW, "won again", "r4")
        await several.fail_over(11, "b")
        await several.converge()
        await a.settle()
        await b.settle()
        await several.converge()
        assert await _branches(a) == await _branches(b)
        assert len((await _branches(a))[1]) == 3
        histories = [await cluster.host.events(FLOW) for cluster in (a, b)]
        assert histories[0] == histories[1]
        assert kinds(histories[0]).count("WORKFLOW_EXECUTION_SIGNALED") == 4
        task = await a.host.poll()
        assert task is not None
        await a.host.respond(task, [complete()])
        await several.converge()
        assert kinds(await b.host.events(FLOW))[-1] == "WORKFLOW_EXECUTION_COMPLETED"
