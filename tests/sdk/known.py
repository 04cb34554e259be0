"""Intended differences from the reference server, each with its reason."""

import re
from dataclasses import dataclass

from tests.sdk.compare import Difference


@dataclass(frozen=True, slots=True)
class Known:
    """An intended difference: its patterns match the program's name, and the difference's place and path."""

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
        program="^workflow_rules_(pause_activities|by_attempt)",
        place=r"^run \d+ .* description at .*TemporalPauseInfo$",
        reason="In a closed run nothing is paused here; the reference goes on to list what was paused at its end.",
    ),
    Known(
        program="signal_with_start|start_delayed_with_signal|^system_nexus",
        place=r"requestIdInfos.*eventId$",
        reason="The request that began a run leads to event 1 here; the reference gives its type, and the next id.",
    ),
    Known(
        program="^time_skipped",
        place=r"timeSkippingInfo\.(currentSessionSkipCount|fastForwardInfo)$",
        reason="The reference leaves the number of skips and the fast-forward out of the description.",
    ),
    Known(
        program="^time_skipped",
        place=r"timeSkippingStatePropagation\.initialSkippedDuration$",
        reason="What is skipped is a timer's duration less the real time since its start.",
    ),
    Known(
        program="^nexus_update_joined",
        place=r"requestIdInfos.*\.(buffered|eventId)$",
        reason="The reference describes a request as buffered although its event is in the history.",
    ),
    Known(
        program="^nexus_alone_schedule_to_(start|close)_timeout",
        place=r"^note 'at its end' at info\.(attempt|lastAttempt\w+)",
        reason="The reference gives a request up before the operation's time is over; here both end together.",
    ),
    Known(
        program="^nexus_alone_listed",
        place=r"searchAttributes\.indexedFields(\.TemporalNamespaceDivision)?$",
        reason="The reference shows an attribute of its own, which tells kinds of executions apart.",
    ),
    Known(
        program="^nexus_alone_listed",
        place="ExecutionStatus = 'Nothing'' at $",
        reason="A status that does not exist is refused here, as in lists of workflows.",
    ),
    Known(
        program="^nexus_alone_listed",
        place="ORDER BY StartTime' at $",
        reason="ORDER BY works here on every store; the reference refuses it on SQL databases.",
    ),
)


def unknown(found: list[Difference]) -> list[Difference]:
    """The differences that no entry of the table explains."""
    return [each for each in found if not any(_explains(known, each) for known in KNOWN)]


def _explains(known: Known, difference: Difference) -> bool:
    place = f"{difference.where} at {difference.path}"
    return bool(re.search(known.program, difference.program) and re.search(known.place, place))
