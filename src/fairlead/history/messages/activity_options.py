"""The options of a standalone activity, validated and completed."""

from typing import Protocol

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.common.v1 import Priority, RetryPolicy

from fairlead.api.errors import InvalidArgument
from fairlead.api.retry import fill_retry_policy, retry_policy_problem
from fairlead.api.times import DURATION_NS_MAX, from_duration, shorter


class Options(msgspec.Struct, array_like=True, frozen=True):
    """The options of an activity, which can be changed after the start. Times of 0 are unset; messages serialized.

    `priority` is None if the request has no priority, so that descriptions omit it.
    """

    task_queue: str
    schedule_to_close_ns: int
    schedule_to_start_ns: int
    start_to_close_ns: int
    heartbeat_ns: int
    retry_policy: bytes
    priority: bytes | None = None
    start_delay_ns: int = 0


DURATIONS = {
    "schedule_to_close_timeout": "ScheduleToCloseTimeout",
    "schedule_to_start_timeout": "ScheduleToStartTimeout",
    "start_to_close_timeout": "StartToCloseTimeout",
    "heartbeat_timeout": "HeartbeatTimeout",
    "start_delay": "StartDelay",
}
_PRIORITY = frozenset(f"priority.{field.name}" for field in Priority.DESCRIPTOR.fields)
_RETRY = frozenset(f"retry_policy.{field.name}" for field in RetryPolicy.DESCRIPTOR.fields)
PATHS = frozenset(DURATIONS) | _PRIORITY | _RETRY | {"task_queue.name", "priority", "retry_policy"}


class _WithOptions(Protocol):
    @property
    def retry_policy(self) -> RetryPolicy: ...

    @property
    def priority(self) -> Priority: ...

    def HasField(self, field_name: str) -> bool: ...  # noqa: N802 - the method of a message


def read_options(source: Message, *, task_queue: str, activity_id: str, activity_type: str) -> Options:
    """Read the options of a request; defaults for missing options follow from the given options."""
    wanted: _WithOptions = source  # type: ignore[assignment]
    policy = RetryPolicy()
    policy.CopyFrom(wanted.retry_policy)
    fill_retry_policy(policy)
    problem = retry_policy_problem(policy)
    if problem is not None:
        raise InvalidArgument(problem)
    times_ns = {field: _duration_ns(source, field, name) for field, name in DURATIONS.items()}
    to_close_ns, work_ns = times_ns["schedule_to_close_timeout"], times_ns["start_to_close_timeout"]
    if not to_close_ns and not work_ns:
        raise InvalidArgument(
            "a valid StartToCloseTimeout or ScheduleToCloseTimeout must be set on the activity. "
            f"ActivityId={activity_id} ActivityType={activity_type}"
        )
    work_ns = shorter(work_ns, to_close_ns)
    return Options(
        task_queue=task_queue,
        schedule_to_close_ns=to_close_ns,
        schedule_to_start_ns=shorter(times_ns["schedule_to_start_timeout"], to_close_ns),
        start_to_close_ns=work_ns,
        heartbeat_ns=min(times_ns["heartbeat_timeout"], work_ns),
        retry_policy=policy.SerializeToString(),
        priority=wanted.priority.SerializeToString() if wanted.HasField("priority") else None,
        start_delay_ns=times_ns["start_delay"],
    )


def _duration_ns(source: Message, field: str, name: str) -> int:
    duration: Duration = getattr(source, field)
    if (duration.seconds > 0 and duration.nanos < 0) or (duration.seconds < 0 and duration.nanos > 0):
        raise InvalidArgument(f"invalid {name}: duration has seconds and nanos with different signs")
    if duration.seconds < 0 or duration.nanos < 0:
        raise InvalidArgument(f"invalid {name}: negative duration")
    return min(from_duration(duration), DURATION_NS_MAX)
