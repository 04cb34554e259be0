"""The options of an activity that stands alone, as a request has them: checked, completed and changed."""

from collections.abc import Sequence
from typing import Protocol

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import Priority, RetryPolicy

from fairlead.history.refusals import invalid
from fairlead.history.standalone.answers import options_answer
from fairlead.history.standalone.state import Options
from fairlead.history.state.retry import fill_retry_policy, retry_policy_problem
from fairlead.history.state.times import DURATION_NS_MAX, from_duration, shorter

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
    """The options of a request: those that it leaves open follow from the others."""
    wanted: _WithOptions = source  # type: ignore[assignment]
    policy = RetryPolicy()
    policy.CopyFrom(wanted.retry_policy)
    fill_retry_policy(policy)
    problem = retry_policy_problem(policy)
    if problem is not None:
        raise invalid(problem)
    times_ns = {field: _duration_ns(source, field, name) for field, name in DURATIONS.items()}
    to_close_ns, work_ns = times_ns["schedule_to_close_timeout"], times_ns["start_to_close_timeout"]
    if not to_close_ns and not work_ns:
        raise invalid(
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
        priority=wanted.priority.SerializeToString() if wanted.HasField("priority") else b"",
        start_delay_ns=times_ns["start_delay"],
    )


def merge_options(
    present: Options, wanted: ActivityOptions, paths: Sequence[str], *, activity_id: str, activity_type: str
) -> Options:
    """The options with those replaced that the paths name."""
    merged = options_answer(present)
    for path in paths:
        name, _, inner = path.partition(".")
        if not inner:
            _copy_field(wanted, merged, name)
        elif wanted.HasField(name) or merged.HasField(name):  # type: ignore[arg-type]
            _copy_field(getattr(wanted, name), getattr(merged, name), inner)
    if not merged.task_queue.name:
        raise invalid("taskQueue is not set")
    return read_options(merged, task_queue=merged.task_queue.name, activity_id=activity_id, activity_type=activity_type)


def _copy_field(source: Message, target: Message, name: str) -> None:
    """What the source has in one field, which may be nothing."""
    field = source.DESCRIPTOR.fields_by_name[name]
    target.ClearField(name)
    if field.is_repeated:
        getattr(target, name).extend(getattr(source, name))
    elif field.message_type is not None:
        if source.HasField(name):
            getattr(target, name).CopyFrom(getattr(source, name))
    else:
        setattr(target, name, getattr(source, name))


def _duration_ns(source: Message, field: str, name: str) -> int:
    duration: Duration = getattr(source, field)
    if (duration.seconds > 0 and duration.nanos < 0) or (duration.seconds < 0 and duration.nanos > 0):
        raise invalid(f"invalid {name}: duration has seconds and nanos with different signs")
    if duration.seconds < 0 or duration.nanos < 0:
        raise invalid(f"invalid {name}: negative duration")
    return min(from_duration(duration), DURATION_NS_MAX)
