"""Starts: options that are returned, policies for a used workflow id, delay, eager start, bad requests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio import workflow
from temporalio.api.common.v1 import (
    Callback,
    Header,
    Link,
    Payload,
    Payloads,
    SearchAttributes,
    WorkflowType,
)
from temporalio.api.common.v1 import (
    RetryPolicy as RetryPolicyMessage,
)
from temporalio.api.enums.v1 import EventType, HistoryEventFilterType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import OnConflictOptions
from temporalio.api.workflowservice.v1 import (
    DeleteWorkflowExecutionRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.common import (
    Priority,
    RetryPolicy,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)

from tests.history.reference_programs import Fails, Hello
from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, execution, program

ALL_KINDS = TypedSearchAttributes(
    [
        SearchAttributePair(SearchAttributeKey.for_keyword("CustomKeywordField"), "blue"),
        SearchAttributePair(SearchAttributeKey.for_text("CustomTextField"), "some words"),
        SearchAttributePair(SearchAttributeKey.for_int("CustomIntField"), 7),
        SearchAttributePair(SearchAttributeKey.for_float("CustomDoubleField"), 2.5),
        SearchAttributePair(SearchAttributeKey.for_bool("CustomBoolField"), True),
        SearchAttributePair(
            SearchAttributeKey.for_datetime("CustomDatetimeField"), datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
        ),
        SearchAttributePair(SearchAttributeKey.for_keyword_list("CustomKeywordListField"), ["a", "b"]),
    ]
)
HELLO = b'"hello"'


@workflow.defn
class Waits:
    """Ends after a signal."""

    def __init__(self) -> None:
        self._words: list[str] = []

    @workflow.signal
    def say(self, word: str) -> None:
        self._words.append(word)

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: "end" in self._words)
        return self._words


def request(stage: Stage, **fields: Any) -> StartWorkflowExecutionRequest:
    """A raw start request, for fields that the SDK's client does not offer."""
    usual: dict[str, Any] = {
        "namespace": NAMESPACE,
        "workflow_id": stage.id(),
        "workflow_type": WorkflowType(name="Waits"),
        "task_queue": TaskQueue(name=stage.queue),
        "identity": "raw",
        "request_id": "request-1",
    }
    return StartWorkflowExecutionRequest(**(usual | fields))


@program
async def start_plain(stage: Stage) -> Any:
    return await stage.run(Hello.run, "you")


@program
async def start_with_everything(stage: Stage) -> Any:
    return await stage.run(
        Hello.run,
        "you",
        memo={"text": "m", "number": 1, "none": None},
        search_attributes=ALL_KINDS,
        static_summary="a summary",
        static_details="details\nin two lines",
        execution_timeout=timedelta(hours=2),
        run_timeout=timedelta(hours=1),
        task_timeout=timedelta(seconds=20),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(seconds=2),
            backoff_coefficient=3.0,
            maximum_interval=timedelta(seconds=30),
            maximum_attempts=4,
            non_retryable_error_types=["A", "B"],
        ),
        priority=Priority(priority_key=2, fairness_key="tenant", fairness_weight=1.5),
    )


@program
async def start_run_timeout_is_cut_to_the_executions(stage: Stage) -> Any:
    return await stage.run(
        Hello.run, "x", execution_timeout=timedelta(minutes=1), run_timeout=timedelta(hours=1),
        task_timeout=timedelta(minutes=10), retry_policy=RetryPolicy(),
    )  # fmt: skip


@program
async def start_raw_with_header_and_links(stage: Stage) -> Any:
    link = Link(
        workflow_event=Link.WorkflowEvent(
            namespace=NAMESPACE, workflow_id="other", run_id="11111111-1111-4111-8111-111111111111",
            event_ref=Link.WorkflowEvent.EventReference(
                event_id=1, event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED
            ),
        )
    )  # fmt: skip
    value = Payload(metadata={"encoding": b"json/plain"}, data=HELLO)
    answer = await stage.service.start_workflow_execution(
        request(
            stage,
            header=Header(fields={"trace": value}),
            links=[link],
            workflow_type=WorkflowType(name="Hello"),
            input=Payloads(payloads=[value]),
        )
    )
    stage.note("answer", answer)
    stage.saw(stage.id(), answer.run_id)
    return await stage.outcome(stage.client.get_workflow_handle(stage.id()).result())


@program
async def start_twice_with_one_request_id(stage: Stage) -> None:
    for _ in range(2):
        answer = await stage.service.start_workflow_execution(request(stage))
        stage.note("answer", answer)
        stage.saw(stage.id(), answer.run_id)
    handle = stage.client.get_workflow_handle(stage.id())
    await stage.idle(handle)
    await handle.signal("say", "end")
    await handle.result()
    # A repeated request returns the same run id even after the run is closed.
    answer = await stage.service.start_workflow_execution(request(stage))
    stage.note("after its end", answer)
    stage.saw(stage.id(), answer.run_id)


async def _reuse(stage: Stage, policy: WorkflowIDReusePolicy, *, fails: bool) -> None:
    first: Any = (Fails.run, 9) if fails else (Hello.run, "first")
    stage.note("first", await stage.run(*first))
    stage.note("second", await stage.outcome(_start_and_end(stage, policy)))


async def _start_and_end(stage: Stage, policy: WorkflowIDReusePolicy) -> Any:
    handle = await stage.start(Hello.run, "second", id_reuse_policy=policy)
    return await handle.result()


@program
async def reuse_allowed(stage: Stage) -> None:
    await _reuse(stage, WorkflowIDReusePolicy.ALLOW_DUPLICATE, fails=False)


@program
async def reuse_after_failure_only_meets_success(stage: Stage) -> None:
    await _reuse(stage, WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY, fails=False)


@program
async def reuse_after_failure_only_meets_failure(stage: Stage) -> None:
    await _reuse(stage, WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY, fails=True)


@program
async def reuse_rejected(stage: Stage) -> None:
    await _reuse(stage, WorkflowIDReusePolicy.REJECT_DUPLICATE, fails=True)


@program
async def reuse_terminates_the_running(stage: Stage) -> None:
    first = await stage.start(Waits.run)
    await stage.idle(first)
    second = await stage.start(Hello.run, "second", id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING)
    stage.note("second", await stage.outcome(second.result()))


@program
async def conflict_fails(stage: Stage) -> None:
    first = await stage.start(Waits.run)
    await stage.idle(first)
    for policy in (WorkflowIDConflictPolicy.UNSPECIFIED, WorkflowIDConflictPolicy.FAIL):
        call = stage.start(Hello.run, "second", id_conflict_policy=policy)
        stage.note(policy.name, await stage.outcome(call))
    await stage.signal_and_end(first, "say", "end")


@program
async def conflict_uses_the_existing(stage: Stage) -> None:
    first = await stage.start(Waits.run)
    await stage.idle(first)
    second = await stage.start(Waits.run, id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING)
    await second.signal("say", "end")
    stage.note("result", await second.result())


@program
async def conflict_attaches_to_the_existing(stage: Stage) -> None:
    first = await stage.start(Waits.run)
    await stage.idle(first)
    callback = Callback(nexus=Callback.Nexus(url="http://localhost:1/callback", header={"a": "b"}))
    for options in (
        OnConflictOptions(attach_request_id=True),
        OnConflictOptions(attach_request_id=True, attach_completion_callbacks=True, attach_links=True),
    ):
        answer = await stage.outcome(
            stage.service.start_workflow_execution(
                request(
                    stage,
                    request_id="attached-2" if options.attach_links else "attached-1",
                    workflow_id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING.value,
                    on_conflict_options=options,
                    completion_callbacks=[callback] if options.attach_completion_callbacks else [],
                )
            )
        )
        stage.note("attached", answer)
        await stage.idle(first)
    await first.terminate()


@program
async def conflict_terminates_the_existing(stage: Stage) -> None:
    first = await stage.start(Waits.run)
    await stage.idle(first)
    second = await stage.start(Hello.run, "second", id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING)
    stage.note("second", await stage.outcome(second.result()))


@program
async def start_delayed(stage: Stage) -> Any:
    handle = await stage.start(Hello.run, "later", start_delay=timedelta(seconds=1))
    stage.note("while delayed", await stage.describe(stage.id()))
    return await handle.result()


@program
async def start_delay_is_not_ended_by_a_signal(stage: Stage) -> Any:
    handle = await stage.start(Waits.run, start_delay=timedelta(seconds=2))
    await handle.signal("say", "early")
    stage.note("events", len(await stage.events(handle)))
    await handle.signal("say", "end")
    return await handle.result()


@program
async def start_delay_canceled(stage: Stage) -> Any:
    handle = await stage.start(Waits.run, start_delay=timedelta(minutes=10))
    await handle.cancel()
    return await stage.outcome(handle.result())


@program
async def start_delay_terminated(stage: Stage) -> Any:
    handle = await stage.start(Waits.run, start_delay=timedelta(minutes=10))
    await handle.terminate()
    return await stage.outcome(handle.result())


@program
async def start_delayed_with_signal(stage: Stage) -> Any:
    handle = await stage.start(
        Waits.run, start_delay=timedelta(seconds=1), start_signal="say", start_signal_args=["end"]
    )
    return await handle.result()


@program
async def start_eagerly(stage: Stage) -> Any:
    return await stage.run(Hello.run, "at once", request_eager_start=True)


@program
async def start_never_run(stage: Stage) -> None:
    handle = await stage.start(Hello.run, "x", queue=NO_ONE, priority=Priority(priority_key=5))
    stage.note("described", await stage.describe(stage.id()))
    await handle.terminate()


@program
async def start_refused(stage: Stage) -> None:
    """Bad requests get Temporal's code and message."""
    negative = Duration(seconds=-1)
    bad: dict[str, dict[str, Any]] = {
        "no id": {"workflow_id": ""},
        "long id": {"workflow_id": "x" * 1001},
        "no type": {"workflow_type": WorkflowType()},
        "long type": {"workflow_type": WorkflowType(name="x" * 1001)},
        "no queue": {"task_queue": TaskQueue()},
        "long queue": {"task_queue": TaskQueue(name="x" * 1001)},
        "long request id": {"request_id": "x" * 1001},
        "no namespace": {"namespace": ""},
        "unknown namespace": {"namespace": "nowhere"},
        "negative execution timeout": {"workflow_execution_timeout": negative},
        "negative run timeout": {"workflow_run_timeout": negative},
        "negative task timeout": {"workflow_task_timeout": negative},
        "negative delay": {"workflow_start_delay": negative},
        "bad cron": {"cron_schedule": "whenever"},
        "cron and delay": {"cron_schedule": "@every 1h", "workflow_start_delay": Duration(seconds=1)},
        "two policies": {"workflow_id_reuse_policy": 4, "workflow_id_conflict_policy": 1},
        "reject and terminate": {"workflow_id_reuse_policy": 3, "workflow_id_conflict_policy": 3},
        "bad retry coefficient": {"retry_policy": RetryPolicyMessage(backoff_coefficient=0.5)},
        "bad retry interval": {"retry_policy": RetryPolicyMessage(initial_interval=negative)},
        "bad retry maximum": {
            "retry_policy": RetryPolicyMessage(
                initial_interval=Duration(seconds=5), maximum_interval=Duration(seconds=1), backoff_coefficient=1
            )
        },
        "bad retry attempts": {"retry_policy": RetryPolicyMessage(maximum_attempts=-1)},
        "unknown search attribute": {
            "search_attributes": SearchAttributes(
                indexed_fields={"Nope": Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')}
            )
        },
        "search attribute of another type": {
            "search_attributes": SearchAttributes(
                indexed_fields={"CustomIntField": Payload(metadata={"encoding": b"json/plain"}, data=b'"x"')}
            )
        },
    }
    for label, fields in bad.items():
        stage.note(label, await stage.outcome(stage.service.start_workflow_execution(request(stage, **fields))))


@program
async def history_in_its_forms(stage: Stage) -> None:
    """Pages, the close event only, in reverse, and an unknown run."""
    handle = await stage.start(Waits.run)
    await stage.idle(handle)
    await stage.signal(handle, "say", "more")
    await handle.signal("say", "end")
    await handle.result()
    token, pages = b"", []
    for _ in range(20):
        page = await stage.service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=NAMESPACE, execution=execution(stage.id()), maximum_page_size=4, next_page_token=token
            )
        )
        pages += [event.event_id for event in page.history.events]
        token = page.next_page_token
        if not token:
            break
    # The number of events per page depends on how they were written; each event must come exactly once.
    stage.note("in pages", pages)
    closing = GetWorkflowExecutionHistoryRequest(
        namespace=NAMESPACE,
        execution=execution(stage.id()),
        wait_new_event=True,
        history_event_filter_type=HistoryEventFilterType.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
    )
    close = await stage.service.get_workflow_execution_history(closing)
    stage.note("close event", close)
    reverse = await stage.service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(namespace=NAMESPACE, execution=execution(stage.id()))
    )
    stage.note("in reverse", [event.event_id for event in reverse.history.events])
    for label, workflow_id, run_id in (
        ("unknown run", stage.id(), "11111111-1111-4111-8111-111111111111"),
        ("bad run", stage.id(), "not-an-id"),
        ("unknown workflow", stage.id("unknown"), ""),
        ("no workflow", "", ""),
    ):
        ask = GetWorkflowExecutionHistoryRequest(namespace=NAMESPACE, execution=execution(workflow_id, run_id))
        stage.note(f"history of {label}", await stage.outcome(stage.service.get_workflow_execution_history(ask)))
        stage.note(f"description of {label}", await stage.outcome(stage.describe(workflow_id, run_id)))


@program
async def delete_refused(stage: Stage) -> None:
    """The time of a deletion is uncertain, so only the API errors are compared."""
    for label, target in {
        "missing": execution(stage.id("missing")),
        "no id": execution(""),
        "bad run": execution(stage.id(), "zzz"),
    }.items():
        ask = DeleteWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=target)
        stage.note(label, await stage.outcome(stage.service.delete_workflow_execution(ask)))
