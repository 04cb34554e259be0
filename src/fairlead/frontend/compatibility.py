"""Text of docs/compatibility.md: the supported methods of Temporal's API, and the differences."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fairlead.frontend.gateway.service import OPERATOR_SERVICE, TOPICS, WORKFLOW_SERVICE, method_names
from fairlead.frontend.handlers.system import SERVER_VERSION

# Differences that belong to no single topic; the others are in the handlers of their topic.
DIFFERENCES = (
    (
        "A request that can't be decoded gets INVALID_ARGUMENT, since the client is at fault; Temporal's server "
        "returns INTERNAL."
    ),
    "A feature that a method lacks gets UNIMPLEMENTED with the method's name.",
    (
        "The [HTTP API](http-api.md) has all paths of Temporal's server, except those of Nexus requests from outside. "
        "Payloads keep all digits of their numbers, and a payload with invalid JSON does not make the response fail. "
        "On a loopback address only local names are accepted as Host."
    ),
)

_ABOUT = f"""\
# Compatibility

Fairlead implements the gRPC API of Temporal's server and is compared with its release {SERVER_VERSION}. This page is \
generated from the code and from a call of every method to a running server: \
`python -m fairlead.testing.compatibility > docs/compatibility.md`.

- *supported*: the method behaves as in Temporal's server.
- *partial*: the note says what is missing.
- *off by default*: the note names the dynamic setting that enables the method, and the error without it.
- *rejected*: every call gets the error in the note, as in Temporal's server by default.
- *not supported*: every call gets UNIMPLEMENTED with the method's name.
"""


class Outcome(NamedTuple):
    """The response of a running server to a call of a method.

    `error` is the code and message if the method rejects every request. `switch` is the key of the dynamic setting
    that enables the method.
    """

    error: str = ""
    switch: str = ""


def render(outcomes: Mapping[str, Outcome]) -> str:
    """Render the page from the outcomes of the calls by method."""
    tables = ["\n".join(_table(service, outcomes)) for service in (WORKFLOW_SERVICE, OPERATOR_SERVICE)]
    differences = "\n".join(f"- {sentence}" for sentence in _differences())
    return "\n".join([_ABOUT, *tables, "## Differences\n", differences, ""])


def _table(service: str, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    names = method_names(service)
    answered = sum(not outcomes[name].error or bool(outcomes[name].switch) for name in names)
    notes = _notes()
    yield f"## {service.rpartition('.')[2]}\n"
    yield f"{answered} of {len(names)} methods.\n"
    yield "| method | status | note |"
    yield "|---|---|---|"
    for name in names:
        status, note = _status(name, outcomes[name], notes.get(name, ""))
        yield f"| {name} | {status} | {note} |"
    yield ""


def _status(name: str, outcome: Outcome, note: str) -> tuple[str, str]:
    if not outcome.error:
        return ("partial" if note else "supported"), note
    if outcome.switch:
        return (
            "off by default",
            f"Enabled by `{outcome.switch}`; else {outcome.error.rstrip('.')}. {note}".rstrip(),
        )
    if outcome.error == not_implemented(name):
        return "not supported", note
    return "rejected", f"{outcome.error} {note}".rstrip()


def not_implemented(name: str) -> str:
    """The error of a method that has no handler."""
    return f"UNIMPLEMENTED: method {name} not implemented"


def _notes() -> dict[str, str]:
    return {name: note for topic in TOPICS for name, note in getattr(topic, "NOTES", {}).items()}


def _differences() -> Iterator[str]:
    yield from DIFFERENCES
    for topic in TOPICS:
        yield from getattr(topic, "DIFFERENCES", ())
