"""Links between events as they cross Nexus: addresses of events, each with its type."""

import re
from collections.abc import Iterable
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import Link as NexusLink

LINKS_MAX = 10
_WORKFLOW_EVENT = Link.WorkflowEvent.DESCRIPTOR.full_name
_PATH = re.compile(r"^/namespaces/([^/]+)/workflows/([^/]+)/([^/]+)/history$")
_BY_EVENT = "EventReference"
_BY_REQUEST = "RequestIdReference"


def _names() -> dict[int, str]:
    return {
        number: "".join(word.capitalize() for word in name.removeprefix("EVENT_TYPE_").split("_"))
        for name, number in EventType.items()
    }


_NAMES = _names()
_NUMBERS = {name: number for number, name in _NAMES.items()}


def event_link(*, namespace: str, workflow_id: str, run_id: str, event_id: int, event_type: int) -> Link:
    """A link to an event."""
    link = Link()
    link.workflow_event.namespace = namespace
    link.workflow_event.workflow_id = workflow_id
    link.workflow_event.run_id = run_id
    link.workflow_event.event_ref.event_id = event_id
    link.workflow_event.event_ref.event_type = EventType.ValueType(event_type)
    return link


def to_nexus(link: Link) -> NexusLink:
    """A link to an event as handlers get it."""
    event = link.workflow_event
    reference = event.event_ref
    query = urlencode(
        {
            "eventID": reference.event_id,
            "eventType": _NAMES.get(reference.event_type, ""),
            "referenceType": _BY_EVENT,
        }
    )
    path = "/".join(quote(part, safe="") for part in (event.namespace, "workflows", event.workflow_id, event.run_id))
    return NexusLink(url=f"temporal:///namespaces/{path}/history?{query}", type=_WORKFLOW_EVENT)


def from_nexus(links: Iterable[NexusLink]) -> list[Link]:
    """The links that a handler answered with; those that lead to nothing that is known here are left out."""
    found = [link for each in links if (link := _parsed(each)) is not None]
    return found[:LINKS_MAX]


def _parsed(wanted: NexusLink) -> Link | None:
    if wanted.type != _WORKFLOW_EVENT:
        return None
    try:
        parts = urlsplit(wanted.url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        return None
    path = _PATH.match(parts.path)
    event_type = _event_type(query.get("eventType", ""))
    if parts.scheme != "temporal" or path is None or event_type is None:
        return None
    link = Link()
    event = link.workflow_event
    event.namespace, event.workflow_id, event.run_id = (unquote(part) for part in path.groups())
    if query.get("referenceType") == _BY_REQUEST:
        event.request_id_ref.request_id = query.get("requestID", "")
        event.request_id_ref.event_type = event_type
    elif query.get("referenceType") == _BY_EVENT:
        event_id = query.get("eventID", "0")
        event.event_ref.event_id = int(event_id) if event_id.isascii() and event_id.isdigit() else 0
        event.event_ref.event_type = event_type
    else:
        return None
    return link


def _event_type(name: str) -> EventType.ValueType | None:
    number = _NUMBERS.get(name)
    if number is None and name.startswith("EVENT_TYPE_") and name in EventType.keys():  # noqa: SIM118 - no mapping
        number = EventType.Value(name)
    return None if number is None else EventType.ValueType(number)
