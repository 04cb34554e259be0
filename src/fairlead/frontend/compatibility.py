"""Which of Temporal's API is here, and what differs: docs/compatibility.md, made from the handlers themselves."""

from collections.abc import Iterator

from fairlead.frontend.service import OPERATOR_SERVICE, TOPICS, WORKFLOW_SERVICE, handlers, method_names
from fairlead.frontend.system import SERVER_VERSION

# Those that are of no single topic; the others are beside the handlers of their topic.
DIFFERENCES = (
    (
        "A request that is no message of its method is answered INVALID_ARGUMENT, where Temporal's server answers "
        "INTERNAL: the fault is the client's."
    ),
    "What a method does not have is answered UNIMPLEMENTED with the method's name.",
)

_ABOUT = f"""\
# Compatibility

Fairlead speaks the gRPC API of Temporal's server, and is compared with release {SERVER_VERSION} of it. This page is \
made from the code: `python -m fairlead.frontend.compatibility > docs/compatibility.md`.

A method that is *partial* says what it lacks. One that is *disabled* answers UNIMPLEMENTED, as Temporal's \
server does where nobody has switched it on. One that is *not supported* answers UNIMPLEMENTED with its name.
"""


def render() -> str:
    """The page."""
    tables = ["\n".join(_table(service)) for service in (WORKFLOW_SERVICE, OPERATOR_SERVICE)]
    differences = "\n".join(f"- {sentence}" for sentence in _differences())
    return "\n".join([_ABOUT, *tables, "## Differences\n", differences, ""])


def _table(service: str) -> Iterator[str]:
    names = method_names(service)
    implemented = handlers(service)
    notes = _notes()
    disabled = {name for topic in TOPICS for name in getattr(topic, "DISABLED", ())}
    yield f"## {service.rpartition('.')[2]}\n"
    yield f"{len(implemented.keys() - disabled)} of {len(names)} methods.\n"
    yield "| method | status | note |"
    yield "|---|---|---|"
    for name in names:
        note = notes.get(name, "")
        if name not in implemented:
            status = "not supported"
        elif name in disabled:
            status = "disabled"
        else:
            status = "partial" if note else "supported"
        yield f"| {name} | {status} | {note} |"
    yield ""


def _notes() -> dict[str, str]:
    return {name: note for topic in TOPICS for name, note in getattr(topic, "NOTES", {}).items()}


def _differences() -> Iterator[str]:
    yield from DIFFERENCES
    for topic in TOPICS:
        yield from getattr(topic, "DIFFERENCES", ())


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201 - the page is what it is run for
