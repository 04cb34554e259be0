"""Failures and errors that Nexus handlers return instead of a result."""

import json

import pytest
from temporalio.api.failure.v1 import ApplicationFailureInfo, CanceledFailureInfo, Failure
from temporalio.api.nexus.v1 import Failure as NexusFailure
from temporalio.api.nexus.v1 import HandlerError

from fairlead.api.nexus_failures import are_details_json
from fairlead.history.state.nexus_failures import from_handler_error, from_nexus, handler_failure, is_retryable

TEMPORAL = {"type": "temporal.api.failure.v1.Failure"}


@pytest.mark.parametrize(
    ("error_type", "retryable"),
    [
        ("BAD_REQUEST", False),
        ("UNAUTHENTICATED", False),
        ("UNAUTHORIZED", False),
        ("NOT_FOUND", False),
        ("CONFLICT", False),
        ("NOT_IMPLEMENTED", False),
        ("RESOURCE_EXHAUSTED", True),
        ("INTERNAL", True),
        ("UNAVAILABLE", True),
        ("UPSTREAM_TIMEOUT", True),
        ("SOMETHING_NEW", True),
    ],
)
def test_the_type_of_an_error_decides_whether_it_is_retryable(error_type: str, retryable: bool) -> None:
    assert is_retryable(handler_failure(error_type, "")) is retryable


@pytest.mark.parametrize(("error_type", "behavior", "retryable"), [("INTERNAL", 2, False), ("BAD_REQUEST", 1, True)])
def test_a_handler_may_override_whether_its_error_is_retryable(error_type: str, behavior: int, retryable: bool) -> None:
    error = HandlerError(error_type=error_type, retry_behavior=behavior)  # type: ignore[arg-type]
    assert is_retryable(from_handler_error(error)) is retryable


def test_a_temporal_failure_is_decoded_as_it_was_encoded() -> None:
    details = json.dumps({"applicationFailureInfo": {"type": "Mine", "nonRetryable": True}}).encode()
    failure = from_nexus(NexusFailure(message="m", metadata=TEMPORAL, details=details))
    assert failure == Failure(
        message="m", application_failure_info=ApplicationFailureInfo(type="Mine", non_retryable=True)
    )


def test_details_that_are_no_failure_are_kept_as_they_are() -> None:
    failure = from_nexus(NexusFailure(message="m", metadata=TEMPORAL, details=b"[1]"))
    assert json.loads(failure.application_failure_info.details.payloads[0].data)["details"] == [1]


def test_any_other_failure_becomes_an_application_failure_with_its_content() -> None:
    failure = from_nexus(NexusFailure(message="m", metadata={"a": "b"}, details=b'{"x":1}'))
    assert failure.application_failure_info.type == "NexusFailure"
    (payload,) = failure.application_failure_info.details.payloads
    assert payload.data == b'{"metadata":{"a":"b"},"details":{"x":1}}'


def test_a_cancellation_and_causes_are_kept() -> None:
    failure = from_nexus(NexusFailure(message="m", cause=NexusFailure(message="c")), is_canceled=True)
    assert failure == Failure(message="m", canceled_failure_info=CanceledFailureInfo(), cause=Failure(message="c"))


def test_details_must_be_json() -> None:
    assert are_details_json(NexusFailure())
    assert are_details_json(NexusFailure(details=b"1"))
    assert not are_details_json(NexusFailure(details=b"{bad"))
    assert not are_details_json(NexusFailure(details=b"\xff"))
