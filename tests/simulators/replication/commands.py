"""The commands of simulated workers: drawn at random, but each workflow makes progress and ends."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.enums.v1 import ParentClosePolicy
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Acceptance, Request, Response
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueResponse

from tests.history.shard_world import command, complete, kinds

TASK_QUEUE = "queue"
# Maximum number of workflow tasks of a workflow: the last one closes the workflow.
TASKS_MAX = 6
TIMER_S_MAX = 5
ACTIVITY_S_MAX = 3
ACTIVITY_ATTEMPTS_MAX = 3
TASK_TIMEOUT_S = 4

_ENDED_ACTIVITIES = ("COMPLETED", "FAILED", "TIMED_OUT", "CANCELED")


def decide(
    task: PollWorkflowTaskQueueResponse, random: Random, *, namespace: str, others: Sequence[str], is_ending: bool
) -> dict[str, Any]:
    """The response to a workflow task; `others` are the existing workflow ids, `is_ending` closes the workflow now."""
    seen = Counter(kinds(task.history.events))
    messages, commands = _updated(task)
    done = seen["WORKFLOW_TASK_COMPLETED"]
    if is_ending or done >= random.randint(1, TASKS_MAX):
        commands.append(_closing(task.history.events, seen, random, is_ending=is_ending))
        return {"commands": commands, "messages": messages}
    made = [
        random.choice([_timer, _timer, _activity, _activity, _child, _signal, _marker])(
            f"{done}.{number}", random, namespace, others
        )
        for number in range(random.choice([0, 1, 1, 2, 3]))
    ]
    if not _is_waiting(seen) and not any(_waits(one) for one in made):
        made.append(random.choice([_timer, _activity])(f"{done}.last", random, namespace, others))
    return {"commands": [*commands, *made], "messages": messages}


def _is_waiting(seen: Counter[str]) -> bool:
    activities = seen["ACTIVITY_TASK_SCHEDULED"] - sum(seen[f"ACTIVITY_TASK_{how}"] for how in _ENDED_ACTIVITIES)
    timers = seen["TIMER_STARTED"] - seen["TIMER_FIRED"] - seen["TIMER_CANCELED"]
    return activities > 0 or timers > 0


def _waits(one: Command) -> bool:
    return bool(
        one.HasField("start_timer_command_attributes") or one.HasField("schedule_activity_task_command_attributes")
    )


def _closing(events: Sequence[HistoryEvent], seen: Counter[str], random: Random, *, is_ending: bool) -> Command:
    if seen["WORKFLOW_EXECUTION_CANCEL_REQUESTED"]:
        return command("CANCEL_WORKFLOW_EXECUTION")
    if not is_ending and random.random() < 0.25:
        made = command("CONTINUE_AS_NEW_WORKFLOW_EXECUTION", workflow_task_timeout=Duration(seconds=TASK_TIMEOUT_S))
        attributes = made.continue_as_new_workflow_execution_command_attributes
        attributes.workflow_type.name = events[0].workflow_execution_started_event_attributes.workflow_type.name
        attributes.task_queue.name = TASK_QUEUE
        return made
    if random.random() < 0.2:
        made = command("FAIL_WORKFLOW_EXECUTION")
        made.fail_workflow_execution_command_attributes.failure.message = "as it were"
        return made
    return complete()


def _timer(name: str, random: Random, _namespace: str, _others: Sequence[str]) -> Command:
    seconds = Duration(seconds=random.randint(1, TIMER_S_MAX))
    return command("START_TIMER", timer_id=f"t{name}.{random.randrange(1000)}", start_to_fire_timeout=seconds)


def _activity(name: str, random: Random, _namespace: str, _others: Sequence[str]) -> Command:
    made = command(
        "SCHEDULE_ACTIVITY_TASK",
        activity_id=f"a{name}.{random.randrange(1000)}",
        schedule_to_close_timeout=Duration(seconds=20),
        start_to_close_timeout=Duration(seconds=random.randint(1, ACTIVITY_S_MAX)),
        heartbeat_timeout=Duration(seconds=random.choice([0, 1])),
        retry_policy=RetryPolicy(
            initial_interval=Duration(seconds=1),
            backoff_coefficient=1.0,
            maximum_interval=Duration(seconds=1),
            maximum_attempts=random.randint(1, ACTIVITY_ATTEMPTS_MAX),
        ),
    )
    attributes = made.schedule_activity_task_command_attributes
    attributes.activity_type.name = "activity"
    attributes.task_queue.name = TASK_QUEUE
    return made


def _child(name: str, random: Random, namespace: str, others: Sequence[str]) -> Command:
    # Some child workflows get the workflow id of another workflow, which may be in use.
    workflow_id = random.choice(others) if random.random() < 0.3 else f"child-{name}-{random.randrange(50)}"
    made = command(
        "START_CHILD_WORKFLOW_EXECUTION",
        namespace=namespace,
        workflow_id=workflow_id,
        workflow_task_timeout=Duration(seconds=TASK_TIMEOUT_S),
        parent_close_policy=random.choice(
            [
                ParentClosePolicy.PARENT_CLOSE_POLICY_TERMINATE,
                ParentClosePolicy.PARENT_CLOSE_POLICY_ABANDON,
                ParentClosePolicy.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
            ]
        ),
    )
    attributes = made.start_child_workflow_execution_command_attributes
    attributes.workflow_type.name = "child"
    attributes.task_queue.name = TASK_QUEUE
    return made


def _signal(name: str, random: Random, namespace: str, others: Sequence[str]) -> Command:
    made = command(
        "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION", namespace=namespace, signal_name=f"x{name}.{random.randrange(10**6)}"
    )
    made.signal_external_workflow_execution_command_attributes.execution.workflow_id = random.choice(others)
    return made


def _marker(name: str, random: Random, _namespace: str, _others: Sequence[str]) -> Command:
    return command("RECORD_MARKER", marker_name=f"m{name}.{random.randrange(1000)}")


def _updated(task: PollWorkflowTaskQueueResponse) -> tuple[list[Message], list[Command]]:
    """Accept and complete every update of the task."""
    messages, commands = [], []
    for message in task.messages:
        request = Request()
        message.body.Unpack(request)
        response = Response(meta=request.meta)
        response.outcome.success.SetInParent()
        for name, body in (
            ("accepted", Acceptance(accepted_request_message_id=message.id, accepted_request=request)),
            ("completed", response),
        ):
            made = Message(id=f"{message.id}/{name}", protocol_instance_id=message.protocol_instance_id)
            made.body.Pack(body)
            messages.append(made)
            commands.append(command("PROTOCOL_MESSAGE", message_id=made.id))
    return messages, commands
