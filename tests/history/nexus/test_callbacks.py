"""Callbacks: their targets and their contents."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Callback, Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.history.v1 import WorkflowExecutionCanceledEventAttributes as Canceled
from temporalio.api.history.v1 import WorkflowExecutionCompletedEventAttributes as Completed
from temporalio.api.history.v1 import WorkflowExecutionFailedEventAttributes as Failed
from temporalio.api.history.v1 import WorkflowExecutionTerminatedEventAttributes as Terminated
from temporalio.api.history.v1 import WorkflowExecutionTimedOutEventAttributes as TimedOut

from fairlead.history.events.kinds import kind_of
from fairlead.history.nexus.callbacks import (
    NO_RESULT,
    TOKEN_HEADER,
    CallbackToken,
    encode_token,
    outcome_of,
    token_of,
)

TOKEN = CallbackToken("namespace", "workflow", "run", 5, "request")


def callback(header: str) -> Callback:
    return Callback(nexus=Callback.Nexus(url="temporal://system", header={TOKEN_HEADER: header}))


def test_a_token_leads_back_to_its_operation() -> None:
    assert token_of(callback(encode_token(TOKEN))) == TOKEN


@given(st.text())
def test_a_callback_token_of_another_issuer_is_refused(header: str) -> None:
    assert token_of(callback(header)) is None


def test_a_callback_without_a_token_leads_nowhere() -> None:
    assert token_of(Callback()) is None


@pytest.mark.parametrize(
    ("attributes", "result", "message"),
    [
        (Completed(result=Payloads(payloads=[Payload(data=b"1"), Payload(data=b"2")])), Payload(data=b"1"), None),
        (Completed(), NO_RESULT, None),
        (Failed(failure=Failure(message="why")), NO_RESULT, "why"),
        (Canceled(), NO_RESULT, "operation canceled"),
        (Terminated(), NO_RESULT, "operation terminated"),
        (TimedOut(), NO_RESULT, "operation exceeded internal timeout"),
    ],
)
def test_the_last_event_gives_the_result_of_the_operation(
    attributes: Message, result: Payload, message: str | None
) -> None:
    event = HistoryEvent(**{kind_of(attributes).field: attributes})  # type: ignore[arg-type]
    got, failure = outcome_of(event)
    assert got == result
    assert (None if failure is None else failure.message) == message
