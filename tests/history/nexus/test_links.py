"""Links to events, as they cross Nexus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import Link as NexusLink

from fairlead.api.links import LINKS_MAX, event_link, from_nexus, operation_link, to_nexus

TYPE = "temporal.api.common.v1.Link.WorkflowEvent"
BASE = "temporal:///namespaces/n/workflows/w/r/history"

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(namespace=names, workflow_id=names, event_id=st.integers(1, 2**31))
def test_a_link_is_decoded_as_it_was_encoded(namespace: str, workflow_id: str, event_id: int) -> None:
    link = event_link(
        namespace=namespace,
        workflow_id=workflow_id,
        run_id="run",
        event_id=event_id,
        event_type=EventType.EVENT_TYPE_NEXUS_OPERATION_SCHEDULED,
    )
    assert from_nexus([to_nexus(link)]) == [link]


def test_a_link_by_a_request_is_kept() -> None:
    url = f"{BASE}?requestID=q&eventType=WorkflowExecutionOptionsUpdated&referenceType=RequestIdReference"
    (link,) = from_nexus([NexusLink(url=url, type=TYPE)])
    assert link.workflow_event.request_id_ref.request_id == "q"


@pytest.mark.parametrize(
    "link",
    [
        NexusLink(url=BASE, type=TYPE),
        NexusLink(url=f"{BASE}?eventType=WorkflowExecutionStarted&referenceType=EventReference", type="another"),
        NexusLink(url=f"http{BASE}?eventType=WorkflowExecutionStarted&referenceType=EventReference", type=TYPE),
        NexusLink(url=f"{BASE}?eventType=NoSuchEvent&referenceType=EventReference", type=TYPE),
        NexusLink(url=f"{BASE}?eventType=WorkflowExecutionStarted&referenceType=NoSuch", type=TYPE),
        NexusLink(url="temporal://[", type=TYPE),
    ],
)
def test_an_invalid_link_is_dropped(link: NexusLink) -> None:
    assert from_nexus([link]) == []


def test_links_above_the_limit_of_an_event_are_dropped() -> None:
    link = to_nexus(event_link(namespace="n", workflow_id="w", run_id="r", event_id=1, event_type=1))
    assert len(from_nexus([link] * (LINKS_MAX + 1))) == LINKS_MAX


def test_a_link_to_a_standalone_operation_crosses_nexus_unchanged() -> None:
    link = operation_link(namespace="a/b", operation_id="op 1/2", run_id="r")
    crossed = to_nexus(link)
    assert crossed.url == "temporal:///namespaces/a%2Fb/nexus-operations/op%201%2F2/r/details"
    assert from_nexus([crossed]) == [link]


def test_a_handlers_link_to_a_standalone_activity_is_kept() -> None:
    crossed = NexusLink(
        url="temporal:///namespaces/n/activities/a%2F1/r/details", type="temporal.api.common.v1.Link.Activity"
    )
    assert from_nexus([crossed]) == [Link(activity=Link.Activity(namespace="n", activity_id="a/1", run_id="r"))]
