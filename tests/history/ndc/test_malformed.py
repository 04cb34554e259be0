"""A batch that no cluster can have written is rejected with a typed error, and changes nothing."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from temporalio.api.history.v1 import History, WorkflowExecutionSignaledEventAttributes

from fairlead.core.versions import (
    ContradictingHistories,
    MalformedBatch,
    MalformedHistory,
    NoCommonAncestor,
    UnownedVersion,
)
from fairlead.history.messages.ndc import Outcome, ReplicatedBatch
from fairlead.history.ndc import incoming_batch
from fairlead.history.state.errors import EventCannotFollow
from tests.history.ndc.several import Cluster, Several, batch_of
from tests.virtual_time import on_virtual_time

FLOW = "flow-1"


def _changed(batch: ReplicatedBatch, change: Callable[[History], None], **fields: Any) -> ReplicatedBatch:
    history = History.FromString(batch.events)
    change(history)
    return msgspec.structs.replace(batch, events=history.SerializeToString(), **fields)


def _same(_history: History) -> None:
    pass


def _gap_inside(history: History) -> None:
    history.events[1].event_id += 1


def _mixed(history: History) -> None:
    history.events[1].version = 2


def _no_start(history: History) -> None:
    history.events[0].event_type = history.events[1].event_type


def _other_attributes(history: History) -> None:
    history.events[1].workflow_execution_signaled_event_attributes.CopyFrom(
        WorkflowExecutionSignaledEventAttributes(signal_name="x")
    )


def _unknown_type(history: History) -> None:
    history.events[1].event_type = 9_999  # type: ignore[assignment]


def _empty(history: History) -> None:
    del history.events[:]


def _other_workflow(history: History) -> None:
    history.events[0].workflow_execution_started_event_attributes.workflow_id = "other"


def _at(version: int) -> Callable[[History], None]:
    def change(history: History) -> None:
        for event in history.events:
            event.version = version

    return change


@pytest.mark.parametrize(
    ("change", "fields", "error"),
    [
        (_gap_inside, {}, MalformedBatch),
        (_mixed, {}, MalformedBatch),
        (_no_start, {}, MalformedBatch),
        (_other_attributes, {}, MalformedBatch),
        (_unknown_type, {}, MalformedBatch),
        (_empty, {}, MalformedBatch),
        (_other_workflow, {}, MalformedBatch),
        (_at(4), {"items": ((2, 4),)}, UnownedVersion),
        (_at(10), {"items": ((2, 10),)}, UnownedVersion),
        (_same, {"items": ((1, 1),)}, MalformedBatch),
        (_same, {"items": ((2, 2),)}, MalformedBatch),
        (_same, {"items": ()}, MalformedHistory),
        (_same, {"items": ((2, 2), (3, 1))}, MalformedHistory),
        (_same, {"run_id": ""}, MalformedBatch),
    ],
)
@on_virtual_time
async def test_a_batch_that_contradicts_itself_is_refused(
    change: Callable[[History], None], fields: dict[str, Any], error: type[Exception]
) -> None:
    async with Several(("a", "b")) as several:
        await several["a"].host.begin(FLOW)
        ((first,), _) = await several["a"].rows()
        with pytest.raises(error):
            await several["b"].apply(_changed(batch_of("a", first), change, **fields))
        assert several["b"].current(FLOW) is None
        assert (await several["b"].apply(batch_of("a", first))).outcome == Outcome.CREATED


async def _begun(several: Several) -> tuple[Cluster, ReplicatedBatch, ReplicatedBatch]:
    a, b = several["a"], several["b"]
    await a.host.begin(FLOW)
    await a.host.signal(FLOW, "one", "r1")
    first, second = [batch_of("a", row) for row in (await a.rows())[0]]
    await b.apply(first)
    return b, first, second


@pytest.mark.parametrize(
    ("items", "version", "error"),
    [
        # The first begins with another version; the second leaves our branch after event 1.
        (((2, 2), (3, 3)), 3, NoCommonAncestor),
        (((1, 1), (2, 2), (3, 11)), 11, None),
    ],
)
@on_virtual_time
async def test_a_branch_that_contradicts_the_local_ones_is_refused(
    items: tuple[tuple[int, int], ...], version: int, error: type[Exception] | None
) -> None:
    async with Several(("a", "b")) as several:
        b, _, second = await _begun(several)
        wrong = _changed(second, _at(version), items=items)
        if error is None:
            # Its branch leaves ours after event 1: the events in between have to be replicated first.
            answer = await b.apply(wrong)
            assert (answer.outcome, answer.missing_from, answer.missing_to) == (Outcome.GAP, 2, 3)
        else:
            with pytest.raises(error):
                await b.apply(wrong)
        assert b.branches(FLOW) == {((2, 1),)}
        assert (await b.apply(second)).outcome == Outcome.APPLIED


@on_virtual_time
async def test_a_branch_that_shares_a_version_after_its_fork_is_refused() -> None:
    async with Several(("a", "b")) as several:
        b, _, second = await _begun(several)
        await b.apply(second)
        await several.fail_over(2)
        await b.host.signal(FLOW, "two", "r2")
        wrong = _changed(second, _at(2), items=((2, 1), (3, 2)))
        with pytest.raises(ContradictingHistories):
            await b.apply(wrong)
        assert b.branches(FLOW) == {((3, 1), (4, 2))}


@on_virtual_time
async def test_impossible_events_are_refused_and_the_run_is_unchanged() -> None:
    async with Several(("a", "b")) as several:
        b, _, second = await _begun(several)

        def complete_nothing(history: History) -> None:
            event = history.events[0]
            event.event_type = 7  # type: ignore[assignment]
            event.workflow_task_completed_event_attributes.scheduled_event_id = 2
            event.workflow_task_completed_event_attributes.started_event_id = 9

        with pytest.raises(EventCannotFollow):
            await b.apply(_changed(second, complete_nothing))
        assert b.branches(FLOW) == {((2, 1),)}
        assert (await b.apply(second)).outcome == Outcome.APPLIED


@on_virtual_time
async def test_a_batch_larger_than_any_commit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Several(("a", "b")) as several:
        _, first, second = await _begun(several)
        for name, batch in (("BATCH_BYTES_MAX", first), ("BATCH_EVENTS_MAX", first), ("ITEMS_MAX", second)):
            with monkeypatch.context() as patched:
                patched.setattr(incoming_batch, name, 0)
                with pytest.raises(MalformedBatch, match="more than the limit of 0"):
                    await several["b"].apply(batch)
        with pytest.raises(MalformedBatch):
            await several["b"].apply(msgspec.structs.replace(first, events=b"\xff\xff"))
