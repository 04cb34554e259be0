"""Bad requests are answered as the reference server answers them; see `record_refusals`."""

import json

import pytest
from google.protobuf.message import Message

from fairlead.frontend.errors import status_of
from fairlead.history.refusals import Refused
from tests.frontend.bad_requests import RECORDED, all_requests, method_of
from tests.frontend.handlers import METHODS, set_up

REQUESTS = dict(all_requests())
ANSWERS: dict[str, list[object] | None] = json.loads(RECORDED.read_text())
# The workers are kept by the frontend itself: it passes nothing on.
HERE = tuple(name for name in METHODS if "Worker" in name)
MALFORMED = "malformed query: syntax error at position "
# What is not as in the reference server, and what is answered instead; None: it is passed on.
DIFFERENCES: dict[str, tuple[int, str] | None] = {
    # There, an unknown number is an internal error, or is used as it is.
    "StartWorkflowExecution: unknown reuse policy": (3, "Invalid WorkflowIDReusePolicy: 99 is not known."),
    "SignalWithStartWorkflowExecution: unknown reuse policy": (3, "Invalid WorkflowIDReusePolicy: 99 is not known."),
    "StartWorkflowExecution: unknown conflict policy": (3, "Invalid WorkflowIDConflictPolicy: 99 is not known."),
    "SignalWithStartWorkflowExecution: unknown conflict policy": (
        3,
        "Invalid WorkflowIDConflictPolicy: 99 is not known.",
    ),
    "ResetWorkflowExecution: unknown reapply type": (3, "unknown reset reapply type: 9"),
    # The size of one transaction there; here, it has no such bound.
    "SignalWithStartWorkflowExecution: large header": None,
    # Refused by the run that there was, or by history.
    "ResetWorkflowExecution: negative event id": None,
    "QueryWorkflow: long type": None,
    "QueryWorkflow: unknown condition": None,
    "GetWorkflowExecutionHistory: bad token": None,
    "GetWorkflowExecutionHistoryReverse: bad token": None,
    # An override is looked at before the run is.
    "UpdateWorkflowExecutionOptions: override": (
        3,
        "must provide deployment (deprecated) or pinned version if behavior is 'PINNED'",
    ),
    # There, these find nobody, or without workers are not looked at.
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
    """Handlers fill in what is open: no test sees what another has filled in."""
    copy = type(request)()
    copy.CopyFrom(request)
    return copy


@pytest.mark.parametrize("name", [name for name in REQUESTS if expected(name) is not None])
async def test_a_bad_request_is_refused_as_by_the_reference_server(name: str) -> None:
    setup = await set_up()

    with pytest.raises(Refused) as refusal:
        await setup.ask(copied(REQUESTS[name]))

    status = status_of(refusal.value)
    assert (int(status.code), status.message) == expected(name)
    assert not setup.history.passed
    assert not setup.matching.polls


@pytest.mark.parametrize("name", [name for name in REQUESTS if expected(name) is None])
async def test_what_the_reference_server_takes_is_passed_on(name: str) -> None:
    setup = await set_up()
    request = copied(REQUESTS[name])

    await setup.ask(request)

    if method_of(request) not in HERE:
        assert len(setup.history.passed) + len(setup.matching.polls) == 1


def test_every_method_has_a_bad_request_and_every_answer_a_request() -> None:
    assert {method_of(request) for request in REQUESTS.values()} == set(METHODS)
    assert set(ANSWERS) == set(REQUESTS)
    assert set(DIFFERENCES) <= set(REQUESTS)
