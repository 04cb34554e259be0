"""Differences from the reference server that are meant, each with its reason."""

import re
from dataclasses import dataclass

from tests.sdk.compare import Difference


@dataclass(frozen=True, slots=True)
class Known:
    """Both expressions must be found: in the program's name, and in the place and path of the difference."""

    program: str
    place: str
    reason: str


KNOWN: tuple[Known, ...] = (
    Known(
        program=".",
        place=r"^run \d+ .* description at pending(Activities|Children|WorkflowTask|NexusOperations)",
        reason="A closed run has nothing pending here; the reference goes on to list what was pending at its end.",
    ),
    Known(
        program="signal_with_start|start_delayed_with_signal",
        place=r"requestIdInfos.*eventId$",
        reason="The request that began a run leads to event 1 here; the reference gives its type, and the next id.",
    ),
)


def unknown(found: list[Difference]) -> list[Difference]:
    """The differences that no entry of the table explains."""
    return [each for each in found if not any(_explains(known, each) for known in KNOWN)]


def _explains(known: Known, difference: Difference) -> bool:
    place = f"{difference.where} at {difference.path}"
    return bool(re.search(known.program, difference.program) and re.search(known.place, place))
