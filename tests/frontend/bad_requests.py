"""Requests with one fault each, by the name of the fault; `api_errors.json` has the reference server's error for each.

Each request is otherwise valid, so that the named fault is its only one, or the first one that a server finds.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.common.v1 import Callback, Link, Memo, Payload, Payloads, Priority, RetryPolicy, WorkflowExecution

RECORDED = Path(__file__).with_name("api_errors.json")
NAMESPACE = "default"
LONG = "x" * 1001
RUN_ID = "0b9fb9f2-7d6b-4a8c-9a53-51a5a3a5f0e1"
BLOB = 2 * 1024 * 1024 + 1
MINUTE = Duration(seconds=60)
NEGATIVE = Duration(seconds=-1)
LARGE = Payloads(payloads=[Payload(data=bytes(BLOB))])
CALLBACK = Callback(nexus=Callback.Nexus(url="http://localhost/there"))
AnyMessage = TypeVar("AnyMessage", bound=Message)
LINK = Link(batch_job=Link.BatchJob(job_id="job"))


def method_of(request: Message) -> str:
    """The method that takes a request of this type."""
    return request.DESCRIPTOR.name.removesuffix("Request")


def event_link(**fields: object) -> Link:
    """A link to an event, valid except for `fields`."""
    given = {"namespace": NAMESPACE, "workflow_id": "other", "run_id": RUN_ID, **fields}
    return Link(workflow_event=Link.WorkflowEvent(**given))  # type: ignore[arg-type]


def start(**fields: object) -> api.StartWorkflowExecutionRequest:
    """A start request, valid except for `fields`."""
    request = api.StartWorkflowExecutionRequest(namespace=NAMESPACE, workflow_id="bad-requests", identity="me")
    request.workflow_type.name = "type"
    request.task_queue.name = "queue"
    return changed(request, fields)


def signal_with_start(**fields: object) -> api.SignalWithStartWorkflowExecutionRequest:
    """A signal-with-start request, valid except for `fields`."""
    request = api.SignalWithStartWorkflowExecutionRequest(
        namespace=NAMESPACE, workflow_id="bad-requests", signal_name="signal"
    )
    request.workflow_type.name = "type"
    request.task_queue.name = "queue"
    return changed(request, fields)


def update(**fields: object) -> api.UpdateWorkflowExecutionRequest:
    """An update request, valid except for `fields`."""
    request = api.UpdateWorkflowExecutionRequest(namespace=NAMESPACE)
    request.workflow_execution.workflow_id = "bad-requests"
    request.request.meta.update_id = "update"
    request.request.input.name = "update"
    return changed(request, fields)


def query(**fields: object) -> api.QueryWorkflowRequest:
    """A query request, valid except for `fields`."""
    request = api.QueryWorkflowRequest(namespace=NAMESPACE)
    request.execution.workflow_id = "bad-requests"
    request.query.query_type = "query"
    return changed(request, fields)


def multi(
    first: api.StartWorkflowExecutionRequest | None = None, second: api.UpdateWorkflowExecutionRequest | None = None
) -> api.ExecuteMultiOperationRequest:
    """An update-with-start of the two given requests; valid ones by default."""
    operation = api.ExecuteMultiOperationRequest.Operation
    return api.ExecuteMultiOperationRequest(
        namespace=NAMESPACE,
        operations=[
            operation(start_workflow=first or start()),
            operation(update_workflow=second or update()),
        ],
    )


def changed(request: AnyMessage, fields: dict[str, object]) -> AnyMessage:
    """`request` with these fields set, and those that are None removed; `part__field` names a field of a part."""
    for path, value in fields.items():
        *parts, name = path.split("__")
        owner: Message = request
        for part in parts:
            owner = getattr(owner, part)
        owner.ClearField(name)
        if value is not None:
            owner.MergeFrom(type(owner)(**{name: value}))
    return request


def execution(**fields: object) -> WorkflowExecution:
    """The workflow that most requests name."""
    return changed(WorkflowExecution(workflow_id="bad-requests"), fields)


def about_runs() -> Iterator[tuple[str, Message]]:
    """Invalid forms of every request about one run."""
    kinds: tuple[tuple[type[Message], str, dict[str, object]], ...] = (
        (api.SignalWorkflowExecutionRequest, "workflow_execution", {"signal_name": "signal"}),
        (api.RequestCancelWorkflowExecutionRequest, "workflow_execution", {}),
        (api.TerminateWorkflowExecutionRequest, "workflow_execution", {}),
        (api.DeleteWorkflowExecutionRequest, "workflow_execution", {}),
        (api.ResetWorkflowExecutionRequest, "workflow_execution", {"request_id": "id"}),
        (api.DescribeWorkflowExecutionRequest, "execution", {}),
        (api.GetWorkflowExecutionHistoryRequest, "execution", {}),
        (api.GetWorkflowExecutionHistoryReverseRequest, "execution", {}),
        (api.QueryWorkflowRequest, "execution", {"query": query().query}),
        (api.UpdateWorkflowExecutionRequest, "workflow_execution", {"request": update().request}),
        (api.UpdateWorkflowExecutionOptionsRequest, "workflow_execution", {}),
        (api.PollWorkflowExecutionUpdateRequest, "update_ref", {}),
        (api.PauseActivityRequest, "execution", {"id": "a"}),
        (api.UnpauseActivityRequest, "execution", {"id": "a"}),
        (api.ResetActivityRequest, "execution", {"id": "a"}),
        (api.UpdateActivityOptionsRequest, "execution", {"id": "a"}),
        (api.ResetStickyTaskQueueRequest, "execution", {}),
    )
    for kind, field, fields in kinds:
        name = kind.DESCRIPTOR.name.removesuffix("Request")
        if field != "update_ref":
            yield f"{name}: empty", changed(kind(), {"namespace": NAMESPACE})
            for title, wrong in (
                ("no execution", None),
                ("no workflow id", WorkflowExecution(run_id=RUN_ID)),
                ("run id is no UUID", WorkflowExecution(workflow_id="bad-requests", run_id="run")),
                ("long workflow id", WorkflowExecution(workflow_id=LONG)),
            ):
                yield f"{name}: {title}", changed(kind(), {"namespace": NAMESPACE, field: wrong, **fields})
        right_one = {} if field == "update_ref" else {field: execution()}
        yield f"{name}: unknown namespace", changed(kind(), {"namespace": "nowhere", **right_one, **fields})
        yield f"{name}: no namespace", changed(kind(), {**right_one, **fields})


def about_starts() -> Iterator[tuple[str, Message]]:
    """Invalid starts, with and without a signal."""
    cases: dict[str, dict[str, object]] = {
        "no namespace": {"namespace": ""},
        "unknown namespace": {"namespace": "nowhere"},
        "long namespace": {"namespace": LONG},
        "no workflow id": {"workflow_id": ""},
        "long workflow id": {"workflow_id": LONG},
        "workflow id of too many bytes": {"workflow_id": "ä" * 501},
        "no type": {"workflow_type": None},
        "long type": {"workflow_type__name": LONG},
        "no task queue": {"task_queue": None},
        "empty task queue": {"task_queue__name": ""},
        "long task queue": {"task_queue__name": LONG},
        "reserved task queue": {"task_queue__name": "/_sys/queue/1"},
        "sticky task queue": {"task_queue__kind": 2},
        "negative execution timeout": {"workflow_execution_timeout": NEGATIVE},
        "negative run timeout": {"workflow_run_timeout": NEGATIVE},
        "negative task timeout": {"workflow_task_timeout": NEGATIVE},
        "timeout of mixed signs": {"workflow_run_timeout": Duration(seconds=1, nanos=-1)},
        "timeout of too many nanoseconds": {"workflow_run_timeout": Duration(seconds=1, nanos=1_000_000_000)},
        "negative start delay": {"workflow_start_delay": NEGATIVE},
        "long request id": {"request_id": LONG},
        "retry coefficient below 1": {"retry_policy": RetryPolicy(backoff_coefficient=0.5)},
        "negative initial interval": {"retry_policy": RetryPolicy(initial_interval=NEGATIVE)},
        "negative maximum interval": {"retry_policy": RetryPolicy(maximum_interval=NEGATIVE)},
        "maximum interval below initial": {
            "retry_policy": RetryPolicy(initial_interval=MINUTE, maximum_interval=Duration(seconds=1))
        },
        "negative attempts": {"retry_policy": RetryPolicy(maximum_attempts=-1)},
        "bad timeout type": {"retry_policy": RetryPolicy(non_retryable_error_types=["TemporalTimeout:Some"])},
        "cron and delay": {"cron_schedule": "* * * * *", "workflow_start_delay": MINUTE},
        "cron of four fields": {"cron_schedule": "* * * *"},
        "cron descriptor": {"cron_schedule": "@often"},
        "cron duration": {"cron_schedule": "@every blue moon"},
        "cron text": {"cron_schedule": "a * * * *"},
        "cron out of range": {"cron_schedule": "61 * * * *"},
        "cron time zone": {"cron_schedule": "CRON_TZ=Nowhere/City * * * * *"},
        "terminate if running with conflict policy": {
            "workflow_id_reuse_policy": 4,
            "workflow_id_conflict_policy": 2,
        },
        "reject duplicate with terminate existing": {
            "workflow_id_reuse_policy": 3,
            "workflow_id_conflict_policy": 3,
        },
        "unknown reuse policy": {"workflow_id_reuse_policy": 99},
        "unknown conflict policy": {"workflow_id_conflict_policy": 99},
        "negative priority": {"priority": Priority(priority_key=-1)},
        "priority above 5": {"priority": Priority(priority_key=6)},
        "long fairness key": {"priority": Priority(fairness_key="k" * 65)},
        "negative fairness weight": {"priority": Priority(fairness_weight=-1.0)},
        "large fairness weight": {"priority": Priority(fairness_weight=1e9)},
        "search attribute unknown": {"search_attributes__indexed_fields": {"Nothing": Payload(data=b"1")}},
        "search attribute of the system": {"search_attributes__indexed_fields": {"RunId": Payload(data=b'"x"')}},
        "large input": {"input": LARGE},
        "large memo": {"memo": Memo(fields={"m": LARGE.payloads[0]})},
        "input and memo large together": {
            "input": Payloads(payloads=[Payload(data=bytes(BLOB // 2 + 10))]),
            "memo": Memo(fields={"m": Payload(data=bytes(BLOB // 2 + 10))}),
        },
        "large header": {"header__fields": {"h": LARGE.payloads[0]}},
        "long summary": {"user_metadata__summary": Payload(data=bytes(401))},
        "long details": {"user_metadata__details": Payload(data=bytes(20_001))},
        "too many links": {"links": [LINK] * 11},
        "large link": {"links": [event_link(workflow_id="w" * 4000)]},
        "link without namespace": {"links": [event_link(namespace="")]},
        "link without workflow id": {"links": [event_link(workflow_id="")]},
        "link without run id": {"links": [event_link(run_id="")]},
        "link to an event of no type": {"links": [event_link(event_ref=Link.WorkflowEvent.EventReference(event_id=3))]},
        "link to a job without id": {"links": [Link(batch_job=Link.BatchJob())]},
        "link to nothing": {"links": [Link()]},
        "override without behavior": {"versioning_override__pinned_version": "a.b"},
        "pinned override without version": {"versioning_override__behavior": 1},
        "long identity": {"identity": LONG},
        "long pinned override": {"versioning_override__pinned__behavior": 1},
    }
    only_start: dict[str, dict[str, object]] = {
        "callbacks without request id": {"on_conflict_options__attach_completion_callbacks": True},
        "too many callbacks": {"completion_callbacks": [CALLBACK] * 33},
        "many callbacks": {"completion_callbacks": [CALLBACK] * 2001},
        "callback of no kind": {"completion_callbacks": [Callback()]},
        "callback url long": {"completion_callbacks": [Callback(nexus=Callback.Nexus(url="http://h/" + "u" * 1000))]},
        "callback url without host": {"completion_callbacks": [Callback(nexus=Callback.Nexus(url="http:///there"))]},
        "callback url of another scheme": {"completion_callbacks": [Callback(nexus=Callback.Nexus(url="ftp://h/x"))]},
        "callback url refused": {"completion_callbacks": [Callback(nexus=Callback.Nexus(url="http://example.com/x"))]},
        "callback without url": {"completion_callbacks": [Callback(nexus=Callback.Nexus())]},
        "callback header large": {
            "completion_callbacks": [Callback(nexus=Callback.Nexus(url="temporal://system", header={"h": "v" * 9000}))]
        },
        "callback link": {"completion_callbacks": [Callback(nexus=CALLBACK.nexus, links=[Link()])]},
        "links of callbacks and own": {
            "links": [LINK] * 6,
            "completion_callbacks": [Callback(nexus=CALLBACK.nexus, links=[event_link()] * 5)],
        },
    }
    for name, fields in {**cases, **only_start}.items():
        yield f"StartWorkflowExecution: {name}", start(**fields)
    only_signal: dict[str, dict[str, object]] = {
        "no signal name": {"signal_name": ""},
        "long signal name": {"signal_name": LONG},
        "conflict policy fail": {"workflow_id_conflict_policy": 1},
        "large signal": {"signal_input": LARGE},
    }
    for name, fields in {**cases, **only_signal}.items():
        yield f"SignalWithStartWorkflowExecution: {name}", signal_with_start(**fields)
    # Requests with two faults: the order of the checks decides which one the error names.
    yield (
        "StartWorkflowExecution: type and retry",
        start(workflow_type=None, retry_policy=RetryPolicy(maximum_attempts=-1)),
    )
    yield (
        "SignalWithStartWorkflowExecution: type and retry",
        signal_with_start(workflow_type=None, retry_policy=RetryPolicy(maximum_attempts=-1)),
    )
    yield "StartWorkflowExecution: queue and cron", start(task_queue=None, cron_schedule="x")
    yield "SignalWithStartWorkflowExecution: queue and cron", signal_with_start(task_queue=None, cron_schedule="x")
    yield "StartWorkflowExecution: nothing set", api.StartWorkflowExecutionRequest()
    yield "StartWorkflowExecution: unknown namespace and no id", start(namespace="nowhere", workflow_id="")


def about_clients() -> Iterator[tuple[str, Message]]:
    """Invalid forms of the other requests of clients."""
    target = {"namespace": NAMESPACE, "workflow_execution": execution()}
    signals: dict[str, dict[str, object]] = {
        "no name": {"signal_name": ""},
        "long name": {"signal_name": LONG},
        "long request id": {"request_id": LONG},
        "large input": {"input": LARGE},
        "too many links": {"links": [LINK] * 11},
    }
    for name, fields in signals.items():
        request = api.SignalWorkflowExecutionRequest(signal_name="s", **target)  # type: ignore[arg-type]
        yield f"SignalWorkflowExecution: {name}", changed(request, fields)
    for kind in (api.RequestCancelWorkflowExecutionRequest, api.TerminateWorkflowExecutionRequest):
        name = kind.DESCRIPTOR.name.removesuffix("Request")
        yield f"{name}: link", changed(kind(), {**target, "links": [Link()]})
        yield f"{name}: long reason", changed(kind(), {**target, "reason": "x" * BLOB})
        yield f"{name}: long identity", changed(kind(), {**target, "identity": LONG})
    yield (
        "RequestCancelWorkflowExecution: long request id",
        changed(api.RequestCancelWorkflowExecutionRequest(), {**target, "request_id": LONG}),
    )
    yield (
        "TerminateWorkflowExecution: large details",
        changed(api.TerminateWorkflowExecutionRequest(), {**target, "details": LARGE}),
    )
    reset = api.ResetWorkflowExecutionRequest
    yield "ResetWorkflowExecution: no request id", changed(reset(), target)
    yield "ResetWorkflowExecution: long request id", changed(reset(), {**target, "request_id": LONG})
    yield (
        "ResetWorkflowExecution: unknown reapply type",
        changed(reset(), {**target, "request_id": "r", "reset_reapply_type": 9}),
    )
    yield (
        "ResetWorkflowExecution: negative event id",
        changed(reset(), {**target, "request_id": "r", "workflow_task_finish_event_id": -1}),
    )
    queries: dict[str, dict[str, object]] = {
        "no query": {"query": None},
        "no type": {"query__query_type": ""},
        "long type": {"query__query_type": LONG},
        "large arguments": {"query__query_args": LARGE},
        "unknown condition": {"query_reject_condition": 9},
    }
    for name, fields in queries.items():
        yield f"QueryWorkflow: {name}", query(**fields)
    updates: dict[str, dict[str, object]] = {
        "no request": {"request": None},
        "no meta": {"request__meta": None},
        "long update id": {"request__meta__update_id": LONG},
        "no input": {"request__input": None},
        "no name": {"request__input__name": ""},
        "waits for admission": {"wait_policy__lifecycle_stage": 1},
        "large input": {"request__input__args": LARGE},
        "first run id": {"first_execution_run_id": "run"},
        "unknown stage": {"wait_policy__lifecycle_stage": 9},
    }
    for name, fields in updates.items():
        yield f"UpdateWorkflowExecution: {name}", update(**fields)
    poll = api.PollWorkflowExecutionUpdateRequest
    polls: dict[str, dict[str, object]] = {
        "no ref": {},
        "empty ref": {"update_ref__update_id": ""},
        "no execution": {"update_ref__update_id": "u"},
        "no workflow id": {"update_ref__update_id": "u", "update_ref__workflow_execution": WorkflowExecution()},
        "run id is no UUID": {
            "update_ref__update_id": "u",
            "update_ref__workflow_execution": execution(run_id="run"),
        },
        "no update id": {"update_ref__workflow_execution": execution()},
    }
    for name, fields in polls.items():
        yield f"PollWorkflowExecutionUpdate: {name}", changed(poll(namespace=NAMESPACE), fields)
    options = api.UpdateWorkflowExecutionOptionsRequest
    yield "UpdateWorkflowExecutionOptions: no mask", changed(options(), target)
    yield (
        "UpdateWorkflowExecutionOptions: no options",
        changed(options(), {**target, "update_mask__paths": ["priority"]}),
    )
    yield (
        "UpdateWorkflowExecutionOptions: unknown path",
        changed(
            options(), {**target, "update_mask__paths": ["nothing"], "workflow_execution_options__priority": Priority()}
        ),
    )
    yield (
        "UpdateWorkflowExecutionOptions: unknown path within",
        changed(
            options(),
            {**target, "update_mask__paths": ["priority.nothing"], "workflow_execution_options__priority": Priority()},
        ),
    )
    yield (
        "UpdateWorkflowExecutionOptions: priority",
        changed(
            options(),
            {
                **target,
                "update_mask__paths": ["priority"],
                "workflow_execution_options__priority": Priority(priority_key=-1),
            },
        ),
    )
    yield (
        "UpdateWorkflowExecutionOptions: override",
        changed(
            options(),
            {
                **target,
                "update_mask__paths": ["versioning_override"],
                "workflow_execution_options__versioning_override__behavior": 1,
            },
        ),
    )
    pauses: tuple[type[Message], ...] = (api.PauseWorkflowExecutionRequest, api.UnpauseWorkflowExecutionRequest)
    for pause in pauses:
        name = pause.DESCRIPTOR.name.removesuffix("Request")
        for title, wrong in {
            "no workflow id": {"workflow_id": ""},
            "long workflow id": {"workflow_id": LONG},
            "run id is no UUID": {"run_id": "run"},
            "long reason": {"reason": LONG},
            "long request id": {"request_id": LONG},
            "long identity": {"identity": LONG},
            "unknown namespace": {"namespace": "nowhere"},
        }.items():
            yield f"{name}: {title}", changed(pause(), {"namespace": NAMESPACE, "workflow_id": "bad-requests", **wrong})
    activity: dict[str, object] = {"namespace": NAMESPACE, "execution": execution()}
    controls: tuple[type[Message], ...] = (
        api.PauseActivityRequest,
        api.UnpauseActivityRequest,
        api.ResetActivityRequest,
        api.UpdateActivityOptionsRequest,
    )
    for control in controls:
        name = control.DESCRIPTOR.name.removesuffix("Request")
        yield f"{name}: no activity", changed(control(), activity)
        yield f"{name}: empty activity id", changed(control(), {**activity, "id": ""})
    yield "PauseActivity: long reason", changed(api.PauseActivityRequest(), {**activity, "id": "a", "reason": LONG})
    yield "PauseActivity: long identity", changed(api.PauseActivityRequest(), {**activity, "id": "a", "identity": LONG})
    yield (
        "PauseActivity: long request id",
        changed(api.PauseActivityRequest(), {**activity, "id": "a", "request_id": LONG}),
    )
    yield (
        "UpdateActivityOptions: priority",
        changed(
            api.UpdateActivityOptionsRequest(),
            {
                **activity,
                "id": "a",
                "activity_options__priority": Priority(priority_key=-1),
                "update_mask__paths": ["priority"],
            },
        ),
    )
    yield (
        "UpdateActivityOptions: unknown path",
        changed(
            api.UpdateActivityOptionsRequest(),
            {**activity, "id": "a", "activity_options__heartbeat_timeout": MINUTE, "update_mask__paths": ["nothing"]},
        ),
    )
    yield (
        "UpdateActivityOptions: no mask",
        changed(
            api.UpdateActivityOptionsRequest(), {**activity, "id": "a", "activity_options__heartbeat_timeout": MINUTE}
        ),
    )
    yield (
        "UpdateActivityOptions: restore with options",
        changed(
            api.UpdateActivityOptionsRequest(),
            {
                **activity,
                "id": "a",
                "activity_options__heartbeat_timeout": MINUTE,
                "update_mask__paths": ["heartbeat_timeout"],
                "restore_original": True,
            },
        ),
    )
    history = api.GetWorkflowExecutionHistoryRequest
    yield (
        "GetWorkflowExecutionHistory: bad token",
        changed(history(), {"namespace": NAMESPACE, "execution": execution(), "next_page_token": b"x"}),
    )
    yield (
        "GetWorkflowExecutionHistoryReverse: bad token",
        changed(
            api.GetWorkflowExecutionHistoryReverseRequest(),
            {"namespace": NAMESPACE, "execution": execution(), "next_page_token": b"x"},
        ),
    )


def about_multi() -> Iterator[tuple[str, Message]]:
    """Invalid update-with-start requests."""
    yield "ExecuteMultiOperation: no operations", api.ExecuteMultiOperationRequest(namespace=NAMESPACE)
    yield "ExecuteMultiOperation: unknown namespace", changed(multi(), {"namespace": "nowhere"})
    yield "ExecuteMultiOperation: no namespace", changed(multi(), {"namespace": ""})
    swapped = multi()
    swapped.operations.reverse()
    yield "ExecuteMultiOperation: swapped", swapped
    three = multi()
    three.operations.append(three.operations[1])
    yield "ExecuteMultiOperation: three", three
    empty = multi()
    empty.operations[0].Clear()
    yield "ExecuteMultiOperation: an empty one", empty
    yield "ExecuteMultiOperation: other workflow id", multi(start(workflow_id="another"))
    yield "ExecuteMultiOperation: cron", multi(start(cron_schedule="* * * * *"))
    yield "ExecuteMultiOperation: eager", multi(start(request_eager_execution=True))
    yield "ExecuteMultiOperation: delay", multi(start(workflow_start_delay=MINUTE))
    yield "ExecuteMultiOperation: bad start", multi(start(workflow_type=None))
    yield "ExecuteMultiOperation: bad update", multi(None, update(request__input=None))
    yield "ExecuteMultiOperation: both bad", multi(start(workflow_type=None), update(request__input=None))
    yield "ExecuteMultiOperation: run id", multi(None, update(workflow_execution__run_id=RUN_ID))
    yield "ExecuteMultiOperation: first run id", multi(None, update(first_execution_run_id=RUN_ID))
    yield "ExecuteMultiOperation: namespace of an operation", multi(start(namespace="another"))
    yield "ExecuteMultiOperation: namespace of the update", multi(None, update(namespace="another"))
    yield "ExecuteMultiOperation: large input", multi(start(input=LARGE))
    yield "ExecuteMultiOperation: large update", multi(None, update(request__input__args=LARGE))


def about_workers() -> Iterator[tuple[str, Message]]:
    """Invalid requests of workers."""
    kinds: tuple[type[Message], ...] = (api.PollWorkflowTaskQueueRequest, api.PollActivityTaskQueueRequest)
    for kind in kinds:
        name = kind.DESCRIPTOR.name.removesuffix("Request")
        wrong_polls: dict[str, dict[str, object]] = {
            "no namespace": {"namespace": ""},
            "unknown namespace": {"namespace": "nowhere"},
            "no task queue": {"task_queue": None},
            "empty task queue": {"task_queue__name": ""},
            "long task queue": {"task_queue__name": LONG},
            "partition": {"task_queue__name": "/_sys/queue/1"},
            "reserved": {"task_queue__name": "/_sys/queue"},
            "reserved normal name": {"task_queue__kind": 2, "task_queue__normal_name": "/_sys/queue"},
            "long normal name": {"task_queue__kind": 2, "task_queue__normal_name": LONG},
            "long identity": {"identity": LONG},
            "long identity and task queue": {"identity": LONG, "task_queue__name": ""},
            "versioning without build id": {"worker_version_capabilities__use_versioning": True},
            "long build id": {"worker_version_capabilities__build_id": "b" * 256},
            "versioned without name": {"deployment_options__worker_versioning_mode": 2},
            "long deployment name": {
                "deployment_options__worker_versioning_mode": 2,
                "deployment_options__build_id": "b",
                "deployment_options__deployment_name": LONG,
            },
            "deployment name with a dot": {
                "deployment_options__worker_versioning_mode": 2,
                "deployment_options__build_id": "b",
                "deployment_options__deployment_name": "a.b",
            },
            "deployment name with a colon": {
                "deployment_options__worker_versioning_mode": 2,
                "deployment_options__build_id": "b",
                "deployment_options__deployment_name": "a:b",
            },
            "deployment name reserved": {
                "deployment_options__worker_versioning_mode": 2,
                "deployment_options__build_id": "b",
                "deployment_options__deployment_name": "__a",
            },
            "sticky without normal name, versioned": {
                "task_queue__kind": 2,
                "deployment_options__worker_versioning_mode": 2,
                "deployment_options__build_id": "b",
                "deployment_options__deployment_name": "a",
            },
        }
        for title, fields in wrong_polls.items():
            request = changed(
                kind(), {"namespace": NAMESPACE, "identity": "me", "task_queue__name": "queue", "task_queue__kind": 1}
            )
            yield f"{name}: {title}", changed(request, fields)
    by_token: tuple[type[Message], ...] = (
        api.RespondWorkflowTaskCompletedRequest, api.RespondWorkflowTaskFailedRequest,
        api.RecordActivityTaskHeartbeatRequest, api.RespondActivityTaskCompletedRequest,
        api.RespondActivityTaskFailedRequest, api.RespondActivityTaskCanceledRequest,
        api.RespondQueryTaskCompletedRequest,
    )  # fmt: skip
    for kind in by_token:
        name = kind.DESCRIPTOR.name.removesuffix("Request")
        yield f"{name}: no token", changed(kind(), {"namespace": NAMESPACE})
        yield f"{name}: no token and no namespace", kind()
        yield f"{name}: bad token", changed(kind(), {"namespace": NAMESPACE, "task_token": b"not a token"})
        yield f"{name}: bad token and no namespace", changed(kind(), {"task_token": b"not a token"})
        yield f"{name}: unknown namespace", changed(kind(), {"namespace": "nowhere"})
        yield f"{name}: bad token, unknown namespace", changed(kind(), {"namespace": "nowhere", "task_token": b"x"})
    completed = api.RespondWorkflowTaskCompletedRequest
    yield (
        "RespondWorkflowTaskCompleted: long identity",
        changed(completed(), {"namespace": NAMESPACE, "task_token": b"not a token", "identity": LONG}),
    )
    by_id: tuple[type[Message], ...] = (
        api.RecordActivityTaskHeartbeatByIdRequest, api.RespondActivityTaskCompletedByIdRequest,
        api.RespondActivityTaskFailedByIdRequest, api.RespondActivityTaskCanceledByIdRequest,
    )  # fmt: skip
    for kind in by_id:
        name = kind.DESCRIPTOR.name.removesuffix("Request")
        yield f"{name}: no activity id", changed(kind(), {"namespace": NAMESPACE, "workflow_id": "bad-requests"})
        yield (
            f"{name}: unknown namespace",
            changed(kind(), {"namespace": "nowhere", "workflow_id": "w", "activity_id": "a"}),
        )
        yield f"{name}: no namespace", changed(kind(), {"workflow_id": "w", "activity_id": "a"})
        yield (
            f"{name}: long identity",
            changed(kind(), {"namespace": NAMESPACE, "workflow_id": "w", "activity_id": "a", "identity": LONG}),
        )
        yield (
            f"{name}: run id is no UUID",
            changed(kind(), {"namespace": NAMESPACE, "workflow_id": "w", "activity_id": "a", "run_id": "run"}),
        )
        yield (
            f"{name}: long workflow id",
            changed(kind(), {"namespace": NAMESPACE, "workflow_id": LONG, "activity_id": "a"}),
        )
        yield (
            f"{name}: long activity id",
            changed(kind(), {"namespace": NAMESPACE, "workflow_id": "w", "activity_id": LONG}),
        )
    yield "ShutdownWorker: unknown namespace", api.ShutdownWorkerRequest(namespace="nowhere", sticky_task_queue="s")
    yield "ShutdownWorker: no namespace", api.ShutdownWorkerRequest(sticky_task_queue="s")
    yield "ShutdownWorker: no sticky task queue", api.ShutdownWorkerRequest(namespace=NAMESPACE)
    yield (
        "ShutdownWorker: reserved sticky task queue",
        api.ShutdownWorkerRequest(namespace=NAMESPACE, sticky_task_queue="/_sys/x"),
    )
    yield "RecordWorkerHeartbeat: unknown namespace", api.RecordWorkerHeartbeatRequest(namespace="nowhere")
    yield "RecordWorkerHeartbeat: none", api.RecordWorkerHeartbeatRequest(namespace=NAMESPACE)
    yield "ListWorkers: unknown namespace", api.ListWorkersRequest(namespace="nowhere")
    for title, text in {
        "bad query": "Nothing = 'x'",
        "query that is no query": "what is this",
        "query of another operator": "TaskQueue > 'x'",
        "query with IN": "TaskQueue IN ('x', 'y')",
        "query with STARTS_WITH": "TaskQueue STARTS_WITH 'x'",
        "query with a number": "TaskQueue = 3",
        "query with LIKE": "TaskQueue LIKE 'x%'",
        "query with NOT": "NOT TaskQueue = 'x'",
        "query with BETWEEN": "StartTime BETWEEN '2024-01-01T00:00:00Z' AND '2025-01-01T00:00:00Z'",
        "query with an order": "TaskQueue = 'x' ORDER BY TaskQueue",
        "query with a bad time": "StartTime > 'now'",
        "query with a status": "Status = 'Running'",
        "query with an unknown status": "Status = 'Sleeping'",
    }.items():
        yield f"ListWorkers: {title}", api.ListWorkersRequest(namespace=NAMESPACE, query=text)
    yield "ListWorkers: bad token", api.ListWorkersRequest(namespace=NAMESPACE, next_page_token=b"x")
    yield "ListWorkers: negative page size", api.ListWorkersRequest(namespace=NAMESPACE, page_size=-1)
    yield "CountWorkers: unknown namespace", api.CountWorkersRequest(namespace="nowhere")
    yield "CountWorkers: bad query", api.CountWorkersRequest(namespace=NAMESPACE, query="Nothing = 'x'")
    yield "DescribeWorker: unknown worker", api.DescribeWorkerRequest(namespace=NAMESPACE, worker_instance_key="k")
    yield "DescribeWorker: no key", api.DescribeWorkerRequest(namespace=NAMESPACE)
    yield "DescribeWorker: unknown namespace", api.DescribeWorkerRequest(namespace="nowhere", worker_instance_key="k")
    yield "FetchWorkerConfig: any", api.FetchWorkerConfigRequest(namespace=NAMESPACE)
    yield "UpdateWorkerConfig: any", api.UpdateWorkerConfigRequest(namespace=NAMESPACE)
    yield (
        "UpdateWorkerConfig: with config",
        changed(api.UpdateWorkerConfigRequest(namespace=NAMESPACE), {"worker_config__workflow_cache_size": 3}),
    )


def all_requests() -> Iterator[tuple[str, Message]]:
    """All invalid requests."""
    yield from about_starts()
    yield from about_runs()
    yield from about_clients()
    yield from about_multi()
    yield from about_workers()
