"""The context of a program: a client, a worker's task queue, and functions that wait for a state of the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    DescribeWorkflowExecutionResponse,
    ResetWorkflowExecutionRequest,
)
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.patience import PATIENCE_S
from tests.sdk import gates
from tests.sdk.errors import describe_error

NAMESPACE = "default"
NO_ONE = "nobody-polls-this"
MAIN = "main"
WAIT_S_MAX = PATIENCE_S
DEADLOCK_S = 60
_CHECK_S = 0.02
Handle = WorkflowHandle[Any, Any]
Program = Callable[["Stage"], Awaitable[Any]]
P = TypeVar("P", bound=Program)

PROGRAMS: dict[str, Program] = {}


def program(function: P) -> P:
    """Register a program under its own name."""
    name = function.__name__
    assert name not in PROGRAMS, name
    PROGRAMS[name] = function
    return function


class Stage:
    """One program's view of one server."""

    def __init__(self, client: Client, *, name: str, queue: str) -> None:
        self.client = client
        self.service = client.workflow_service
        self.queue = queue
        self.name = name
        self.runs: list[tuple[str, str]] = []
        self.notes: list[dict[str, Any]] = []

    def id(self, suffix: str = MAIN) -> str:
        return f"{self.name}/{suffix}"

    def saw(self, workflow_id: str, run_id: str | None) -> None:
        """Add a run whose history is compared; runs that follow from it are found automatically."""
        if run_id and (workflow_id, run_id) not in self.runs:
            self.runs.append((workflow_id, run_id))

    async def start(self, workflow: Any, *args: Any, suffix: str = MAIN, queue: str = "", **options: Any) -> Handle:
        handle: Handle = await self.client.start_workflow(
            workflow, args=list(args), id=self.id(suffix), task_queue=queue or self.queue, **options
        )
        self.saw(handle.id, handle.result_run_id)
        return handle

    async def saw_current(self, suffix: str = MAIN) -> str:
        description = await self.describe(self.id(suffix))
        run_id = description.workflow_execution_info.execution.run_id
        self.saw(self.id(suffix), run_id)
        return run_id

    async def run(self, workflow: Any, *args: Any, **options: Any) -> Any:
        """Start a workflow and return its outcome."""
        return await self.outcome((await self.start(workflow, *args, **options)).result())

    async def outcome(self, call: Awaitable[Any]) -> Any:
        """The result or the exception of a call, in a form that can be compared."""
        try:
            answer = await call
        except Exception as error:  # noqa: BLE001 - every error is compared
            return describe_error(error)
        return plain(answer)

    def note(self, label: str, value: Any) -> None:
        """Record a value that the client saw during the program."""
        self.notes.append({"label": label, "value": plain(value)})

    async def describe(self, workflow_id: str, run_id: str = "") -> DescribeWorkflowExecutionResponse:
        return await self.service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(namespace=NAMESPACE, execution=execution(workflow_id, run_id))
        )

    async def events(self, handle: Handle) -> Sequence[HistoryEvent]:
        return (await handle.fetch_history()).events

    async def until(self, handle: Handle, event: str, count: int = 1) -> None:
        """Wait for the `count`-th event of a type, named without its prefix."""
        number = EventType.Value(f"EVENT_TYPE_{event}")

        async def there() -> bool:
            return sum(each.event_type == number for each in await self.events(handle)) >= count

        await self.until_true(there, f"{count} {event} in {handle.id}")

    async def idle(self, handle: Handle) -> None:
        """Wait until at least one workflow task was completed and none is scheduled or started."""

        async def there() -> bool:
            last = [event.event_type for event in await self.events(handle) if event.event_type in _TASK_EVENTS]
            return bool(last) and last[-1] == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED

        await self.until_true(there, f"an idle {handle.id}")

    async def until_pending(self, activities: int) -> None:
        """Wait until the program's main workflow has only `count` pending activities: their events may be buffered."""

        async def there() -> bool:
            return len((await self.describe(self.id())).pending_activities) <= activities

        await self.until_true(there, f"{activities} pending activities")

    async def until_activity(self, state: Callable[[PendingActivityInfo], bool]) -> PendingActivityInfo:
        """Wait until the only pending activity of the main workflow is in a state."""
        found: list[PendingActivityInfo] = []

        async def there() -> bool:
            found[:] = [each for each in (await self.describe(self.id())).pending_activities if state(each)]
            return bool(found)

        await self.until_true(there, "the activity's state")
        return found[0]

    async def closed(self, workflow_id: str, run_id: str = "") -> None:
        async def there() -> bool:
            return (await self.describe(workflow_id, run_id)).workflow_execution_info.HasField("close_time")

        await self.until_true(there, f"the end of {workflow_id}")

    async def until_true(self, there: Callable[[], Awaitable[bool]], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not await there():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"waited in vain for {what}")
            await asyncio.sleep(_CHECK_S)

    async def reached(self, name: str, suffix: str = MAIN) -> None:
        """Wait until a workflow task or an activity is blocked at a gate."""
        await gates.wait_for(gates.gate(self.id(suffix), name).reached)

    def open(self, name: str, suffix: str = MAIN) -> None:
        gates.gate(self.id(suffix), name).opened.set()

    async def signal(self, handle: Handle, name: str, *args: Any) -> None:
        """Send a signal and wait until the workflow has handled it."""
        await handle.signal(name, args=list(args))
        await self.idle(handle)

    async def signal_and_end(self, handle: Handle, name: str, *args: Any) -> Any:
        """Send the signal that ends the workflow; returns the outcome."""
        await handle.signal(name, args=list(args))
        return await self.outcome(handle.result())

    async def reset(self, handle: Handle, event_id: int, **options: Any) -> str:
        """Reset the current run; returns the new run's id."""
        answer = await self.service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=NAMESPACE,
                workflow_execution=execution(handle.id),
                reason="again",
                request_id=f"{handle.id}-reset-{event_id}",
                workflow_task_finish_event_id=event_id,
                **options,
            )
        )
        self.saw(handle.id, answer.run_id)
        return answer.run_id

    @asynccontextmanager
    async def worker(
        self, queue: str, workflows: Sequence[type] = (), activities: Sequence[Any] = (), **options: Any
    ) -> AsyncIterator[Worker]:
        """Run a separate worker, for programs that start or stop one."""
        # Use a separate connection: closing it must not cancel the polls of the shared worker.
        client = await Client.connect(self.client.service_client.config.target_host, identity="another-client")
        async with make_worker(client, queue, workflows, activities, identity="another-worker", **options) as running:
            yield running


def make_worker(
    client: Client,
    queue: str,
    workflows: Sequence[type],
    activities: Sequence[Any],
    *,
    identity: str = "the-worker",
    **options: Any,
) -> Worker:
    worker = Worker(
        client,
        task_queue=queue,
        workflows=workflows,
        activities=activities,
        workflow_runner=UnsandboxedWorkflowRunner(),
        identity=identity,
        build_id="the-build",
        max_heartbeat_throttle_interval=timedelta(milliseconds=50),
        default_heartbeat_throttle_interval=timedelta(milliseconds=50),
        **options,
    )
    if worker._workflow_worker is not None:
        # A gate holds a task longer than the SDK's limit of 2 s. The SDK's debug mode would block the whole event loop.
        worker._workflow_worker._deadlock_timeout_seconds = DEADLOCK_S
    return worker


def execution(workflow_id: str, run_id: str = "") -> WorkflowExecution:
    return WorkflowExecution(workflow_id=workflow_id, run_id=run_id)


def plain(value: Any) -> Any:
    """Convert messages to dictionaries and leave other values unchanged."""
    if isinstance(value, Message):
        return MessageToDict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


_TASK_EVENTS = frozenset(
    EventType.Value(f"EVENT_TYPE_WORKFLOW_TASK_{kind}")
    for kind in ("SCHEDULED", "STARTED", "COMPLETED", "TIMED_OUT", "FAILED")
)
