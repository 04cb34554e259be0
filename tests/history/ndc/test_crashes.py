"""A cluster that crashes at any commit while it applies replicated events ends the same as the others."""

import asyncio

import pytest

from fairlead.core.errors import FairleadError
from tests.history.ndc.several import Several, check_same
from tests.history.shard.test_shard import _Dying
from tests.history.shard_world import complete, schedule_activity, start_timer
from tests.virtual_time import on_virtual_time

FLOWS = ("flow-1", "flow-2")
COMMITS = 24


async def _write(several: Several) -> None:
    """Write diverging branches, competing runs and buffered signals: A writes at version 1, C at version 3."""
    a, c = several["a"], several["c"]
    await a.host.begin("flow-1")
    task = await a.host.poll()
    assert task is not None
    await a.host.respond(task, [schedule_activity(), start_timer(3600)])
    await several.bring("a", "c")
    await several.fail_over(3, "c")
    await a.host.begin("flow-2")
    await a.host.signal("flow-2", "told", "r0")
    await a.host.signal("flow-1", "lost", "r1")
    assert await a.host.poll() is not None
    await a.host.signal("flow-1", "waits", "r2")
    await c.host.begin("flow-2", "other")
    await c.host.signal("flow-1", "won", "r3")
    task = await c.host.poll()
    assert task is not None
    await c.host.respond(task, [complete()] if task.workflow_execution.workflow_id == "flow-1" else [])
    await several.fail_over(3, "a")


@pytest.mark.parametrize("is_applied", [False, True])
@pytest.mark.parametrize("commits", range(1, COMMITS, 2))
@on_virtual_time
async def test_nothing_is_lost_or_done_twice(commits: int, is_applied: bool) -> None:
    async with Several() as several:
        await _write(several)
        b = several["b"]
        await b.world.close()
        dying = _Dying(b.world.store, commits, is_applied=is_applied)
        await b.start(store=dying)
        # B is the active cluster in the end, and reapplies the lost events.
        await several.fail_over(12, "b")
        try:
            async with asyncio.timeout(30):
                for source in ("a", "c"):
                    await several.bring(source, "b")
                await asyncio.sleep(5)
        except (FairleadError, TimeoutError):
            assert dying.has_died.is_set()
        several.cursors.pop(("a", "b"), None)
        several.cursors.pop(("c", "b"), None)
        await b.restart()
        await several.fail_over(12)
        await several.converge()
        await asyncio.sleep(40)
        await several.converge()
        await check_same(several, FLOWS)
        names = [
            event.workflow_execution_signaled_event_attributes.signal_name
            for workflow_id in FLOWS
            for event in await b.host.events(workflow_id)
            if event.HasField("workflow_execution_signaled_event_attributes")
        ]
        assert sorted(names) == ["lost", "told", "waits", "won"]
