"""A repair plan is read completely, or refused in one line that names the fault's position."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.replication.plans import UnreadablePlan, read_plan

SEND: dict[str, Any] = {
    "namespace_id": "n",
    "workflow_id": "w",
    "run_id": "r",
    "target": "a",
    "source": "b",
    "version": 12,
    "first_event_id": 4,
    "last_event_id": 6,
    "items": [{"event_id": 3, "version": 1}, {"event_id": 6, "version": 12}],
    "kind": "gap",
}
PLAN: dict[str, Any] = {"schema": 1, "now_us": 5, "grace_us": 0, "sends": [SEND], "by_hand": []}


def written(folder: Path, plan: object) -> Path:
    file = folder / "plan.json"
    file.write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return file


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    by_hand = {"namespace_id": "n", "workflow_id": "w", "run_id": "r", "kind": "zombie", "state": "wrong"}
    plan = read_plan(written(tmp_path, PLAN | {"by_hand": [by_hand]}))
    (send,) = plan.sends
    assert (send.pairs, send.events, send.kind) == (((3, 1), (6, 12)), 3, "gap")
    assert [each.kind for each in plan.by_hand] == ["zombie"]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("", "is not a plan"),
        ("{", "is not a plan"),
        ([], "is not a plan"),
        ({}, "is not a plan"),
        (PLAN | {"schema": 2}, "has schema 2, but this release reads schema 1: reconcile again"),
        (PLAN | {"sends": None}, r"sends"),
        (PLAN | {"sends": [{**SEND, "version": "12"}]}, r"sends\[0\].version"),
        (PLAN | {"sends": [SEND, {**SEND, "target": ""}]}, r"sends\[1\] has no target"),
        (PLAN | {"sends": [{**SEND, "source": "a"}]}, r"sends\[0\] has the same target and source, 'a'"),
        (PLAN | {"sends": [{**SEND, "items": []}]}, r"sends\[0\]: a version history has no items"),
        (PLAN | {"sends": [{**SEND, "version": 1}]}, r"sends\[0\]: a batch of events 4 to 6 at version 1"),
        (PLAN | {"sends": [{**SEND, "first_event_id": 3}]}, r"sends\[0\]: a batch of events 3 to 6"),
        (PLAN | {"sends": [{**SEND, "first_event_id": 7}]}, r"sends\[0\]: a batch of events 7 to 6 is empty"),
        (PLAN | {"sends": [{**SEND, "last_event_id": 7}]}, r"came with a history that ends at event 6"),
    ],
)
def test_an_invalid_plan_is_refused(tmp_path: Path, plan: object, words: str) -> None:
    with pytest.raises(UnreadablePlan, match=words) as raised:
        read_plan(written(tmp_path, plan))
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UnreadablePlan, match="can't be read: No such file"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UnreadablePlan, match="can't be read: Is a directory"):
        read_plan(tmp_path)
