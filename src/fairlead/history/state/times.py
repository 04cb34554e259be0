"""Times as whole nanoseconds since 1970, and durations as whole nanoseconds: what protobuf's two messages can hold."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000

# A century: longer durations are cut to it, as the API promises no more.
DURATION_NS_MAX = 100 * 365 * 24 * 3600 * SECOND_NS

# What the messages can hold and 64 bits of nanoseconds can't is taken for the nearest that they can.
_NS_MIN = -(2**63)
_NS_MAX = 2**63 - 1


def to_timestamp(time_ns: int) -> Timestamp:
    """The message of a time."""
    seconds, nanos = divmod(_bounded(time_ns), SECOND_NS)
    return Timestamp(seconds=seconds, nanos=nanos)


def from_timestamp(timestamp: Timestamp) -> int:
    """The time of a message; 0 for one that was never set."""
    return _bounded(timestamp.seconds * SECOND_NS + timestamp.nanos)


def to_duration(duration_ns: int) -> Duration:
    """The message of a duration that is not negative."""
    seconds, nanos = divmod(_bounded(duration_ns), SECOND_NS)
    return Duration(seconds=seconds, nanos=nanos)


def from_duration(duration: Duration) -> int:
    """The duration of a message; 0 for one that was never set."""
    return _bounded(duration.seconds * SECOND_NS + duration.nanos)


def shorter(left_ns: int, right_ns: int) -> int:
    """The shorter of two timeouts, where 0 stands for none at all."""
    return min(left_ns, right_ns) if left_ns and right_ns else left_ns or right_ns


def _bounded(nanoseconds: int) -> int:
    return max(_NS_MIN, min(_NS_MAX, nanoseconds))
