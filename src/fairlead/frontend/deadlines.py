"""How long a call may wait for what it waits for: it is answered before its caller gives up, not after."""

from fairlead.history.refusals import failed_precondition, invalid
from fairlead.rpc import Call

# For history's long polls, and for updates: then they are answered with what there is.
HISTORY_WAIT_S_MAX = 20.0
QUERY_WAIT_S_MAX = 30.0
POLL_WAIT_S_MAX = 60.0
# So much earlier than the caller's own deadline the answer is under way.
TAIL_S = 1.0
# Who polls for tasks must be ready to wait.
POLL_DEADLINE_S_MIN = 2.0


def wait_s(call: Call, longest_s: float) -> float:
    """How long to wait: `longest_s`, or until shortly before the caller's deadline."""
    remaining_s = call.remaining_s()
    if remaining_s is None:
        return longest_s
    return min(longest_s, max(remaining_s - TAIL_S, remaining_s / 2))


def poll_wait_s(call: Call) -> float:
    """How long a worker's poll waits for a task."""
    remaining_s = call.remaining_s()
    if remaining_s is None:
        raise invalid("Context timeout is not set.")
    if remaining_s < POLL_DEADLINE_S_MIN:
        raise failed_precondition("Context timeout is too short.")
    return min(POLL_WAIT_S_MAX, remaining_s - TAIL_S)
