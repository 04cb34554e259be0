"""Repair steps between real clusters: events come from a cluster that has them; unknown clusters are rejected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from fairlead.api.errors import ApiError
from fairlead.core.errors import FixRequest
from fairlead.history.messages.ndc import Outcome
from fairlead.replication import repair
from fairlead.replication.messages import Repaired, RepairRequest, RepairStep
from fairlead.replication.remote import RemoteUnavailable
from fairlead.replication.repair import STEPS_MAX
from tests.replication.clusters import GLOBAL_NAMESPACE, OneCluster

FLOW = "flow-1"


@pytest.fixture
async def clusters() -> AsyncIterator[tuple[OneCluster, OneCluster]]:
    """Two clusters that know each other, without replication."""
    async with AsyncExitStack() as stack:
        both = OneCluster("a", ["b"]), OneCluster("b", ["a"])
        for cluster in both:
            await cluster.open()
            stack.push_async_callback(cluster.close)
        a, b = both
        a.addresses["b"], b.addresses["a"] = b.address, a.address
        yield both


def request(run_id: str, *steps: RepairStep, is_dry: bool = False, **fields: Any) -> RepairRequest:
    made = {"target": "b", "sources": ("a",), "workflow_id": FLOW, **fields}
    return RepairRequest(namespace_id=GLOBAL_NAMESPACE.id, run_id=run_id, steps=steps, is_dry=is_dry, **made)


async def test_exactly_the_events_of_the_steps_are_fetched(clusters: tuple[OneCluster, OneCluster]) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    for number in range(4):
        await a.signal(FLOW, f"s{number}")
    whole = await a.events(FLOW)
    steps = [RepairStep("a", 1, 3, 1, ((3, 1),)), RepairStep("a", 4, 5, 1, ((5, 1),))]
    # Requested at the other cluster, which forwards it.
    expected = await a.repairs.pass_on(request(run_id, *steps, is_dry=True))
    assert expected.repaired == (Repaired(Outcome.CREATED, 3), Repaired(Outcome.APPLIED, 2))
    with pytest.raises(ApiError):
        await b.events(FLOW)
    done = await a.repairs.pass_on(request(run_id, *steps))
    assert done.repaired == expected.repaired
    assert await b.events(FLOW) == whole[:5]
    again = await b.repairs.pass_on(request(run_id, *steps))
    assert again.repaired == (Repaired(Outcome.DUPLICATE), Repaired(Outcome.DUPLICATE))
    assert await b.events(FLOW) == whole[:5]


async def test_only_the_events_of_a_batch_that_a_step_names_are_applied(
    clusters: tuple[OneCluster, OneCluster],
) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    await a.signal(FLOW, "one")
    whole = await a.events(FLOW)
    for last in (1, 3):
        done = await b.repairs.pass_on(request(run_id, RepairStep("a", last, last, 1, ((last, 1),))))
        # The first two events are one batch; the third step has to wait for the second.
        assert [bool(step.error) for step in done.repaired] == [last == 3]
        assert await b.events(FLOW) == whole[:1]
    await b.repairs.pass_on(request(run_id, RepairStep("a", 2, 3, 1, ((3, 1),))))
    assert await b.events(FLOW) == whole


async def test_events_that_the_store_lost_but_the_state_has_are_restored(
    clusters: tuple[OneCluster, OneCluster],
) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    for number in range(3):
        await a.signal(FLOW, f"s{number}")
    whole = await a.events(FLOW)
    step = RepairStep("a", 1, 5, 1, ((5, 1),))
    await b.repairs.pass_on(request(run_id, step))
    store: Any = b.store
    (branch,) = store._trees[run_id].values()
    for first in (3, 5):
        del branch.batches[first]
        branch.first_event_ids.remove(first)
    for is_dry in (True, False):
        done = await b.repairs.pass_on(request(run_id, step, is_dry=is_dry))
        assert done.repaired == (Repaired(Outcome.RESTORED, 2),)
    assert [*branch.batches] == [1, 4, 3, 5]
    assert (await b.repairs.pass_on(request(run_id, step))).repaired == (Repaired(Outcome.DUPLICATE),)
    assert await b.events(FLOW) == whole


async def test_a_failing_step_reports_its_reason_and_the_others_are_executed(
    clusters: tuple[OneCluster, OneCluster],
) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    await a.signal(FLOW, "one")
    steps = [
        RepairStep("a", 3, 3, 1, ((3, 1),)),
        RepairStep("a", 1, 2, 1, ((2, 1),)),
        RepairStep("a", 3, 4, 1, ((4, 1),)),
    ]
    for is_dry in (True, False):
        gap, whole, absent = (await b.repairs.pass_on(request(run_id, *steps, is_dry=is_dry))).repaired
        assert "events 1 to 2 before them are missing, too" in gap.error
        assert whole == Repaired(Outcome.CREATED, 2)
        assert "no branch with event 4" in absent.error
    assert len(await b.events(FLOW)) == 2
    (unknown,) = (await b.repairs.pass_on(request("none", steps[1]))).repaired
    assert "not found" in unknown.error


async def test_a_plan_with_an_unknown_cluster_is_refused_before_any_step(
    clusters: tuple[OneCluster, OneCluster],
) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    step = RepairStep("a", 1, 2, 1, ((2, 1),))
    for asked in (a, b):
        with pytest.raises(FixRequest, match=r"names cluster 'x', but '[ab]' is connected only to"):
            await asked.repairs.pass_on(request(run_id, step, target="x"))
        with pytest.raises(FixRequest, match="names cluster 'x', but 'b' is connected only to"):
            await asked.repairs.pass_on(request(run_id, step, sources=("a", "x")))
    with pytest.raises(FixRequest, match="more than the limit of 100: divide it"):
        await b.repairs.pass_on(request(run_id, *[step] * (STEPS_MAX + 1)))
    # The connection exists in one direction only.
    with pytest.raises(FixRequest, match="is for cluster 'b', but this is cluster 'a'"):
        await b.remote("a").repair(request(run_id, step))
    with pytest.raises(ApiError):
        await b.events(FLOW)


async def test_a_repair_waits_for_a_source_that_is_being_restarted(clusters: tuple[OneCluster, OneCluster]) -> None:
    a, b = clusters
    run_id = await a.begin(FLOW)
    whole = await a.events(FLOW)
    await a.close()
    with pytest.raises(RemoteUnavailable):
        await b.remote("a").info()
    waiting = asyncio.create_task(b.repairs.pass_on(request(run_id, RepairStep("a", 1, 2, 1, ((2, 1),)))))
    await a.open()
    assert (await waiting).repaired == (Repaired(Outcome.CREATED, 2),)
    assert await b.events(FLOW) == whole


async def test_a_source_that_does_not_respond_is_reported_for_each_step(
    clusters: tuple[OneCluster, OneCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "REACH_S_MAX", 0.1)
    _, b = clusters
    b.addresses["a"] = "127.0.0.1:1"
    step = RepairStep("a", 1, 2, 1, ((2, 1),))
    (failed,) = (await b.repairs.pass_on(request("run", step))).repaired
    assert "failed (UNAVAILABLE" in failed.error
