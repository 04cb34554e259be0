"""Requests for every HTTP binding, in an order in which most of them find an object to act on.

Each request is sent to all bindings of its method. `{n}` in a name is the number of the binding, for requests that must
not act on the same object.
"""

import base64
from dataclasses import dataclass, field
from typing import Any


def long_payload(encoding: str, data: bytes, **metadata: str) -> dict[str, Any]:
    """A payload in its long form."""
    texts = {"encoding": encoding, **metadata}
    return {
        "metadata": {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()},
        "data": base64.b64encode(data).decode(),
    }


@dataclass(frozen=True)
class Ask:
    """A request for a method: the variables of the path, the query, the body.

    `differs` is the reason why the bodies of the responses differ, and `without` names the members that differ (`name`,
    or `parent.name`): all others are compared, in their order. A reason that begins with "status" means that the
    statuses differ, too; then nothing is compared. `is_unordered` allows any order of lists, `has_more` further
    elements of lists here.
    """

    method: str
    variables: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None
    query: str = ""
    differs: str = ""
    without: tuple[str, ...] = ()
    is_unordered: bool = False
    has_more: bool = False


def ask(
    method: str,
    variables: dict[str, str] | None = None,
    body: Any = None,
    query: str = "",
    *,
    differs: str = "",
    without: tuple[str, ...] = (),
    is_unordered: bool = False,
    has_more: bool = False,
) -> Ask:
    """A request in the namespace `default`."""
    named = {"namespace": "default", **(variables or {})}
    return Ask(method, named, body, query, differs, without, is_unordered, has_more)


START = {"workflowType": {"name": "Type"}, "taskQueue": {"name": "queue"}, "requestId": "request-{n}"}
NAMESPACE = {"workflowExecutionRetentionPeriod": "86400s", "description": "of the test", "ownerEmail": "a@b.c"}
SCHEDULE = {
    "spec": {"interval": [{"interval": "3600s", "phase": "0s"}], "startTime": "2050-01-01T00:00:00Z"},
    "action": {"startWorkflow": {"workflowId": "scheduled", **{k: START[k] for k in ("workflowType", "taskQueue")}}},
    "state": {"notes": "paused", "paused": True},
}
RULE = {
    "id": "rule-{n}",
    "activityStart": {"predicate": "ActivityType = 'x'"},
    "actions": [{"activityPause": {}}],
}
ENDPOINT = {"name": "endpoint-{n}", "target": {"worker": {"namespace": "default", "taskQueue": "nexus"}}}
DEPLOYMENT = {"deployment.series_name": "series", "deployment.build_id": "1"}
VERSION = {"deployment_version.deployment_name": "deployed-{n}", "deployment_version.build_id": "1"}
BY_ID = {"activity_id": "nobody", "workflow_id": "workflow-{n}"}
WORKFLOW = {"execution.workflow_id": "workflow-{n}"}
EXECUTION = {"workflow_execution.workflow_id": "workflow-{n}"}
MISSING = {"workflow_execution.workflow_id": "nobody"}

LIMITS = "the limit of a workflow task's completion is that of a gRPC message here"
LIMIT = ("workflowTaskCompletionSizeLimitError",)
NULLS = "a null payload in a list is null, not an object that the server would not read back"
SCHEDULES = "schedules are not workflows here, so that a missing one is not a missing workflow"
CLOSED = "a closed workflow has no pending workflow task, and its duration is its own"
SUMMARIES = ("latestVersionSummary", "currentVersionSummary", "rampingVersionSummary")
DEPLOYED = "a deployment is changed at once here, and by a workflow of the server there"

REQUESTS = (
    # System.
    ask(
        "GetSystemInfo",
        differs="there are no server-scaled deployments here",
        without=("serverScaledDeployments",),
    ),
    ask("ListSearchAttributes"),
    # Namespaces.
    ask("RegisterNamespace", body={"namespace": "made-{n}", **NAMESPACE}),
    ask("RegisterNamespace", body={"namespace": "default", **NAMESPACE}),
    ask("RegisterNamespace", body={"namespace": "", **NAMESPACE}),
    Ask("DescribeNamespace", {"namespace": "made-{n}"}, differs=LIMITS, without=LIMIT),
    Ask("DescribeNamespace", {"namespace": "nobody"}),
    Ask(
        "UpdateNamespace",
        {"namespace": "made-{n}"},
        {"updateInfo": {"description": "changed", "data": {"b": "1", "a": "2"}}},
        differs=LIMITS,
        without=LIMIT,
    ),
    Ask("UpdateNamespace", {"namespace": "nobody"}, {}),
    ask(
        "ListNamespaces",
        query="pageSize=1&namespaceFilter.includeDeleted=true",
        differs="the order of namespaces has no meaning",
        without=("namespaces",),
    ),
    # The reference stores its own namespace without a state of replication.
    ask(
        "ListNamespaces",
        query="pageSize=100",
        differs=LIMITS,
        without=(*LIMIT, "replicationConfig.state"),
        is_unordered=True,
    ),
    # Workflows.
    ask(
        "StartWorkflowExecution",
        {"workflow_id": "workflow-{n}"},
        {
            **START,
            "input": [1, "two", True, {"three": [4.5]}],
            "memo": {"fields": {"b": "memo", "a": long_payload("binary/plain", b"\x00\xff")}},
            "workflowRunTimeout": "3600s",
            "header": {"fields": {"h": [1]}},
            "retryPolicy": {"initialInterval": "1s", "backoffCoefficient": 2.5, "maximumAttempts": 3},
            "searchAttributes": {"indexedFields": {"TemporalChangeVersion": ["a-1"]}},
            "userMetadata": {"summary": "a summary", "details": "details"},
            "priority": {"priorityKey": 2, "fairnessKey": "k", "fairnessWeight": 1.5},
        },
    ),
    ask("StartWorkflowExecution", {"workflow_id": "workflow-{n}"}, {**START, "requestId": "another"}),
    ask(
        "StartWorkflowExecution",
        {"workflow_id": "long-{n}"},
        {
            "workflow_type": {"name": "Type"},
            "task_queue": {"name": "queue"},
            "input": {"payloads": [long_payload("binary/encrypted", b"secret", key="1"), 2]},
        },
    ),
    ask("StartWorkflowExecution", {"workflow_id": "null-{n}"}, {**START, "input": [None, 1]}),
    ask("StartWorkflowExecution", {"workflow_id": "bad"}, {"taskQueue": {"name": "queue"}}),
    ask("StartWorkflowExecution", {"workflow_id": "bad"}, {**START, "workflowRunTimeout": "-1s"}),
    ask("StartWorkflowExecution", {"workflow_id": "bad"}, {**START, "cronSchedule": "x"}),
    Ask("StartWorkflowExecution", {"namespace": "nobody", "workflow_id": "bad"}, START),
    ask(
        "SignalWithStartWorkflowExecution",
        {"workflow_id": "signaled-{n}", "signal_name": "signal"},
        {
            **START,
            "signalInput": ["x"],
            "input": [1],
        },
    ),
    ask("SignalWorkflowExecution", {**EXECUTION, "signal_name": "signal"}, {"input": [{"a": 1}], "identity": "me"}),
    ask("SignalWorkflowExecution", {**MISSING, "signal_name": "signal"}, {}),
    ask("SignalWorkflowExecution", {**EXECUTION, "signal_name": ""}, {}),
    ask("DescribeWorkflowExecution", WORKFLOW),
    ask("DescribeWorkflowExecution", {"execution.workflow_id": "nobody"}),
    ask("DescribeWorkflowExecution", WORKFLOW, query="execution.runId=bad"),
    ask("GetWorkflowExecutionHistory", WORKFLOW),
    ask("GetWorkflowExecutionHistory", WORKFLOW, query="noPayloadShorthand"),
    ask("GetWorkflowExecutionHistory", WORKFLOW, query="pretty"),
    ask("GetWorkflowExecutionHistory", {"execution.workflow_id": "long-{n}"}),
    ask("GetWorkflowExecutionHistory", {"execution.workflow_id": "null-{n}"}, query="noPayloadShorthand"),
    ask("GetWorkflowExecutionHistory", {"execution.workflow_id": "null-{n}"}, differs=NULLS, without=("input",)),
    ask("GetWorkflowExecutionHistory", WORKFLOW, query="maximum_page_size=1&historyEventFilterType=1"),
    ask("GetWorkflowExecutionHistory", {"execution.workflow_id": "nobody"}),
    ask("GetWorkflowExecutionHistoryReverse", WORKFLOW),
    ask("QueryWorkflow", {"execution.workflow_id": "nobody", "query.query_type": "state"}, {}),
    ask("UpdateWorkflowExecution", {**MISSING, "request.input.name": "update"}, {"request": {"input": {"args": [1]}}}),
    ask(
        "UpdateWorkflowExecutionOptions",
        EXECUTION,
        {"updateMask": "versioningOverride", "workflowExecutionOptions": {}},
    ),
    ask("UpdateWorkflowExecutionOptions", MISSING, {"updateMask": "versioningOverride"}),
    ask("PauseWorkflowExecution", {"workflow_id": "workflow-{n}"}, {"reason": "r", "identity": "me"}),
    ask("PauseWorkflowExecution", {"workflow_id": "nobody"}, {}),
    ask("UnpauseWorkflowExecution", {"workflow_id": "workflow-{n}"}, {"reason": "r", "identity": "me"}),
    ask("UnpauseWorkflowExecution", {"workflow_id": "nobody"}, {}),
    ask("PollWorkflowExecutionTimeSkipping", EXECUTION),
    ask("TriggerWorkflowRule", WORKFLOW, {"id": "nothing"}),
    ask("ListWorkflowExecutions", query="query=WorkflowId%3D%22workflow-{n}%22&pageSize=5"),
    ask("ListWorkflowExecutions", query="query=Nothing+%3D+1"),
    ask("ListWorkflowExecutions", query="query=%28"),
    ask("ListWorkflowExecutions", query="pageSize=many"),
    ask("ListArchivedWorkflowExecutions", query="pageSize=1"),
    ask("CountWorkflowExecutions", query="query=WorkflowType%3D%27Type%27+GROUP+BY+ExecutionStatus"),
    ask("ResetWorkflowExecution", EXECUTION, {"reason": "r", "workflowTaskFinishEventId": "3"}),
    ask("ResetWorkflowExecution", MISSING, {"reason": "r", "workflowTaskFinishEventId": "3"}),
    ask("RequestCancelWorkflowExecution", EXECUTION, {"reason": "r", "identity": "me"}),
    ask("RequestCancelWorkflowExecution", MISSING, {}),
    ask("TerminateWorkflowExecution", EXECUTION, {"reason": "r", "details": ["why", 1]}),
    ask("TerminateWorkflowExecution", EXECUTION, {}),
    ask("DescribeWorkflowExecution", WORKFLOW, differs=CLOSED, without=("pendingWorkflowTask", "executionDuration")),
    ask("GetWorkflowExecutionHistory", WORKFLOW, query="historyEventFilterType=HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT"),
    # Calls of workers: no worker has a task, so the server rejects all of them.
    ask("RecordActivityTaskHeartbeat", body={"taskToken": "AAAA", "details": [1]}),
    ask("RecordActivityTaskHeartbeat", body={}),
    ask("RecordActivityTaskHeartbeatById", BY_ID, {"details": [1]}),
    ask("RespondActivityTaskCompleted", body={"taskToken": "AAAA", "result": ["done"]}),
    ask("RespondActivityTaskCompletedById", BY_ID, {"result": ["done"]}),
    ask("RespondActivityTaskFailed", body={"taskToken": "AAAA", "failure": {"message": "m"}}),
    ask("RespondActivityTaskFailedById", BY_ID, {"failure": {"message": "m", "applicationFailureInfo": {"type": "t"}}}),
    ask("RespondActivityTaskCanceled", body={"taskToken": "AAAA", "details": [1]}),
    ask("RespondActivityTaskCanceledById", BY_ID, {"details": [1]}),
    ask(
        "UpdateActivityOptions", body={"execution": {"workflowId": "nobody"}, "id": "1", "updateMask": "taskQueue.name"}
    ),
    ask("PauseActivity", body={"execution": {"workflowId": "nobody"}, "id": "1", "reason": "r"}),
    ask("UnpauseActivity", body={"execution": {"workflowId": "nobody"}, "id": "1", "jitter": "1s"}),
    ask("ResetActivity", body={"execution": {"workflowId": "nobody"}, "id": "1", "jitter": "1s"}),
    # Standalone activities.
    ask(
        "StartActivityExecution",
        {"activity_id": "activity-{n}"},
        {
            "activityType": {"name": "Activity"},
            "taskQueue": {"name": "activities"},
            "startToCloseTimeout": "60s",
            "input": [1],
            "requestId": "request-{n}",
            "userMetadata": {"summary": "s"},
        },
    ),
    ask("StartActivityExecution", {"activity_id": "bad"}, {"activityType": {"name": "Activity"}}),
    ask(
        "DescribeActivityExecution",
        {"activity_id": "activity-{n}"},
        query="includeInput=true&includeOutcome=true",
    ),
    ask("DescribeActivityExecution", {"activity_id": "nobody"}),
    ask(
        "ListActivityExecutions",
        query="query=ActivityId%3D%22activity-{n}%22",
        differs="the reference shows its internal search attribute TemporalNamespaceDivision",
        without=("searchAttributes",),
    ),
    ask("CountActivityExecutions", query="query=ActivityType%3D%22Activity%22"),
    ask(
        "UpdateActivityExecutionOptions",
        {"activity_id": "activity-{n}", "workflow_id": "nobody"},
        {"activityOptions": {"startToCloseTimeout": "30s"}, "updateMask": "startToCloseTimeout"},
    ),
    ask("PauseActivityExecution", {"activity_id": "activity-{n}", "workflow_id": "nobody"}, {"reason": "r"}),
    ask("UnpauseActivityExecution", {"activity_id": "activity-{n}", "workflow_id": "nobody"}, {"reason": "r"}),
    ask("ResetActivityExecution", {"activity_id": "activity-{n}", "workflow_id": "nobody"}, {}),
    ask("RequestCancelActivityExecution", {"activity_id": "activity-{n}"}, {"reason": "r", "requestId": "x"}),
    ask("RequestCancelActivityExecution", {"activity_id": "nobody"}, {}),
    ask("TerminateActivityExecution", {"activity_id": "activity-{n}"}, {"reason": "r", "requestId": "y"}),
    ask("TerminateActivityExecution", {"activity_id": "nobody"}, {}),
    ask("PollActivityExecution", {"activity_id": "activity-{n}"}),
    ask("PollActivityExecution", {"activity_id": "nobody"}),
    # Standalone Nexus operations.
    ask(
        "StartNexusOperationExecution",
        {"operation_id": "operation-{n}"},
        {
            "endpoint": "nobody",
            "service": "s",
            "operation": "o",
            "requestId": "request-{n}",
            "input": 1,
        },
    ),
    ask("DescribeNexusOperationExecution", {"operation_id": "nobody"}),
    ask("PollNexusOperationExecution", {"operation_id": "nobody"}),
    ask("ListNexusOperationExecutions"),
    ask("CountNexusOperationExecutions"),
    ask("RequestCancelNexusOperationExecution", {"operation_id": "nobody"}, {"reason": "r"}),
    ask("TerminateNexusOperationExecution", {"operation_id": "nobody"}, {"reason": "r"}),
    # Schedules.
    ask(
        "CreateSchedule",
        {"schedule_id": "schedule-{n}"},
        {
            "schedule": SCHEDULE,
            "requestId": "request-{n}",
            "memo": {"fields": {"m": 1}},
            "identity": "me",
        },
    ),
    ask(
        "CreateSchedule",
        {"schedule_id": "schedule-{n}"},
        {"schedule": SCHEDULE, "requestId": "another"},
        differs="the reference does not name the request that made the schedule",
        without=("startRequestId", "runId"),
    ),
    ask("CreateSchedule", {"schedule_id": "bad"}, {"schedule": {"spec": {"cronString": ["x"]}}, "requestId": "1"}),
    ask("DescribeSchedule", {"schedule_id": "schedule-{n}"}),
    ask("DescribeSchedule", {"schedule_id": "nobody"}, differs=SCHEDULES, without=("message",)),
    ask("PatchSchedule", {"schedule_id": "schedule-{n}"}, {"patch": {"pause": "for now"}}),
    ask(
        "PatchSchedule",
        {"schedule_id": "nobody"},
        {"patch": {"pause": "for now"}},
        differs=SCHEDULES,
        without=("message",),
    ),
    ask(
        "UpdateSchedule",
        {"schedule_id": "schedule-{n}"},
        {"schedule": {**SCHEDULE, "policies": {"catchupWindow": "60s"}}},
    ),
    ask("UpdateSchedule", {"schedule_id": "nobody"}, {"schedule": SCHEDULE}, differs=SCHEDULES, without=("message",)),
    ask(
        "ListScheduleMatchingTimes",
        {"schedule_id": "schedule-{n}"},
        query="startTime=2050-01-01T00:00:00Z&endTime=2050-01-01T03:30:00Z",
    ),
    ask(
        "ListScheduleMatchingTimes",
        {"schedule_id": "schedule-{n}"},
        query="startTime=yesterday",
        differs="the message names no layout of Go's",
        without=("message",),
    ),
    ask("ListSchedules", query="maximumPageSize=10"),
    ask("CountSchedules"),
    ask("DeleteSchedule", {"schedule_id": "schedule-{n}"}, query="identity=me"),
    ask("DeleteSchedule", {"schedule_id": "nobody"}, differs=SCHEDULES, without=("message",)),
    # Task queues and workers.
    ask(
        "DescribeTaskQueue",
        {"task_queue.name": "queue"},
        query="taskQueueType=TASK_QUEUE_TYPE_WORKFLOW",
        differs="a task queue has no rate limit here unless one is set",
        without=("requestsPerSecond",),
    ),
    ask(
        "DescribeTaskQueue",
        {"task_queue.name": "queue"},
        query="reportStats=true&taskQueueType=2",
        differs="a task queue has no rate limit here unless one is set",
        without=("requestsPerSecond",),
    ),
    ask("DescribeTaskQueue", {"task_queue.name": "queue"}, query="taskQueueType=99"),
    ask(
        "UpdateTaskQueueConfig",
        {"task_queue": "queue"},
        {
            "taskQueueType": "TASK_QUEUE_TYPE_ACTIVITY",
            "identity": "me",
            "updateQueueRateLimit": {"rateLimit": {"requestsPerSecond": 10.5}, "reason": "r"},
        },
    ),
    ask("GetWorkerBuildIdCompatibility", {"task_queue": "queue"}),
    ask("GetWorkerVersioningRules", {"task_queue": "queue"}),
    ask("GetWorkerTaskReachability", query="buildIds=1&buildIds=2&taskQueues=queue&reachability=1"),
    ask(
        "RecordWorkerHeartbeat",
        body={
            "identity": "me",
            "workerHeartbeat": [
                {
                    "workerInstanceKey": "worker-{n}",
                    "taskQueue": "queue",
                    "sdkName": "s",
                    "status": "WORKER_STATUS_RUNNING",
                }
            ],
        },
    ),
    ask("DescribeWorker", {"worker_instance_key": "worker-{n}"}),
    ask("DescribeWorker", {"worker_instance_key": "nobody"}),
    ask("ListWorkers", query="query=WorkerInstanceKey%3D%22worker-{n}%22"),
    ask("CountWorkers"),
    ask("FetchWorkerConfig", body={"identity": "me", "selector": {"workerInstanceKey": "nobody"}}),
    ask("UpdateWorkerConfig", body={"identity": "me", "selector": {"workerInstanceKey": "nobody"}}),
    # Deployments.
    ask("DescribeDeployment", DEPLOYMENT),
    ask("ListDeployments"),
    ask("GetDeploymentReachability", DEPLOYMENT),
    ask("GetCurrentDeployment", {"series_name": "series"}),
    ask(
        "SetCurrentDeployment", {"deployment.series_name": "series"}, {"deployment": {"buildId": "1"}, "identity": "me"}
    ),
    ask("CreateWorkerDeployment", {"deployment_name": "deployed-{n}"}, {"identity": "me", "requestId": "r{n}"}),
    ask(
        "CreateWorkerDeploymentVersion",
        {"deployment_version.deployment_name": "deployed-{n}"},
        {"deploymentVersion": {"buildId": "1"}, "identity": "me", "requestId": "v{n}"},
    ),
    ask("DescribeWorkerDeploymentVersion", VERSION),
    ask("UpdateWorkerDeploymentVersionMetadata", VERSION, {"upsertEntries": {"b": "x", "a": 1}, "identity": "me"}),
    ask(
        "UpdateWorkerDeploymentVersionComputeConfig",
        VERSION,
        {"identity": "me", "requestId": "c{n}"},
        differs="status: the reference fails with an internal error",
    ),
    ask(
        "ValidateWorkerDeploymentVersionComputeConfig",
        VERSION,
        {"identity": "me"},
        differs="both messages say that nothing is given",
        without=("message",),
    ),
    ask(
        "SetWorkerDeploymentCurrentVersion",
        {"deployment_name": "deployed-{n}"},
        {"buildId": "1", "identity": "me"},
        differs="the reference sometimes names the new version as the previous one",
        without=("previousVersion", "previousDeploymentVersion"),
    ),
    ask("SetWorkerDeploymentRampingVersion", {"deployment_name": "deployed-{n}"}, {"buildId": "2", "percentage": 5.5}),
    ask("SetWorkerDeploymentManager", {"deployment_name": "deployed-{n}"}, {"managerIdentity": "me", "identity": "me"}),
    ask(
        "DescribeWorkerDeployment",
        {"deployment_name": "deployed-{n}"},
        differs=DEPLOYED,
        without=("routingConfigUpdateState",),
    ),
    ask("DescribeWorkerDeployment", {"deployment_name": "nobody"}),
    # The reference shows the version of a change some time after it.
    ask("ListWorkerDeployments", differs=DEPLOYED, without=("routingConfig", *SUMMARIES), is_unordered=True),
    ask("DeleteWorkerDeploymentVersion", VERSION, query="skipDrainage=true&identity=me"),
    ask("DeleteWorkerDeployment", {"deployment_name": "nobody"}, query="identity=me"),
    # Batches.
    ask(
        "StartBatchOperation",
        {"job_id": "job-{n}"},
        {
            "visibilityQuery": "WorkflowId='nobody'",
            "reason": "r",
            "terminationOperation": {"identity": "me"},
        },
        differs="status: the reference refuses a second job while the first one runs",
    ),
    ask("StartBatchOperation", {"job_id": "bad"}, {"reason": "r"}),
    ask("DescribeBatchOperation", {"job_id": "nobody"}),
    ask("StopBatchOperation", {"job_id": "nobody"}, {"reason": "r", "identity": "me"}),
    ask(
        "ListBatchOperations",
        query="pageSize=10",
        differs="jobs end sooner here",
        without=("state", "closeTime"),
        is_unordered=True,
        has_more=True,
    ),
    # Rules.
    ask("CreateWorkflowRule", body={"spec": RULE, "identity": "me", "requestId": "r{n}"}),
    ask("DescribeWorkflowRule", {"rule_id": "rule-{n}"}),
    ask("ListWorkflowRules"),
    ask("DeleteWorkflowRule", {"rule_id": "rule-{n}"}),
    # Nexus endpoints.
    ask("CreateNexusEndpoint", body={"spec": ENDPOINT}),
    ask("CreateNexusEndpoint", body={"spec": {**ENDPOINT, "name": "bad name"}}),
    ask("ListNexusEndpoints", query="name=endpoint-{n}"),
    Ask("GetNexusEndpoint", {"id": "00000000-0000-4000-8000-000000000000"}),
    Ask("UpdateNexusEndpoint", {"id": "00000000-0000-4000-8000-000000000000"}, {"version": "1", "spec": ENDPOINT}),
    Ask("DeleteNexusEndpoint", {"id": "00000000-0000-4000-8000-000000000000"}, query="version=1"),
    # The last request: its response counts and names server-wide values.
    ask(
        "GetClusterInfo",
        differs="it names this server, its store and its number of shards",
        without=("versionInfo", "historyShardCount", "persistenceStore", "visibilityStore"),
    ),
)
