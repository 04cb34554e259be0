"""Intended differences from the reference server, each with the sentence of docs/compatibility.md about it."""

import re
from dataclasses import dataclass

from tests.sdk.compare import Difference

_LISTED = "^nexus_alone_listed"
_CLOSED = "The description of a closed workflow has nothing pending or paused"
_REQUESTS = "The description of a workflow maps each request id to its event in the history"
_SKIPPED = "DescribeWorkflowExecution shows the fast-forward and the number of skips of a workflow that skips time"


@dataclass(frozen=True, slots=True)
class Known:
    """An intended difference: its patterns match the program's name, and the difference's place and path.

    `documented` is a part of the page docs/compatibility.md.
    """

    program: str
    place: str
    documented: str


KNOWN: tuple[Known, ...] = (
    Known(".", r"^run \d+ .* closed description at pending(Activities|Children|WorkflowTask|NexusOperations)", _CLOSED),
    Known(
        "^workflow_rules_(pause_activities|by_attempt)",
        r"^run \d+ .* closed description at .*TemporalPauseInfo$",
        _CLOSED,
    ),
    Known("signal_with_start|start_delayed_with_signal|^system_nexus", r"requestIdInfos.*eventId$", _REQUESTS),
    Known("^nexus_update_joined", r"requestIdInfos.*\.(buffered|eventId)$", _REQUESTS),
    Known("^time_skipped", r"timeSkippingInfo\.(currentSessionSkipCount|fastForwardInfo)$", _SKIPPED),
    Known(
        program="^nexus_alone_schedule_to_(start|close)_timeout",
        place=r"^note 'at its end' at info\.(attempt|lastAttempt\w+)",
        documented="A Nexus operation times out exactly at its timeout",
    ),
    Known(
        program=_LISTED,
        place=r"searchAttributes\.indexedFields(\.TemporalNamespaceDivision)?$",
        documented="Lists of standalone Nexus operations do not show the search attribute TemporalNamespaceDivision.",
    ),
    Known(
        program=_LISTED,
        place="ExecutionStatus = 'Nothing'' at $",
        documented="In lists of standalone Nexus operations, ExecutionStatus can only be compared with a status",
    ),
    Known(
        program=_LISTED,
        place="ORDER BY StartTime' at $",
        documented="standalone Nexus operations support ORDER BY",
    ),
)


def unknown(found: list[Difference]) -> list[Difference]:
    """The differences that no entry of the table explains."""
    return [each for each in found if not any(_explains(known, each) for known in KNOWN)]


def _explains(known: Known, difference: Difference) -> bool:
    place = f"{difference.where} at {difference.path}"
    return bool(re.search(known.program, difference.program) and re.search(known.place, place))
