"""The quota and the priority of each method, as in Temporal's server."""

from dataclasses import dataclass
from enum import Enum


class Bucket(Enum):
    """Quotas that are counted apart."""

    EXECUTION = "execution"
    VISIBILITY = "visibility"
    # Changes of namespaces, which are replicated to every cluster.
    REPLICATED = "replicated"
    # Descriptions and lists of worker deployments.
    DEPLOYMENTS = "deployments"


# Number of priorities of a bucket; 0 is the most important one.
PRIORITIES = 6

_REPLICATED = frozenset(
    ("RegisterNamespace", "UpdateNamespace", "UpdateWorkerBuildIdCompatibility", "UpdateWorkerVersioningRules")
)
_DEPLOYMENTS = frozenset(("DescribeWorkerDeployment", "DescribeWorkerDeploymentVersion", "ListWorkerDeployments"))
_VISIBILITY = frozenset(
    (
        *("CountWorkflowExecutions", "ListWorkflowExecutions", "ScanWorkflowExecutions"),
        *("ListOpenWorkflowExecutions", "ListClosedWorkflowExecutions", "ListArchivedWorkflowExecutions"),
        *("CountActivityExecutions", "ListActivityExecutions"),
        *("CountNexusOperationExecutions", "ListNexusOperationExecutions"),
        *("CountSchedules", "ListSchedules", "ListBatchOperations", "ListWorkers", "GetWorkerTaskReachability"),
    )
)
# Calls that wait for something, so that their number is limited, and not only their rate.
_LONG = frozenset(
    (
        *("PollWorkflowTaskQueue", "PollActivityTaskQueue", "PollNexusTaskQueue"),
        *("PollWorkflowExecutionUpdate", "PollActivityExecution", "PollNexusOperationExecution"),
        *("PollWorkflowExecutionTimeSkipping", "QueryWorkflow", "UpdateWorkflowExecution", "ExecuteMultiOperation"),
        *("GetWorkflowExecutionHistory", "DescribeActivityExecution", "DescribeNexusOperationExecution"),
    )
)
_PRIORITIES: dict[str, int] = {
    name: priority
    for priority, names in (
        (0, ("GetClusterInfo", "GetSystemInfo", "GetSearchAttributes", "DescribeNamespace")),
        (
            1,
            (
                *("StartWorkflowExecution", "SignalWithStartWorkflowExecution", "SignalWorkflowExecution"),
                *("UpdateWorkflowExecution", "ExecuteMultiOperation", "CreateSchedule", "StartBatchOperation"),
                *("StartActivityExecution", "StartNexusOperationExecution"),
                *("RecordActivityTaskHeartbeat", "RecordActivityTaskHeartbeatById", "RecordWorkerHeartbeat"),
                *("RespondActivityTaskCompleted", "RespondActivityTaskCompletedById"),
                *("RespondWorkflowTaskCompleted", "RespondQueryTaskCompleted", "RespondNexusTaskCompleted"),
            ),
        ),
        (4, ("PollWorkflowTaskQueue", "PollActivityTaskQueue", "PollNexusTaskQueue")),
        (
            4,
            (
                *("PollWorkflowExecutionUpdate", "PollActivityExecution", "PollNexusOperationExecution"),
                "PollWorkflowExecutionTimeSkipping",
            ),
        ),
    )
    for name in names
}
# Prefixes of methods that read, or report a failure: less important than changes.
_READS = ("Describe", "Query", "Get", "List", "Fetch", "Count", "RespondActivityTaskFailed", "RespondActivityTaskCan")
_FAILURES = ("RespondWorkflowTaskFailed", "RespondNexusTaskFailed", "ResetStickyTaskQueue")
_CHANGE = 2
_READ = 3
# Priority of a call that waits for the next event of a history.
HISTORY_WAIT = 5
_GET_HISTORY = "GetWorkflowExecutionHistory"


@dataclass(frozen=True, slots=True)
class Cost:
    """The quota against which a method counts, its priority, and whether it may wait for long."""

    method: str
    bucket: Bucket
    priority: int
    is_long: bool


def cost_of(method: str) -> Cost:
    """The cost of a method of Temporal's API."""
    if method in _REPLICATED:
        return Cost(method, Bucket.REPLICATED, 1, is_long=False)
    if method in _DEPLOYMENTS:
        return Cost(method, Bucket.DEPLOYMENTS, 1, is_long=False)
    if method in _VISIBILITY:
        return Cost(method, Bucket.VISIBILITY, 1, is_long=False)
    priority = _PRIORITIES.get(method)
    if priority is None:
        is_read = method.startswith(_READS) or method in _FAILURES
        # Operators read histories first when something is wrong.
        priority = _READ if is_read and not method.startswith(_GET_HISTORY) else _CHANGE
    return Cost(method, Bucket.EXECUTION, priority, is_long=method in _LONG)
