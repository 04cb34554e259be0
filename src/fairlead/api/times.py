"""Times as nanoseconds since 1970, and durations as nanoseconds; conversion from and to protobuf."""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

SECOND_NS = 1_000_000_000
MILLISECOND_NS = 1_000_000
MICROSECOND_NS = 1_000

# Maximum duration in nanoseconds, a century: longer durations are cut to it.
DURATION_NS_MAX = 100 * 365 * 24 * 3600 * SECOND_NS

# Range of a signed 64-bit integer: times and durations outside of it are cut to the nearest bound.
_NS_MIN = -(2**63)
_NS_MAX = 2**63 - 1


def to_timestamp(time_ns: int) -> Timestamp:
    """Convert nanoseconds since 1970 to a Timestamp."""
    if not _NS_MIN <= time_ns <= _NS_MAX:
        time_ns = _bounded(time_ns)
    seconds, nanos = divmod(time_ns, SECOND_NS)
    return Timestamp(seconds=seconds, nanos=nanos)


def set_timestamp(target: Timestamp, time_ns: int) -> None:
    """Set a Timestamp within another message. This is cheaper than a new Timestamp, which the message would copy."""
    if not _NS_MIN <= time_ns <= _NS_MAX:
        time_ns = _bounded(time_ns)
    # Two zeros would leave the field unset.
    target.SetInParent()
    target.seconds, target.nanos = divmod(time_ns, SECOND_NS)


def from_timestamp(timestamp: Timestamp) -> int:
    """Convert a Timestamp to nanoseconds since 1970; 0 if it is unset."""
    time_ns = timestamp.seconds * SECOND_NS + timestamp.nanos
    return time_ns if _NS_MIN <= time_ns <= _NS_MAX else _bounded(time_ns)


def to_duration(duration_ns: int) -> Duration:
    """Convert nanoseconds, which must not be negative, to a Duration."""
    if not _NS_MIN <= duration_ns <= _NS_MAX:
        duration_ns = _bounded(duration_ns)
    seconds, nanos = divmod(duration_ns, SECOND_NS)
    return Duration(seconds=seconds, nanos=nanos)


def set_duration(target: Duration, duration_ns: int) -> None:
    """Set a Duration within another message. This is cheaper than a new Duration, which the message would copy."""
    if not _NS_MIN <= duration_ns <= _NS_MAX:
        duration_ns = _bounded(duration_ns)
    # Two zeros would leave the field unset.
    target.SetInParent()
    target.seconds, target.nanos = divmod(duration_ns, SECOND_NS)


def in_seconds(time: Timestamp | Duration) -> float:
    """Convert a Timestamp or a Duration to seconds, rounded as a float is."""
    return time.seconds + time.nanos / 1e9


def from_duration(duration: Duration) -> int:
    """Convert a Duration to nanoseconds; 0 if it is unset."""
    duration_ns = duration.seconds * SECOND_NS + duration.nanos
    return duration_ns if _NS_MIN <= duration_ns <= _NS_MAX else _bounded(duration_ns)


def shorter(left_ns: int, right_ns: int) -> int:
    """The shorter of two timeouts, where 0 means no timeout."""
    return min(left_ns, right_ns) if left_ns and right_ns else left_ns or right_ns


def _bounded(nanoseconds: int) -> int:
    return max(_NS_MIN, min(_NS_MAX, nanoseconds))
