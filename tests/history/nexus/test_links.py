"""Links to events, as they cross Nexus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import Link as NexusLink

from fairlead.history.nexus.links import LINKS_MAX, event_link, from_nexus, to_nexus

TYPE = "temporal.api.common.v1.Link.WorkflowEvent"
BASE = "temporal:///namespaces/n/workflows/w/r/history"

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(namespace=names, workflow_id=names, event_id=st.integers(1, 2**31))
def test_a_link_comes_back_as_it_was(namespace: str, workflow_id: str, event_id: int) -> None:
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
def test_a_link_that_leads_nowhere_is_left_out(link: NexusLink) -> None:
    assert from_nexus([link]) == []


def test_more_links_than_an_event_may_have_are_left_out() -> None:
    link = to_nexus(event_link(namespace="n", workflow_id="w", run_id="r", event_id=1, event_type=1))
    assert len(from_nexus([link] * (LINKS_MAX + 1))) == LINKS_MAX
