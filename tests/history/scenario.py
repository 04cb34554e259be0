"""A run that a test leads through its steps, one by one, with checks after each step."""

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import Payload, Payloads, WorkflowType
from temporalio.api.enums.v1 import CommandType, EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import History, HistoryEvent, WorkflowExecutionSignaledEventAttributes
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest, StartWorkflowExecutionRequest

from fairlead.api.start_requests import complete_request
from fairlead.api.times import SECOND_NS, to_duration
from fairlead.history.commands import CommandDependencies, Completion, complete_workflow_task
from fairlead.history.events import (
    StartRun,
    Transaction,
    rebuild,
    signal,
    start_workflow,
    start_workflow_task,
)
from fairlead.history.events.kinds import CLOSING
from fairlead.history.state import DEFAULT_LIMITS, Limits, RunIdentity, RunState, decode, encode, without_live
from fairlead.history.state.tasks import AnyTask

Result = TypeVar("Result")
RUN_ID = "00000000-0000-4000-8000-000000000001"


def payloads(text: str) -> Payloads:
    return Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=text.encode())])


def failure(kind: str = "", **information: object) -> Failure:
    """A failure; `kind` names its info field."""
    return Failure(message="it failed", **{f"{kind}_failure_info": information} if kind else {})  # type: ignore[arg-type]


def command(name: str, **attributes: object) -> Command:
    """A command; `name` is that of its attributes field."""
    wanted = Command(command_type=CommandType.Value(f"COMMAND_TYPE_{name.upper()}"))
    field = getattr(wanted, f"{name}_command_attributes")
    field.SetInParent()
    field.CopyFrom(type(field)(**attributes))
    return wanted


def activity(activity_id: str, **attributes: object) -> Command:
    options: dict[str, object] = {"start_to_close_timeout": to_duration(10 * SECOND_NS)} | attributes
    return command("schedule_activity_task", activity_id=activity_id, activity_type={"name": "work"}, **options)


def timer(timer_id: str, seconds: int) -> Command:
    return command("start_timer", timer_id=timer_id, start_to_fire_timeout=to_duration(seconds * SECOND_NS))


class Scenario:
    """The run, its whole history, and the tasks that the last step generated."""

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS, **request: object) -> None:
        self.limits = limits
        self.now_ns = 1_800_000_000 * SECOND_NS
        self.version = 0
        self.state = RunState(RunIdentity("namespace-id", "workflow", RUN_ID, RUN_ID, "branch"))
        self.history: list[HistoryEvent] = []
        self.batches: list[bytes] = []
        self.tasks: list[AnyTask] = []
        self.new_run: Transaction | None = None
        self._ids = (f"00000000-0000-4000-8000-{number:012}" for number in count(2))
        start = StartWorkflowExecutionRequest(
            workflow_type=WorkflowType(name="Test"),
            task_queue=TaskQueue(name="queue"),
            **request,  # type: ignore[arg-type]
        )
        complete_request(start, limits)
        self.step(lambda transaction: start_workflow(transaction, StartRun(start)))

    def step(self, act: Callable[[Transaction], Result], *, after_s: float = 0.001) -> Result:
        """Take a step. A step that fails must change nothing."""
        self.now_ns += int(after_s * SECOND_NS)
        before = encode(self.state)
        transaction = Transaction(
            self.state,
            now_ns=self.now_ns,
            version=self.version,
            new_id=lambda: next(self._ids),
            limits=self.limits,
            start_event=self.history[0] if self.history else None,
        )
        try:
            result = act(transaction)
        except Exception:
            self.state = decode(before)
            raise
        batch = transaction.finish()
        self.state = transaction.state
        self.tasks = transaction.tasks
        self.new_run = transaction.new_run or self.new_run
        self.history += transaction.events
        if batch.payload:
            self.batches.append(batch.payload)
        self.check()
        return result

    def check(self) -> None:
        """Check the invariants that hold after every step of every run."""
        assert [event.event_id for event in self.history] == list(range(1, len(self.history) + 1))
        assert self.state.next_event_id == len(self.history) + 1
        assert decode(encode(self.state)) == self.state
        assert without_live(rebuild(self.state.identity, self.history)) == without_live(self.state)
        assert list(History.FromString(b"".join(self.batches)).events) == self.history
        assert self.state.live.history_size_bytes == sum(map(len, self.batches))
        closing = [event for event in self.history if event.event_type in CLOSING]
        assert len(closing) == (0 if self.state.is_open else 1)
        assert not closing or closing[0] is self.history[-1]
        live = self.state.live
        assert not live.buffered or self.state.has_started_task
        assert not (live.ending or live.cancel_buffered) or live.buffered
        assert set(live.activities) <= set(self.state.activities)
        assert set(live.nexus) <= set(self.state.nexus_operations)

    def types(self, since: int = 0) -> list[str]:
        names = (EventType.Name(event.event_type) for event in self.history[since:])
        return [name.removeprefix("EVENT_TYPE_") for name in names]

    def start_task(self) -> None:
        task = self.state.workflow_task
        assert task is not None
        request_id = next(self._ids)
        self.step(
            lambda transaction: start_workflow_task(
                transaction, task.scheduled_event_id, request_id=request_id, identity="worker"
            )
        )

    def answer(self, *commands: Command, **options: object) -> Completion:
        """Respond to the workflow task that a worker holds."""
        task = self.state.workflow_task
        assert task is not None
        request = RespondWorkflowTaskCompletedRequest(
            identity="worker",
            commands=commands,
            **options,  # type: ignore[arg-type]
        )
        return self.step(
            lambda transaction: complete_workflow_task(
                transaction,
                request,
                CommandDependencies(
                    "default",
                    {"default": "namespace-id", "other": "other-id"}.get,
                    nexus_endpoints={"desk": "endpoint-id"},
                ),
                scheduled_event_id=task.scheduled_event_id,
                attempt=task.attempt,
            )
        )

    def work(self, *commands: Command, **options: object) -> Completion:
        """Start the workflow task and respond to it."""
        self.start_task()
        return self.answer(*commands, **options)

    def signal(self, name: str = "signal", request_id: str = "") -> bool:
        attributes = WorkflowExecutionSignaledEventAttributes(signal_name=name, request_id=request_id)
        return self.step(lambda transaction: signal(transaction, attributes))

    def task(self, kind: type[Result]) -> Result:
        """The only task of a kind that the last step generated."""
        found = [task for task in self.tasks if isinstance(task, kind)]
        assert len(found) == 1, self.tasks
        return found[0]
