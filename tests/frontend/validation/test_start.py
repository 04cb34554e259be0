"""Bad requests are answered as the reference server answers them; see `record_api_errors`."""

import json

import pytest
from google.protobuf.message import Message

from fairlead.api.errors import ApiError
from fairlead.api.status import status_of
from tests.frontend.bad_requests import RECORDED, all_requests, method_of
from tests.frontend.setup import METHODS, set_up

REQUESTS = dict(all_requests())
ANSWERS: dict[str, list[object] | None] = json.loads(RECORDED.read_text())
# Requests about workers: the frontend serves them itself, and passes nothing on.
HERE = tuple(name for name in METHODS if "Worker" in name)
MALFORMED = "malformed query: syntax error at position "
# Intended differences from the reference server, with our error; None: our frontend accepts the request.
DIFFERENCES: dict[str, tuple[int, str] | None] = {
    # The reference server fails with an internal error on an unknown number, or uses it unchanged.
    "StartWorkflowExecution: unknown reuse policy": (3, "Invalid WorkflowIDReusePolicy: 99 is not known."),
    "SignalWithStartWorkflowExecution: unknown reuse policy": (3, "Invalid WorkflowIDReusePolicy: 99 is not known."),
    "StartWorkflowExecution: unknown conflict policy": (3, "Invalid WorkflowIDConflictPolicy: 99 is not known."),
    "SignalWithStartWorkflowExecution: unknown conflict policy": (
        3,
        "Invalid WorkflowIDConflictPolicy: 99 is not known.",
    ),
    "ResetWorkflowExecution: unknown reapply type": (3, "unknown reset reapply type: 9"),
    # The reference server bounds the size of one transaction; Fairlead has no such bound.
    "SignalWithStartWorkflowExecution: large header": None,
    # Refused by the existing run, or by the history service.
    "ResetWorkflowExecution: negative event id": None,
    "QueryWorkflow: long type": None,
    "QueryWorkflow: unknown condition": None,
    "GetWorkflowExecutionHistory: bad token": None,
    "GetWorkflowExecutionHistoryReverse: bad token": None,
    # Fairlead validates an override before it reads the run.
    "UpdateWorkflowExecutionOptions: override": (
        3,
        "must provide deployment (deprecated) or pinned version if behavior is 'PINNED'",
    ),
    # The reference server finds no such workers, or ignores these fields if there are no workers.
    "ListWorkers: query with IN": (3, MALFORMED + "40 near 'IN'"),
    "ListWorkers: query with LIKE": (3, MALFORMED + "42 near 'LIKE'"),
    "ListWorkers: query with NOT": (3, MALFORMED + "41 near 'TaskQueue'"),
    "ListWorkers: query with BETWEEN": (3, MALFORMED + "45 near 'BETWEEN'"),
    "ListWorkers: query with an order": (3, MALFORMED + "49 near 'ORDER'"),
    "ListWorkers: bad token": (3, "invalid next_page_token"),
}


def expected(name: str) -> tuple[int, str] | None:
    if name in DIFFERENCES:
        return DIFFERENCES[name]
    answer = ANSWERS[name]
    return None if answer is None else (int(str(answer[0])), str(answer[1]))


def copied(request: Message) -> Message:
    """A deep copy: handlers fill in defaults, which other tests must not see."""
    copy = type(request)()
    copy.CopyFrom(request)
    return copy


@pytest.mark.parametrize("name", [name for name in REQUESTS if expected(name) is not None])
async def test_an_invalid_request_gets_the_error_of_the_reference_server(name: str) -> None:
    setup = await set_up()

    with pytest.raises(ApiError) as raised:
        await setup.ask(copied(REQUESTS[name]))

    status = status_of(raised.value)
    assert (int(status.code), status.message) == expected(name)
    assert not setup.history.passed
    assert not setup.matching.polls


@pytest.mark.parametrize("name", [name for name in REQUESTS if expected(name) is None])
async def test_a_request_that_the_reference_server_accepts_is_passed_on(name: str) -> None:
    setup = await set_up()
    request = copied(REQUESTS[name])

    await setup.ask(request)

    if method_of(request) not in HERE:
        assert len(setup.history.passed) + len(setup.matching.polls) == 1


def test_every_method_has_an_invalid_request_and_every_recorded_error_has_its_request() -> None:
    assert {method_of(request) for request in REQUESTS.values()} == set(METHODS)
    assert set(ANSWERS) == set(REQUESTS)
    assert set(DIFFERENCES) <= set(REQUESTS)
