"""The official command line on a development server with an SDK worker, as operators and new users run it."""

import asyncio
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.runtime import Runtime, TelemetryConfig

from tests.patience import PATIENCE_S
from tests.sdk.servers import KINDS, serving
from tests.sdk.stage import make_worker

(TEMPORAL,) = KINDS["reference"]
QUEUE = "cli"
COMMAND_S_MAX = 30.0
WAIT_S_MAX = PATIENCE_S
_CHECK_S = 0.1


@activity.defn
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@activity.defn
async def left_to_others() -> str:
    activity.raise_complete_async()


@activity.defn
async def fails() -> str:
    raise ApplicationError("not yet")


@workflow.defn
class Greeter:
    """Runs an activity and returns its result."""

    @workflow.run
    async def run(self, name: str) -> str:
        return await workflow.execute_activity(greet, name, start_to_close_timeout=timedelta(seconds=20))


@workflow.defn
class Talk:
    """Collects signals and updates until a signal ends it."""

    def __init__(self) -> None:
        self._heard: list[str] = []
        self._may_end = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self._may_end)
        return self._heard

    @workflow.signal
    def tell(self, word: str) -> None:
        self._heard.append(word)

    @workflow.signal
    def end(self) -> None:
        self._may_end = True

    @workflow.query
    def heard(self) -> list[str]:
        return self._heard

    @workflow.update
    async def ask(self, word: str) -> int:
        self._heard.append(word)
        return len(self._heard)

    @ask.validator
    def check(self, word: str) -> None:
        if not word:
            raise ApplicationError("say something")


@workflow.defn
class Patient:
    """Waits for an activity that another client completes."""

    @workflow.run
    async def run(self, name: str) -> Any:
        return await workflow.execute_activity(
            name,
            activity_id="theirs",
            start_to_close_timeout=timedelta(seconds=100),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=200), backoff_coefficient=1.0),
        )


class CommandFailed(Exception):
    """The command failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`temporal`, with the address of the server."""

    address: str
    home: Path

    def text(self, *arguments: str, output: str = "json") -> str:
        """Run a command; returns its output or raises `CommandFailed`."""
        done = subprocess.run(  # noqa: S603 - our own arguments
            [TEMPORAL, *arguments, "--address", self.address, "-o", output, "--command-timeout", f"{COMMAND_S_MAX}s"],
            capture_output=True,
            text=True,
            timeout=2 * COMMAND_S_MAX,
            check=False,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"]},
        )
        if done.returncode:
            raise CommandFailed(f"{' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def __call__(self, *arguments: str) -> Any:
        """Run a command; returns the single item of its output."""
        return json.loads(self.text(*arguments))

    def until(self, is_there: Callable[[Any], bool], *arguments: str) -> Any:
        """Repeat a command until its output meets a condition; returns that output."""
        pause = threading.Event()
        said: Any = None
        for _ in range(int(WAIT_S_MAX / _CHECK_S)):
            said = self(*arguments)
            if is_there(said):
                return said
            pause.wait(_CHECK_S)
        raise TimeoutError(f"{' '.join(arguments)} says: {said}")

    def start(self, kind: str, name: str, *options: str) -> str:
        """Start a workflow; returns its run id."""
        started = self("workflow", "start", "--type", kind, "--task-queue", QUEUE, "--workflow-id", name, *options)
        return str(started["runId"])


async def _work(address: str, is_ready: threading.Event, is_over: threading.Event) -> None:
    # By default a worker sends a heartbeat only once a minute.
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=1))
    client = await Client.connect(address, runtime=runtime)
    async with make_worker(client, QUEUE, [Greeter, Talk, Patient], [greet, left_to_others, fails]):
        is_ready.set()
        await asyncio.to_thread(is_over.wait)


@pytest.fixture(scope="module")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """One server and one worker for all tests of this file."""
    folder = tmp_path_factory.mktemp("cli")
    is_ready, is_over = threading.Event(), threading.Event()
    with serving(os.environ.get("FAIRLEAD_TEST_CLI_SERVER", "fairlead"), folder) as address:
        worker = threading.Thread(target=lambda: asyncio.run(_work(address, is_ready, is_over)))
        worker.start()
        try:
            assert is_ready.wait(WAIT_S_MAX)
            yield CommandLine(address, folder)
        finally:
            is_over.set()
            worker.join()


def test_a_workflow_is_executed_and_shown(temporal: CommandLine) -> None:
    options = ("--type", "Greeter", "--task-queue", QUEUE, "--workflow-id", "executed", "--input", '"Ada"')
    executed = temporal("workflow", "execute", *options)
    assert (executed["status"], executed["result"]) == ("COMPLETED", "Hello, Ada!")
    assert temporal("workflow", "result", "--workflow-id", "executed")["result"] == "Hello, Ada!"
    events = temporal("workflow", "show", "--workflow-id", "executed")["events"]
    assert [event["eventType"].removeprefix("EVENT_TYPE_") for event in events] == [
        "WORKFLOW_EXECUTION_STARTED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "ACTIVITY_TASK_SCHEDULED",
        "ACTIVITY_TASK_STARTED",
        "ACTIVITY_TASK_COMPLETED",
        "WORKFLOW_TASK_SCHEDULED",
        "WORKFLOW_TASK_STARTED",
        "WORKFLOW_TASK_COMPLETED",
        "WORKFLOW_EXECUTION_COMPLETED",
    ]
    described = temporal("workflow", "describe", "--workflow-id", "executed")
    info = described["workflowExecutionInfo"]
    assert (info["status"], info["type"]["name"], info["historyLength"]) == (
        "WORKFLOW_EXECUTION_STATUS_COMPLETED",
        "Greeter",
        "11",
    )
    assert "COMPLETED" in temporal.text("workflow", "describe", "--workflow-id", "executed", output="text")
    assert "WorkflowExecutionCompleted" in temporal.text(
        "workflow", "show", "--workflow-id", "executed", "--follow", output="text"
    )


def test_a_workflow_can_be_signaled_queried_and_updated(temporal: CommandLine) -> None:
    run_id = temporal.start("Talk", "told")
    target = ("--workflow-id", "told")
    temporal.text("workflow", "signal", *target, "--name", "tell", "--input", '"one"')
    asked = temporal("workflow", "query", *target, "--type", "heard")
    assert asked["queryResult"] == [["one"]]
    ask = ("--name", "ask", "--update-id", "second")
    updated = temporal("workflow", "update", "execute", *target, *ask, "--input", '"two"')
    assert (updated["updateId"], updated["result"]) == ("second", 2)
    began = temporal(
        *("workflow", "update", "start", *target, "--name", "ask", "--update-id", "third"),
        *("--input", '"three"', "--wait-for-stage", "accepted"),
    )
    assert began["updateId"] == "third"
    assert temporal("workflow", "update", "result", *target, "--update-id", "third")["result"] == 3
    described = temporal("workflow", "update", "describe", *target, "--update-id", "third")
    assert described["stage"] == "Completed"
    with pytest.raises(CommandFailed, match="say something"):
        temporal("workflow", "update", "execute", *target, "--name", "ask", "--input", '""')
    (metadata,) = temporal("workflow", "metadata", *target)["queryResult"]
    assert [each["name"] for each in metadata["definition"]["signalDefinitions"]] == ["end", "tell"]
    (stack,) = temporal("workflow", "stack", *target)["queryResult"]
    assert "workflow: Talk, id: told" in stack
    temporal.text("workflow", "signal", *target, "--name", "end")
    assert temporal("workflow", "result", *target)["result"] == ["one", "two", "three"]
    closed = temporal("workflow", "query", *target, "--run-id", run_id, "--type", "heard")
    assert closed["queryResult"] == [["one", "two", "three"]]
    assert "✓ Talk" in temporal.text("workflow", "trace", *target, "--no-fold", output="text")


def test_a_workflow_starts_with_a_signal_or_an_update(temporal: CommandLine) -> None:
    start = ("--type", "Talk", "--task-queue", QUEUE)
    signal = ("--signal-name", "tell", "--signal-input", '"hello"')
    for _ in range(2):
        temporal("workflow", "signal-with-start", *start, "--workflow-id", "signalled", *signal)
    asked = temporal("workflow", "query", "--workflow-id", "signalled", "--type", "heard")
    assert asked["queryResult"] == [["hello", "hello"]]
    update = ("--update-name", "ask", "--update-input", '"hello"', "--id-conflict-policy", "UseExisting")
    updated = temporal("workflow", "execute-update-with-start", *start, "--workflow-id", "updated", *update)
    assert updated["updateResult"] == 1
    began = temporal(
        *("workflow", "start-update-with-start", *start, "--workflow-id", "updated", *update),
        *("--update-wait-for-stage", "accepted"),
    )
    assert began["workflowId"] == "updated"


def test_workflows_are_cancelled_terminated_reset_and_deleted(temporal: CommandLine) -> None:
    for name in ("cancelled", "terminated"):
        temporal.start("Talk", name)
    temporal.text("workflow", "cancel", "--workflow-id", "cancelled")
    with pytest.raises(CommandFailed, match="CANCELED"):
        temporal("workflow", "result", "--workflow-id", "cancelled")
    temporal.text("workflow", "terminate", "--workflow-id", "terminated", "--reason", "enough")
    description = temporal("workflow", "describe", "--workflow-id", "terminated")
    assert description["workflowExecutionInfo"]["status"] == "WORKFLOW_EXECUTION_STATUS_TERMINATED"
    with pytest.raises(CommandFailed, match="already completed"):
        temporal("workflow", "signal", "--workflow-id", "terminated", "--name", "tell", "--input", '"x"')
    again = temporal("workflow", "reset", "--workflow-id", "cancelled", "--type", "FirstWorkflowTask", "--reason", "x")
    assert again["runId"]
    temporal.text("workflow", "terminate", "--workflow-id", "cancelled", "--run-id", again["runId"])
    temporal.text("workflow", "delete", "--workflow-id", "terminated", "--yes")
    with pytest.raises(CommandFailed, match="not found"):
        temporal("workflow", "describe", "--workflow-id", "terminated")


def test_workflows_are_listed_and_counted(temporal: CommandLine) -> None:
    for number in range(3):
        attribute = f'CustomKeywordField="kind-{number % 2}"'
        memo = ("--memo", f"number={number}")
        temporal.start("Talk", f"listed-{number}", "--search-attribute", attribute, *memo)
    query = ("--query", "CustomKeywordField = 'kind-0' AND ExecutionStatus = 'Running'")
    found = temporal.until(lambda said: len(said) == 2, "workflow", "list", *query)
    assert {each["execution"]["workflowId"] for each in found} == {"listed-0", "listed-2"}
    assert temporal("workflow", "count", *query)["count"] == "2"
    grouped = temporal("workflow", "count", "--query", "WorkflowId STARTS_WITH 'listed-' GROUP BY ExecutionStatus")
    assert [group["count"] for group in grouped["groups"]] == ["3"]
    limited = temporal("workflow", "list", "--query", "WorkflowId STARTS_WITH 'listed-'", "--limit", "2")
    assert len(limited) == 2
    with pytest.raises(CommandFailed, match="invalid query"):
        temporal("workflow", "list", "--query", "Nothing ~ 1")


def test_an_existing_workflow_is_not_started_again(temporal: CommandLine) -> None:
    run_id = temporal.start("Talk", "there")
    with pytest.raises(CommandFailed, match="already"):
        temporal.start("Talk", "there", "--fail-existing")
    assert temporal.start("Talk", "there", "--id-conflict-policy", "UseExisting") == run_id
    assert temporal.start("Talk", "there", "--id-conflict-policy", "TerminateExisting") != run_id


def test_an_activity_is_completed_or_failed_by_hand(temporal: CommandLine) -> None:
    def has_begun(said: Any) -> bool:
        return any(each.get("lastStartedTime") for each in said.get("pendingActivities", []))

    for name in ("completed-by-hand", "failed-by-hand"):
        temporal.start("Patient", name, "--input", '"left_to_others"')
        temporal.until(has_begun, "workflow", "describe", "--workflow-id", name, "--raw")
    by_hand = ("--activity-id", "theirs", "--workflow-id")
    temporal.text("activity", "complete", *by_hand, "completed-by-hand", "--result", '"by hand"')
    assert temporal("workflow", "result", "--workflow-id", "completed-by-hand")["result"] == "by hand"
    temporal.text("activity", "fail", *by_hand, "failed-by-hand", "--reason", "broken")
    with pytest.raises(CommandFailed, match="broken"):
        temporal("workflow", "result", "--workflow-id", "failed-by-hand")


def test_an_activity_is_paused_changed_reset_and_resumed(temporal: CommandLine) -> None:
    temporal.start("Patient", "controlled", "--input", '"fails"')
    target = ("--workflow-id", "controlled", "--activity-id", "theirs")

    def pending(is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        said = temporal.until(
            lambda said: is_there(said["pendingActivities"][0]),
            *("workflow", "describe", "--workflow-id", "controlled", "--raw"),
        )
        found: dict[str, Any] = said["pendingActivities"][0]
        return found

    pending(lambda activity: activity["attempt"] > 2)
    temporal.text("activity", "pause", *target, "--identity", "me")
    assert pending(lambda activity: activity.get("paused", False))["pauseInfo"]["manual"]["identity"] == "me"
    changed = temporal("activity", "update-options", *target, "--retry-maximum-attempts", "100")
    assert (changed["MaximumAttempts"], changed["StartToCloseTimeout"]) == (100, 100_000_000_000)
    restored = temporal("activity", "update-options", *target, "--restore-original-options")
    assert restored["MaximumAttempts"] == 0
    with pytest.raises(CommandFailed, match="UpdateMask must specify at least one path"):
        temporal("activity", "update-options", *target)
    assert temporal("activity", "reset", *target, "--keep-paused") == {"keepPaused": True}
    assert pending(lambda activity: activity["attempt"] == 1)["paused"]
    temporal.text("activity", "unpause", *target)
    pending(lambda activity: not activity.get("paused", False) and activity["attempt"] > 1)
    temporal.text("workflow", "terminate", "--workflow-id", "controlled")


def test_the_options_of_many_activities_can_be_changed(temporal: CommandLine) -> None:
    for number in range(2):
        temporal.start("Patient", f"optional-{number}", "--input", '"left_to_others"')
    query = "WorkflowId STARTS_WITH 'optional-' AND ExecutionStatus = 'Running'"
    temporal.until(lambda said: said["count"] == "2", "workflow", "count", "--query", query)

    def has_attempts(said: Any) -> bool:
        (activity,) = said.get("pendingActivities") or [{}]
        return bool(activity.get("activityOptions", {}).get("retryPolicy", {}).get("maximumAttempts") == 50)

    for number in range(2):
        temporal.until(
            lambda said: bool(said.get("pendingActivities")),
            *("workflow", "describe", "--workflow-id", f"optional-{number}", "--raw"),
        )
    change = ("--retry-maximum-attempts", "50", "--yes")
    assert temporal("activity", "update-options", "--query", query, *change)["batchJobId"]
    for number in range(2):
        temporal.until(has_attempts, "workflow", "describe", "--workflow-id", f"optional-{number}", "--raw")
        temporal.text("workflow", "terminate", "--workflow-id", f"optional-{number}")


def test_an_activity_stands_alone(temporal: CommandLine) -> None:
    options = ("--task-queue", QUEUE, "--start-to-close-timeout", "20s")
    executed = temporal(
        *("activity", "execute", "--type", "greet", "--activity-id", "alone", "--input", '"Ada"'), *options
    )
    assert executed["result"] == "Hello, Ada!"
    assert temporal("activity", "result", "--activity-id", "alone")["result"] == "Hello, Ada!"
    described = temporal("activity", "describe", "--activity-id", "alone")
    assert described["info"]["status"] == "ACTIVITY_EXECUTION_STATUS_COMPLETED"
    for name in ("alone-2", "alone-3"):
        temporal("activity", "start", "--type", "left_to_others", "--activity-id", name, *options)
    running = ("--query", "ExecutionStatus = 'Running' AND ActivityType = 'left_to_others'")
    found = temporal.until(lambda said: len(said) == 2, "activity", "list", *running)
    assert {each["activityId"] for each in found} == {"alone-2", "alone-3"}
    assert temporal("activity", "count", *running)["count"] == "2"
    temporal.text("activity", "cancel", "--activity-id", "alone-2")
    temporal.text("activity", "terminate", "--activity-id", "alone-3", "--reason", "enough")
    temporal.until(
        lambda said: said["info"]["status"] == "ACTIVITY_EXECUTION_STATUS_TERMINATED",
        *("activity", "describe", "--activity-id", "alone-3"),
    )
    temporal.text("activity", "delete", "--activity-id", "alone", "--yes")


def test_a_task_queue_is_described_and_configured(temporal: CommandLine) -> None:
    described = temporal("task-queue", "describe", "--task-queue", QUEUE)
    assert {poller["taskQueueType"] for poller in described["pollers"]} == {"workflow", "activity"}
    assert {poller["identity"] for poller in described["pollers"]} == {"the-worker"}
    old = temporal("task-queue", "describe", "--task-queue", QUEUE, "--legacy-mode")
    assert {poller["identity"] for poller in old["pollers"]} == {"the-worker"}
    # Ask for more partitions than the task queue has.
    described = temporal("task-queue", "describe", "--task-queue", QUEUE, "--legacy-mode", "--partitions-legacy", "6")
    assert {status["partition"] for status in described["taskQueues"]} == set(range(6))
    assert temporal("task-queue", "list-partition", "--task-queue", QUEUE)["activityTaskQueuePartitions"]
    of_activities = ("--task-queue", "limited", "--task-queue-type", "activity")
    temporal.text(
        *("task-queue", "config", "set", *of_activities, "--queue-rps-limit", "5", "--queue-rps-limit-reason", "slow")
    )
    config = temporal("task-queue", "config", "get", *of_activities)
    assert config["queueRateLimit"]["rateLimit"]["requestsPerSecond"] == 5


def test_a_namespace_is_created_changed_listed_and_deleted(temporal: CommandLine) -> None:
    created = ("--description", "of the tests", "--retention", "48h", "--email", "me@example.com")
    temporal.text("operator", "namespace", "create", "--namespace", "made", *created)
    described = temporal("operator", "namespace", "describe", "--namespace", "made")
    assert described["namespaceInfo"]["description"] == "of the tests"
    assert described["config"]["workflowExecutionRetentionTtl"] == "172800s"
    temporal.text("operator", "namespace", "update", "--namespace", "made", "--retention", "72h")
    described = temporal("operator", "namespace", "describe", "--namespace", "made")
    assert described["config"]["workflowExecutionRetentionTtl"] == "259200s"
    listed = temporal("operator", "namespace", "list")
    assert {"default", "made"} <= {each["namespaceInfo"]["name"] for each in listed}
    with pytest.raises(CommandFailed, match="already"):
        temporal("operator", "namespace", "create", "--namespace", "made")
    temporal.text("operator", "namespace", "delete", "--namespace", "made", "--yes")
    with pytest.raises(CommandFailed, match="not found"):
        temporal("operator", "namespace", "describe", "--namespace", "made")


def test_search_attributes_are_created_listed_and_removed(temporal: CommandLine) -> None:
    temporal.text("operator", "search-attribute", "create", "--name", "Colour", "--type", "Keyword")

    def names() -> set[str]:
        listed = temporal("operator", "search-attribute", "list")
        return set(listed["customAttributes"]) | set(listed["systemAttributes"])

    assert {"Colour", "WorkflowType"} <= names()
    temporal.start("Talk", "coloured", "--search-attribute", 'Colour="red"')
    query = ("--query", "Colour = 'red'")
    temporal.until(lambda said: said["count"] == "1", "workflow", "count", *query)
    temporal.text("operator", "search-attribute", "remove", "--name", "Colour", "--yes")
    assert "Colour" not in names()


def test_the_cluster_can_be_described(temporal: CommandLine) -> None:
    assert "SERVING" in temporal.text("operator", "cluster", "health", output="text")
    assert temporal("operator", "cluster", "health")["status"] == "SERVING"
    described = temporal("operator", "cluster", "describe")
    assert described["clusterName"] == "active"
    system = temporal("operator", "cluster", "system")
    assert system["capabilities"]["signalAndQueryHeader"]
    listed = temporal("operator", "cluster", "list")
    assert [each["clusterName"] for each in listed] == ["active"]


def test_workers_are_listed_and_described(temporal: CommandLine) -> None:
    def of_queue(said: Any) -> list[dict[str, Any]]:
        return [each["workerHeartbeat"] for each in said if each["workerHeartbeat"]["taskQueue"] == QUEUE]

    (worker,) = of_queue(temporal.until(lambda said: len(of_queue(said)) == 1, "worker", "list"))
    assert (worker["workerIdentity"], worker["status"]) == ("the-worker", "WORKER_STATUS_RUNNING")
    described = temporal("worker", "describe", "--worker-instance-key", worker["workerInstanceKey"])
    assert described["workerHeartbeat"]["sdkName"] == "temporal-python"
    assert int(temporal("worker", "count")["count"]) >= 1


def test_a_schedule_is_created_triggered_changed_and_deleted(temporal: CommandLine) -> None:
    target = ("--schedule-id", "daily")
    action = ("--type", "Greeter", "--task-queue", QUEUE, "--workflow-id", "scheduled", "--input", '"Ada"')
    temporal.text("schedule", "create", *target, "--interval", "24h", *action)
    temporal.text("schedule", "trigger", *target)
    described = temporal.until(
        lambda said: said["info"].get("actionCount") == "1" and not said["info"].get("runningWorkflows"),
        *("schedule", "describe", *target),
    )
    started = described["info"]["recentActions"][0]["startWorkflowResult"]["workflowId"]
    assert started.startswith("scheduled-")
    assert temporal("workflow", "result", "--workflow-id", started)["result"] == "Hello, Ada!"
    temporal.text("schedule", "toggle", *target, "--pause", "--reason", "a break")
    state = temporal("schedule", "describe", *target)["schedule"]["state"]
    assert (state["paused"], state["notes"]) == (True, "a break")
    temporal.text("schedule", "toggle", *target, "--unpause", "--reason", "on again")
    temporal.text("schedule", "update", *target, "--interval", "12h", *action)
    spec = temporal("schedule", "describe", *target)["schedule"]["spec"]
    assert spec["interval"][0]["interval"] == "43200s"
    temporal.text(
        *("schedule", "backfill", *target, "--overlap-policy", "AllowAll"),
        *("--start-time", "2026-01-01T00:00:00Z", "--end-time", "2026-01-02T00:00:01Z"),
    )
    temporal.until(lambda said: int(said["info"].get("actionCount", 0)) >= 4, "schedule", "describe", *target)
    temporal.until(lambda said: [each["scheduleId"] for each in said] == ["daily"], "schedule", "list")
    temporal.text("schedule", "delete", *target)
    with pytest.raises(CommandFailed, match="not found"):
        temporal("schedule", "describe", *target)


def test_a_batch_ends_many_workflows(temporal: CommandLine) -> None:
    for number in range(5):
        temporal.start("Talk", f"batch-{number}")
    query = "WorkflowId STARTS_WITH 'batch-' AND ExecutionStatus = 'Running'"
    temporal.until(lambda said: said["count"] == "5", "workflow", "count", "--query", query)
    begun = temporal("workflow", "terminate", "--query", query, "--reason", "enough", "--yes")
    job = begun["batchJobId"]
    described = temporal.until(
        lambda said: said["state"] == "BATCH_OPERATION_STATE_COMPLETED", "batch", "describe", "--job-id", job
    )
    assert described["completeOperationCount"] == "5"
    temporal.until(lambda said: int(said.get("count", 0)) == 0, "workflow", "count", "--query", query)
    assert job in {each["jobId"] for each in temporal("batch", "list")}
    with pytest.raises(CommandFailed):
        temporal("batch", "terminate", "--job-id", job, "--reason", "it is over")
