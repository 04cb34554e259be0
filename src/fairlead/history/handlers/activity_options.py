"""UpdateActivityOptions: changes the timeouts, retry policy, task queue or priority of a workflow's activities."""

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import Priority, RetryPolicy
from temporalio.api.enums.v1 import TaskQueueKind
from temporalio.api.workflowservice.v1 import UpdateActivityOptionsRequest, UpdateActivityOptionsResponse

from fairlead.api.errors import InvalidArgument
from fairlead.api.retry import fill_retry_policy, retry_policy_problem
from fairlead.api.times import DURATION_NS_MAX, from_duration, shorter, to_duration
from fairlead.history.events import Transaction, change_activity_options
from fairlead.history.handlers.activity_controls import matching
from fairlead.history.shard.context import Operation, OperationContext
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import PendingActivity
from fairlead.history.state.pending import ActivityOptions as ChangedOptions

_TIMEOUTS = {
    "schedule_to_close_timeout": "ScheduleToCloseTimeout",
    "schedule_to_start_timeout": "ScheduleToStartTimeout",
    "start_to_close_timeout": "StartToCloseTimeout",
    "heartbeat_timeout": "HeartbeatTimeout",
}
# Options with fields: a path such as `retry_policy.maximum_attempts` copies one field.
_PARTS = {"retry_policy": "RetryPolicy", "task_queue": "TaskQueue", "priority": "Priority"}


async def update_options(context: OperationContext, request: UpdateActivityOptionsRequest) -> Message:
    """Change the options of all selected activities; the response has the options of the first of them."""
    shard, execution = context.shard, request.execution
    async with shard.lock(context.namespace.id, execution.workflow_id):
        run = await shard.load(context.namespace.id, execution.workflow_id, execution.run_id)
        run.state.check_open()
        # Checked after the run is loaded, as in Temporal's server, so that a missing run gives NOT_FOUND.
        if not request.restore_original:
            if not request.HasField("activity_options"):
                raise InvalidArgument("ActivityOptions are not provided")
            if not request.HasField("update_mask"):
                raise InvalidArgument("UpdateMask is not provided")
        event_ids = matching(run.state, request)
        if not event_ids:
            return UpdateActivityOptionsResponse()

        def step(transaction: Transaction, _run: LoadedRun) -> None:
            state = transaction.state
            changed = [
                None
                if request.restore_original
                else merged(state.as_changed(state.activities[event_id]), request, state.started.run_timeout_ns)
                for event_id in event_ids
            ]
            for event_id, options in zip(event_ids, changed, strict=True):
                change_activity_options(transaction, event_id, options)

        await shard.step(context.namespace, run, step)
        first = run.state.as_changed(run.state.activities[event_ids[0]])
        options = options_of(first)
        if request.restore_original:
            # Temporal's server returns restored options like the scheduled event, without the task queue's kind.
            options.task_queue.ClearField("kind")
        return UpdateActivityOptionsResponse(activity_options=options)


def options_of(activity: PendingActivity) -> ActivityOptions:
    """The present options of an activity."""
    options = ActivityOptions(
        schedule_to_close_timeout=to_duration(activity.schedule_to_close_ns),
        schedule_to_start_timeout=to_duration(activity.schedule_to_start_ns),
        start_to_close_timeout=to_duration(activity.start_to_close_ns),
        heartbeat_timeout=to_duration(activity.heartbeat_ns),
        priority=Priority.FromString(activity.priority or b""),
    )
    options.task_queue.name = activity.task_queue
    options.task_queue.kind = TaskQueueKind.TASK_QUEUE_KIND_NORMAL
    if activity.retry_policy is not None:
        options.retry_policy.ParseFromString(activity.retry_policy)
    return options


def merged(activity: PendingActivity, request: UpdateActivityOptionsRequest, run_ns: int) -> ChangedOptions:
    """The activity's options with the fields of the update mask replaced; validated like a new activity."""
    options = options_of(activity)
    for path in _plain(request.update_mask.paths):
        _take_over(request.activity_options, options, path)
    to_close_ns, to_start_ns, work_ns, heartbeat_ns = (
        _duration_ns(getattr(options, field), name) for field, name in _TIMEOUTS.items()
    )
    if not to_close_ns and not work_ns:
        raise InvalidArgument(
            "a valid StartToCloseTimeout or ScheduleToCloseTimeout must be set on the activity. "
            f"ActivityId={activity.activity_id} ActivityType={activity.activity_type}"
        )
    work_ns = shorter(shorter(work_ns, to_close_ns), run_ns)
    return ChangedOptions(
        task_queue=options.task_queue.name or activity.task_queue,
        schedule_to_close_ns=shorter(to_close_ns, run_ns),
        schedule_to_start_ns=shorter(shorter(to_start_ns, to_close_ns), run_ns),
        start_to_close_ns=work_ns,
        heartbeat_ns=min(heartbeat_ns, work_ns),
        retry_policy=_policy(options),
        priority=options.priority.SerializeToString(),
    )


def _plain(paths: Iterable[str]) -> list[str]:
    """Paths with field names in snake_case; a mask may also use camelCase."""
    return ["".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in path) for path in paths]


def _take_over(wanted: ActivityOptions, options: ActivityOptions, path: str) -> None:
    """Copy one field. An unknown path changes nothing, and neither does `task_queue` without `.name`."""
    name, _, inner = path.partition(".")
    if name in _TIMEOUTS and not inner:
        getattr(options, name).CopyFrom(getattr(wanted, name))
        return
    if name not in _PARTS or (name == "task_queue" and inner != "name"):
        return
    if not wanted.HasField(name):  # type: ignore[arg-type]
        raise InvalidArgument(f"{_PARTS[name]} is not provided")
    source: Message = getattr(wanted, name)
    target: Message = getattr(options, name)
    if not inner:
        target.CopyFrom(source)
        return
    field = source.DESCRIPTOR.fields_by_name.get(inner)
    if field is None:
        return
    target.ClearField(inner)
    if field.is_repeated:
        getattr(target, inner).extend(getattr(source, inner))
    elif field.message_type is not None:
        getattr(target, inner).CopyFrom(getattr(source, inner))
    else:
        setattr(target, inner, getattr(source, inner))


def _duration_ns(duration: Duration, name: str) -> int:
    duration_ns = from_duration(duration)
    if duration_ns < 0:
        raise InvalidArgument(f"invalid {name}: negative duration")
    return min(duration_ns, DURATION_NS_MAX)


def _policy(options: ActivityOptions) -> bytes | None:
    if not options.HasField("retry_policy"):
        return None
    policy = RetryPolicy()
    policy.CopyFrom(options.retry_policy)
    fill_retry_policy(policy)
    problem = retry_policy_problem(policy)
    if problem is not None:
        raise InvalidArgument(problem)
    return policy.SerializeToString()


OPERATIONS = {"UpdateActivityOptions": Operation(UpdateActivityOptionsRequest, update_options)}
