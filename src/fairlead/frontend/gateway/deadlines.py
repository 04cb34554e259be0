"""Timeouts of calls that wait: the response must be sent before the caller's deadline."""

from fairlead.api.errors import FailedPrecondition, InvalidArgument
from fairlead.rpc import Call

# Maximum seconds that long polls of history and updates wait; then the response has the present state.
HISTORY_WAIT_S_MAX = 20.0
QUERY_WAIT_S_MAX = 30.0
POLL_WAIT_S_MAX = 60.0
# Seconds before the caller's deadline at which the response is sent.
TAIL_S = 1.0
# Minimum seconds until the deadline of a poll for tasks.
POLL_DEADLINE_S_MIN = 2.0


def wait_s(call: Call, longest_s: float) -> float:
    """Seconds to wait: `longest_s`, or until shortly before the caller's deadline."""
    remaining_s = call.remaining_s()
    if remaining_s is None:
        return longest_s
    return min(longest_s, max(remaining_s - TAIL_S, remaining_s / 2))


def poll_wait_s(call: Call) -> float:
    """Seconds that a worker's poll waits for a task."""
    remaining_s = call.remaining_s()
    if remaining_s is None:
        raise InvalidArgument("Context timeout is not set.")
    if remaining_s < POLL_DEADLINE_S_MIN:
        raise FailedPrecondition("Context timeout is too short.")
    return min(POLL_WAIT_S_MAX, remaining_s - TAIL_S)
