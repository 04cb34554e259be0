"""The comparison finds each kind of difference: the tests plant one and look for it."""

import base64
import copy
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.compare import ABSENT, differences
from tests.sdk.known import KNOWN, Known
from tests.sdk.observe import without_suffix

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()

FIRST = "01a1e24d-e6e2-7cee-8255-fdb632cdd64d"
SECOND = "11a1e24d-e6e2-7cee-8255-fdb632cdd64d"
REQUEST = "21a1e24d-e6e2-7cee-8255-fdb632cdd64d"
OTHER = "31a1e24d-e6e2-7cee-8255-fdb632cdd64d"


def _seen(*, second: str = SECOND, request: str = REQUEST, time: str = "2026-01-01T00:00:00.5Z") -> dict[str, Any]:
    payload = {
        "metadata": {"encoding": base64.b64encode(b"json/plain").decode()},
        "data": base64.b64encode(b'{"text": "x"}').decode(),
    }
    started = {
        "eventId": "1",
        "eventTime": time,
        "taskId": "77",
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED",
        "workflowExecutionStartedEventAttributes": {
            "input": {"payloads": [payload]},
            "originalExecutionRunId": FIRST,
            "requestId": request,
        },
    }
    closed = {
        "eventId": "2",
        "eventTime": time,
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        "workflowExecutionContinuedAsNewEventAttributes": {"newExecutionRunId": second},
    }
    return {
        "outcome": "done",
        "notes": [{"label": "echo", "value": {"requestId": request}}],
        "visibility": {"completed": 2},
        "runs": [
            {
                "workflow_id": "program/main",
                "run_id": run_id,
                "events": copy.deepcopy([started, closed]),
                "description": {"workflowExecutionInfo": {"closeTime": time, "historySizeBytes": "9"}},
            }
            for run_id in (FIRST, second)
        ],
    }


def _attributes(seen: dict[str, Any], event: int) -> dict[str, Any]:
    attributes = next(
        value for name, value in seen["runs"][0]["events"][event].items() if name.endswith("EventAttributes")
    )
    assert isinstance(attributes, dict)
    return attributes


def test_ids_times_and_sizes_may_differ() -> None:
    ours = _seen(second=OTHER, request="91a1e24d-e6e2-7cee-8255-fdb632cdd64d", time="2027-01-01T00:00:00Z")
    ours["runs"][0]["events"][0]["taskId"] = "1"
    ours["runs"][0]["description"]["workflowExecutionInfo"]["historySizeBytes"] = "10"
    assert differences("program", _seen(), ours) == []


def test_an_id_that_stands_for_another_run_is_found() -> None:
    ours = _seen()
    _attributes(ours, 1)["newExecutionRunId"] = FIRST
    (found,) = differences("program", _seen(), ours)
    assert (found.where, found.reference, found.ours) == (
        "run 1 (main) event 2 WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
        "<run 2>",
        "<run 1>",
    )


def test_an_id_that_differs_from_its_first_occurrence_is_found() -> None:
    ours = _seen()
    ours["notes"][0]["value"]["requestId"] = OTHER
    (found,) = differences("program", _seen(), ours)
    assert found.where == "note 'echo'"


def test_a_missing_time_is_found() -> None:
    ours = _seen()
    del ours["runs"][0]["description"]["workflowExecutionInfo"]["closeTime"]
    (found,) = differences("program", _seen(), ours)
    assert (found.path, found.reference, found.ours) == ("workflowExecutionInfo.closeTime", "<time>", ABSENT)


def test_an_unset_time_differs_from_a_time() -> None:
    ours = _seen()
    ours["runs"][0]["description"]["workflowExecutionInfo"]["closeTime"] = "1970-01-01T00:00:00Z"
    (found,) = differences("program", _seen(), ours)
    assert (found.reference, found.ours) == ("<time>", "1970-01-01T00:00:00Z")


def test_the_start_of_another_run_is_found() -> None:
    reference, ours = _seen(), _seen()
    for seen, start in ((reference, "2026-01-01T00:00:00.5Z"), (ours, "2026-01-01T00:00:00.6Z")):
        seen["runs"][1]["description"]["workflowExtendedInfo"] = {"originalStartTime": start}
    (found,) = differences("program", reference, ours)
    assert (found.reference, found.ours) == ("<the start of run 1>", "<the start of no run>")


def test_a_missing_size_is_found() -> None:
    ours = _seen()
    del ours["runs"][0]["description"]["workflowExecutionInfo"]["historySizeBytes"]
    (found,) = differences("program", _seen(), ours)
    assert found.ours is ABSENT


def test_the_contents_of_payloads_are_compared_and_shown() -> None:
    ours = _seen()
    _attributes(ours, 0)["input"]["payloads"][0]["data"] = base64.b64encode(b'{"text": "y"}').decode()
    (found,) = differences("program", _seen(), ours)
    assert (found.reference, found.ours) == ("x", "y")


def test_differences_of_event_types_are_reported_from_the_first_one() -> None:
    ours = _seen()
    ours["runs"][0]["events"][1]["eventType"] = "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED"
    (found,) = differences("program", _seen(), ours)
    assert found.where == "run 1 (main) types from event 2"
    assert "-WORKFLOW_EXECUTION_CONTINUED_AS_NEW" in str(found)
    assert "+WORKFLOW_EXECUTION_COMPLETED" in str(found)


def test_an_event_too_many_is_found() -> None:
    ours = _seen()
    ours["runs"][0]["events"].append({"eventId": "3", "eventType": "EVENT_TYPE_TIMER_FIRED"})
    (found,) = differences("program", _seen(), ours)
    assert "+TIMER_FIRED" in str(found)


def test_a_run_too_few_is_found() -> None:
    ours = _seen()
    ours["runs"].pop()
    assert "the runs that there are" in [each.where for each in differences("program", _seen(), ours)]


def test_another_outcome_note_or_count_is_found() -> None:
    changes: list[dict[str, Any]] = [
        {"outcome": "failed"},
        {"notes": []},
        {"visibility": {"completed": 1}},
        {"unreadable": "x"},
    ]
    for change in changes:
        assert differences("program", _seen(), _seen() | change)


def test_true_is_not_one() -> None:
    assert differences("program", _seen() | {"outcome": 1}, _seen() | {"outcome": True})


def test_a_run_id_that_does_not_sort_by_time_is_found_where_the_references_does() -> None:
    reference, ours = _seen(), _seen()
    reference["runs"][0]["run_id"] = "01a1ebaa-f167-7a5b-a5b6-fec9e67bdcf2"
    ours["runs"][0]["run_id"] = "11a1ebaa-f167-4a5b-a5b6-fec9e67bdcf2"
    found = differences("program", reference, ours)
    assert [(each.where, each.reference, each.ours) for each in found] == [
        ("run 1 (main) UUID version of the run id", 7, 4)
    ]


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.place)
def test_every_intended_difference_is_documented(known: Known) -> None:
    assert known.documented in PAGE.partition("## Differences")[2]


def test_a_repeated_program_has_the_names_of_the_first_try() -> None:
    repeated = {"workflow": "program~again0/main", "deployment": "program-again0:one"}
    assert without_suffix(repeated, "~again0") == {"workflow": "program/main", "deployment": "program:one"}
