"""Links in Nexus requests: URLs of events, standalone operations and activities."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.nexus.v1 import Link as NexusLink

LINKS_MAX = 10
_WORKFLOW_EVENT = Link.WorkflowEvent.DESCRIPTOR.full_name
_OPERATION = Link.NexusOperation.DESCRIPTOR.full_name
_PATH = re.compile(r"^/namespaces/([^/]+)/workflows/([^/]+)/([^/]+)/history$")


class _Kind(NamedTuple):
    """A kind of link that does not lead to an event: its field in `Link`, the field with its id, and its URL path."""

    variant: str
    id_field: str
    path: re.Pattern[str]


_OTHERS = {
    _OPERATION: _Kind(
        "nexus_operation",
        "operation_id",
        re.compile(r"^/namespaces/([^/]+)/nexus-operations/([^/]+)/([^/]*)/details$"),
    ),
    Link.Activity.DESCRIPTOR.full_name: _Kind(
        "activity", "activity_id", re.compile(r"^/namespaces/([^/]+)/activities/([^/]+)/([^/]+)/details$")
    ),
}
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


def signal_link(*, namespace: str, workflow_id: str, run_id: str, request_id: str) -> Link:
    """A link to a signal by its request id: the signal's event may still be buffered and without an id."""
    return request_link(
        namespace=namespace,
        workflow_id=workflow_id,
        run_id=run_id,
        request_id=request_id,
        event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    )


def request_link(*, namespace: str, workflow_id: str, run_id: str, request_id: str, event_type: int) -> Link:
    """A link to an event by the id of the request that caused it."""
    link = Link()
    link.workflow_event.namespace = namespace
    link.workflow_event.workflow_id = workflow_id
    link.workflow_event.run_id = run_id
    link.workflow_event.request_id_ref.request_id = request_id
    link.workflow_event.request_id_ref.event_type = EventType.ValueType(event_type)
    return link


def operation_link(*, namespace: str, operation_id: str, run_id: str) -> Link:
    """A link to a standalone Nexus operation."""
    link = Link()
    link.nexus_operation.namespace = namespace
    link.nexus_operation.operation_id = operation_id
    link.nexus_operation.run_id = run_id
    return link


def activity_link(*, namespace: str, activity_id: str, run_id: str) -> Link:
    """A link to a standalone activity."""
    link = Link()
    link.activity.namespace = namespace
    link.activity.activity_id = activity_id
    link.activity.run_id = run_id
    return link


def to_nexus(link: Link) -> NexusLink:
    """A link to an event or to a standalone operation, in the form that handlers get."""
    if link.HasField("nexus_operation"):
        operation = link.nexus_operation
        path = _joined(operation.namespace, "nexus-operations", operation.operation_id, operation.run_id)
        return NexusLink(url=f"temporal:///namespaces/{path}/details", type=_OPERATION)
    event = link.workflow_event
    reference = event.event_ref
    query = urlencode(
        {
            "eventID": reference.event_id,
            "eventType": _NAMES.get(reference.event_type, ""),
            "referenceType": _BY_EVENT,
        }
    )
    path = _joined(event.namespace, "workflows", event.workflow_id, event.run_id)
    return NexusLink(url=f"temporal:///namespaces/{path}/history?{query}", type=_WORKFLOW_EVENT)


def _joined(*parts: str) -> str:
    return "/".join(quote(part, safe="") for part in parts)


def from_nexus(links: Iterable[NexusLink]) -> list[Link]:
    """The links of a handler's response; unknown links are dropped."""
    found = [link for each in links if (link := _parsed(each)) is not None]
    return found[:LINKS_MAX]


def _parsed(wanted: NexusLink) -> Link | None:
    try:
        parts = urlsplit(wanted.url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        return None
    if parts.scheme != "temporal":
        return None
    if wanted.type == _WORKFLOW_EVENT:
        return _event(parts.path, query)
    kind = _OTHERS.get(wanted.type)
    path = None if kind is None else kind.path.match(parts.path)
    if kind is None or path is None:
        return None
    link = Link()
    for field, part in zip(("namespace", kind.id_field, "run_id"), path.groups(), strict=True):
        setattr(getattr(link, kind.variant), field, unquote(part))
    return link


def _event(address: str, query: Mapping[str, str]) -> Link | None:
    path = _PATH.match(address)
    event_type = _event_type(query.get("eventType", ""))
    if path is None or event_type is None:
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
