"""Compares two servers' results of a program, field by field, except for values that differ in every run."""

import base64
import binascii
import contextlib
import difflib
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass

# Internal counters that depend on how a server stores its data.
_UNCOMPARED = frozenset({"taskId", "version"})
_LOOSE = frozenset(
    {
        # For these fields only presence is compared, not the value.
        "historySizeBytes",
        "stateTransitionCount",
        "executionDuration",
        # These times depend on how long the program ran.
        "complete_time",
        "original_schedule_time",
        # A timer's duration less the real time since its start.
        "initialSkippedDuration",
        # Each server encodes its own reference to an operation here.
        "temporal-callback-token",
    }
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
# Servers send these values for a time that is not set.
_NO_TIME = frozenset({"0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z"})
# The SDK's operation tokens are encoded JSON that may hold a run id.
_TOKEN = re.compile(r"^eyJ0Ijo[A-Za-z0-9_-]+$")
_STICKY = re.compile(r"^[^ ]+-[0-9a-f]{32}$")
# Payload data holds the programs' own values, which may include times.
_DATA = ".payload data"
_PAYLOAD_FIELDS = {"metadata", "data", "externalPayloads"}
_SORTED_UUID = 7
# From this attempt on, the timeout of a workflow task is lengthened by a random part.
_BACKOFF_ATTEMPT_MIN = 4
_SHOWN_MAX = 400


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the servers differ."""

    program: str
    where: str
    path: str
    reference: Any
    ours: Any

    def __str__(self) -> str:
        place = f"{self.program}: {self.where}" + (f" at {self.path}" if self.path else "")
        return f"{place}\n    reference: {_shown(self.reference)}\n    ours:      {_shown(self.ours)}"


@dataclass(frozen=True, slots=True)
class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


class _Names:
    """Stable names for ids: a run is named by its position, any other id by the place where it was first seen."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self._names: dict[str, str] = {}
        self._starts: dict[str, str] = {}
        for number, run in enumerate(runs, start=1):
            self._names.setdefault(run["run_id"], f"<run {number}>")
            # A reset run begins with copies of the original run's events: if two runs have the same start time, name it
            # after the first one.
            if run["events"]:
                self._starts.setdefault(run["events"][0]["eventTime"], f"<the start of run {number}>")

    def text(self, text: str, path: str) -> str:
        if _TOKEN.match(text):
            text = f"token {_decoded(text.replace('-', '+').replace('_', '/') + '=' * (-len(text) % 4))}"
        named = _UUID.sub(lambda found: self._name(found[0], path), text)
        if path.endswith(".originalStartTime"):
            return self._starts.get(text, "<the start of no run>")
        if _DATA not in path:
            named = _TIME.sub(lambda found: found[0] if found[0] in _NO_TIME else "<time>", named)
        return "<sticky queue>" if _STICKY.match(text) else named

    def _name(self, found: str, path: str) -> str:
        return self._names.setdefault(found, f"<id first seen at {path}>")


def normalised(seen: dict[str, Any]) -> dict[str, Any]:
    """The results of a program with stable names for ids, times as `<time>` and payloads decoded."""
    runs = seen.get("runs", [])
    names = _Names(runs)
    plain: dict[str, Any] = {"unreadable": _plain(seen.get("unreadable"), names, "unreadable")}
    plain["runs"] = []
    for number, run in enumerate(runs, start=1):
        events = [_event(_plain(event, names, f"run {number} event {event.get('eventId')}")) for event in run["events"]]
        description = _plain(run["description"], names, f"description {number}")
        plain["runs"].append(
            {
                "workflow": run["workflow_id"],
                "events": events,
                "description": description,
                "id version": uuid.UUID(run["run_id"]).version,
            }
        )
    for key in ("outcome", "notes", "visibility"):
        plain[key] = _plain(seen.get(key), names, key)
    return plain


def _event(event: dict[str, Any]) -> dict[str, Any]:
    task = event.get("workflowTaskStartedEventAttributes")
    if task and "requestId" in task:
        # The request id shows whether the task came with the response to the previous task, which is a race.
        task["requestId"] = "<request id>"
    scheduled = event.get("workflowTaskScheduledEventAttributes")
    if scheduled and scheduled.get("attempt", 1) >= _BACKOFF_ATTEMPT_MIN:
        scheduled["startToCloseTimeout"] = "<lengthened>"
    started = event.get("workflowExecutionStartedEventAttributes")
    if started and started.get("cronSchedule"):
        # The time until the next full second of the schedule.
        started["firstWorkflowTaskBackoff"] = "<until the next time>"
    elif started and "initiator" in started and started.get("firstWorkflowTaskBackoff", "0.") < "1":
        # Runs of one workflow start at least a second apart, so the next run waits for the rest of that second. The
        # wait depends on the duration of the run before, and so on the machine's load.
        started["firstWorkflowTaskBackoff"] = "<less than a second>"
    return event


def _plain(value: Any, names: _Names, path: str) -> Any:
    if isinstance(value, dict):
        if "metadata" in value and value.keys() <= _PAYLOAD_FIELDS:
            return _payload(value, names, path)
        return {
            names.text(key, path): "<loose>" if key in _LOOSE else _plain(item, names, f"{path}.{key}")
            for key, item in sorted(value.items())
            if key not in _UNCOMPARED
        }
    if isinstance(value, list):
        if path.endswith("UsedFlags"):
            # The SDK sends these values from a set, in any order.
            return sorted(value)
        if path.endswith(".pendingActivities"):
            # The server lists pending activities in the order of a hash table.
            value = sorted(value, key=lambda pending: str(pending["activityId"]))
        items = [_plain(item, names, f"{path}[{number}]") for number, item in enumerate(value)]
        # The reference server lists callbacks in any order.
        return sorted(items, key=repr) if path.endswith(".callbacks") else items
    if isinstance(value, str):
        return names.text(value, path)
    return value


def _payload(payload: dict[str, Any], names: _Names, path: str) -> dict[str, Any]:
    """Decode a payload, so that differences are readable and ids inside it get stable names too."""
    metadata = {key: _decoded(value) for key, value in payload["metadata"].items()}
    data: Any = _decoded(payload.get("data", ""))
    if metadata.get("encoding", "").startswith("json"):
        with contextlib.suppress(ValueError):
            data = json.loads(data)
    elif metadata.get("encoding") == "binary/protobuf":
        data = _message(metadata.get("messageType", ""), payload.get("data", ""))
    return {"metadata": metadata, "data": _plain(data, names, f"{path}{_DATA}"), "of a payload": True}


def _message(name: str, data: str) -> Any:
    kind = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
    return MessageToDict(kind.FromString(base64.b64decode(data)))


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return text


def differences(program: str, reference: dict[str, Any], ours: dict[str, Any]) -> list[Difference]:
    """The differences in the order of the program: first those of the runs, then those of the clients' responses."""
    left, right = normalised(reference), normalised(ours)
    found = list(_of_values(program, "reading the runs", left["unreadable"], right["unreadable"]))
    names = [[run["workflow"] for run in side["runs"]] for side in (left, right)]
    if names[0] != names[1]:
        found.append(Difference(program, "the runs that there are", "", names[0], names[1]))
    for number, (one, other) in enumerate(zip(left["runs"], right["runs"], strict=False), start=1):
        where = f"run {number} ({one['workflow'].partition('/')[2]})"
        found += _of_histories(program, where, one["events"], other["events"])
        is_closed = "closeTime" in one["description"].get("workflowExecutionInfo", {})
        described = "closed description" if is_closed else "description"
        found += _of_values(program, f"{where} {described}", one["description"], other["description"])
        # Fairlead's run ids are always of UUID version 7; the reference's are of other versions in some places.
        if one["id version"] == _SORTED_UUID and other["id version"] != _SORTED_UUID:
            found.append(
                Difference(program, f"{where} UUID version of the run id", "", _SORTED_UUID, other["id version"])
            )
    found += _of_values(program, "outcome", left["outcome"], right["outcome"])
    found += _of_notes(program, left["notes"] or [], right["notes"] or [])
    found += _of_values(program, "visibility", left["visibility"], right["visibility"])
    return found


def _of_histories(
    program: str, where: str, left: list[dict[str, Any]], right: list[dict[str, Any]]
) -> Iterator[Difference]:
    """Compare field by field up to the first event whose type differs, and there only the types."""
    types = [[_short(event["eventType"]) for event in side] for side in (left, right)]
    same = next(
        (number for number, (one, other) in enumerate(zip(*types, strict=False)) if one != other),
        min(len(left), len(right)),
    )
    for number in range(same):
        place = f"{where} event {number + 1} {types[0][number]}"
        yield from _of_values(program, place, left[number], right[number])
    if types[0] != types[1]:
        listing = "\n".join(
            difflib.unified_diff(types[0][same:], types[1][same:], "reference", "ours", lineterm="", n=3)
        )
        yield Difference(program, f"{where} types from event {same + 1}", "", "", f"\n{listing}")


def _of_notes(program: str, left: list[dict[str, Any]], right: list[dict[str, Any]]) -> Iterator[Difference]:
    labels = [[note["label"] for note in side] for side in (left, right)]
    if labels[0] != labels[1]:
        yield Difference(program, "what the client noted", "", labels[0], labels[1])
    for one, other in zip(left, right, strict=False):
        if one["label"] == other["label"]:
            yield from _of_values(program, f"note '{one['label']}'", one["value"], other["value"])


def _of_values(program: str, where: str, left: Any, right: Any, path: str = "") -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _of_values(program, where, left.get(key, ABSENT), right.get(key, ABSENT), inner)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _of_values(program, where, one, other, f"{path}[{number}]")
    elif left != right or type(left) is not type(right):
        yield Difference(program, where, path, left, right)


def _short(event_type: str) -> str:
    return event_type.removeprefix("EVENT_TYPE_")


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value.startswith("\n") else repr(value)
    return text if len(text) <= _SHOWN_MAX or text.startswith("\n") else f"{text[:_SHOWN_MAX]}..."
