"""Operators read the fate of the signals and updates of losing branches."""

import asyncio

import msgspec

from fairlead.history.messages.stream import BranchesRequest, BranchesResponse
from fairlead.history.ndc import reapplied
from tests.history.ndc.several import Cluster, Several
from tests.history.ndc.test_reapply import FLOW, _part
from tests.history.shard_world import complete
from tests.virtual_time import on_virtual_time


async def _explain(cluster: Cluster, run_id: str = "") -> BranchesResponse:
    asked = BranchesRequest(FLOW, run_id, with_reapplied=True)
    return msgspec.msgpack.decode(await cluster.host.call("Branches", FLOW, asked), type=BranchesResponse)


@on_virtual_time
async def test_a_reapplied_signal_is_shown_with_its_origin_and_the_event_that_copies_it() -> None:
    async with Several() as several:
        run_id = await _part(several)
        await several.fail_over(2)
        await several.converge()
        for name in "abc":
            found = await _explain(several[name])
            losing_branch, items = found.branches[1]
            (signal,) = found.reapplied
            assert (signal.kind, signal.name, signal.branch_id) == ("signal", "lost", losing_branch)
            assert (signal.event_id, signal.version) == items[-1]
            assert signal.to_run_id == run_id
            (copy,) = [
                one
                for one in await several[name].host.events(FLOW)
                if one.workflow_execution_signaled_event_attributes.signal_name == "lost"
            ]
            assert signal.to_event_id == copy.event_id


@on_virtual_time
async def test_a_signal_that_a_reset_took_is_shown_with_the_new_run() -> None:
    async with Several() as several:
        a, b = several["a"], several["b"]
        first = await a.host.begin(FLOW)
        await several.bring("a")
        await several.fail_over(2, "b")
        task = await b.host.poll()
        assert task is not None
        await b.host.respond(task, [complete()])
        await a.host.signal(FLOW, "late", "r1")
        await several.fail_over(2, "a")
        await several.converge()
        (signal,) = (await _explain(b, first)).reapplied
        assert (signal.name, signal.to_run_id, signal.to_event_id) == ("late", b.state(FLOW).identity.run_id, 0)
        assert signal.to_run_id != first


@on_virtual_time
async def test_a_signal_that_no_run_has_yet_is_shown_without_a_copy_and_long_lists_are_cut() -> None:
    async with Several(("a", "b")) as several:
        await _part(several)
        await several["a"].host.signal(FLOW, "second", "r3")
        # A learns of B's branch, which is the current one; only B, the active cluster, reapplies.
        await several.fail_over(2, "a")
        await several.bring("b", "a")
        await asyncio.sleep(1)
        found = await _explain(several["a"])
        assert [(one.name, one.to_run_id, one.to_event_id) for one in found.reapplied] == [
            ("lost", "", 0),
            ("second", "", 0),
        ]
        assert not found.is_reapplied_cut
        before, reapplied.EVENTS_MAX = reapplied.EVENTS_MAX, 1
        try:
            found = await _explain(several["a"])
        finally:
            reapplied.EVENTS_MAX = before
        assert [one.name for one in found.reapplied] == ["lost"]
        assert found.is_reapplied_cut


@on_virtual_time
async def test_a_run_with_one_branch_has_nothing_to_explain() -> None:
    async with Several(("a", "b")) as several:
        await several["a"].host.begin(FLOW)
        assert (await _explain(several["a"])).reapplied == ()
