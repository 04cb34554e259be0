"""Requirements of each method: Temporal's table of scopes and access, and the methods that the role `worker` has."""

from enum import Enum, IntEnum
from typing import Final

from msgspec import Struct

WORKFLOW_SERVICE: Final = "temporal.api.workflowservice.v1.WorkflowService"
OPERATOR_SERVICE: Final = "temporal.api.operatorservice.v1.OperatorService"


class Scope(Enum):
    """The reach of a method: one namespace, which its request names, or the whole cluster."""

    NAMESPACE = "namespace"
    CLUSTER = "cluster"


class Access(IntEnum):
    """The lowest role that a method requires, with the role's number."""

    READ = 2
    WRITE = 4
    ADMIN = 8


class MethodAccess(Struct, frozen=True):
    """The requirements of one method; `is_worker`: the role `worker` is enough. An open method requires nothing."""

    api: str
    name: str
    scope: Scope
    access: Access
    is_worker: bool = False
    is_open: bool = False
    # Whether a call is in the audit even if it is allowed.
    is_audited: bool = False
    # Like `is_audited`, for callers with the role admin: services call such a method often, operators rarely.
    is_audited_for_admins: bool = False


# The methods of both services that only read one namespace. A method that is in none of these lists writes to a
# namespace.
_READS: Final = frozenset(
    """
    DescribeNamespace GetWorkflowExecutionHistory GetWorkflowExecutionHistoryReverse ListOpenWorkflowExecutions
    ListClosedWorkflowExecutions ListWorkflowExecutions ListArchivedWorkflowExecutions ScanWorkflowExecutions
    CountWorkflowExecutions QueryWorkflow DescribeWorkflowExecution DescribeTaskQueue ListTaskQueuePartitions
    DescribeSchedule ListScheduleMatchingTimes ListSchedules CountSchedules GetWorkerBuildIdCompatibility
    GetWorkerVersioningRules GetWorkerTaskReachability DescribeDeployment DescribeWorkerDeploymentVersion
    ListDeployments GetDeploymentReachability GetCurrentDeployment DescribeWorkerDeployment ListWorkerDeployments
    PollWorkflowExecutionUpdate DescribeBatchOperation ListBatchOperations DescribeWorkflowRule ListWorkflowRules
    ListWorkers CountWorkers DescribeWorker FetchWorkerConfig DescribeActivityExecution PollActivityExecution
    ListActivityExecutions CountActivityExecutions DescribeNexusOperationExecution PollNexusOperationExecution
    ListNexusOperationExecutions CountNexusOperationExecutions PollWorkflowExecutionTimeSkipping ListSearchAttributes
    """.split()  # noqa: SIM905 - a long list of names reads better as text
)
_ADMIN_OF_NAMESPACE: Final = frozenset(
    (
        *("RegisterNamespace", "UpdateNamespace", "DeprecateNamespace", "DeleteNamespace"),
        *("AddSearchAttributes", "RemoveSearchAttributes"),
    )
)
_READS_OF_CLUSTER: Final = frozenset(("ListNamespaces", "GetClusterInfo", "GetSystemInfo", "GetSearchAttributes"))
_ADMIN_OF_CLUSTER: Final = frozenset(
    (
        *("AddOrUpdateRemoteCluster", "RemoveRemoteCluster", "ListClusters", "GetNexusEndpoint"),
        *("CreateNexusEndpoint", "UpdateNexusEndpoint", "DeleteNexusEndpoint", "ListNexusEndpoints"),
    )
)
# Methods that a worker calls. It reads the later pages of a long history with GetWorkflowExecutionHistory.
WORKER_METHODS: Final = frozenset(
    """
    PollWorkflowTaskQueue PollActivityTaskQueue PollNexusTaskQueue RespondWorkflowTaskCompleted
    RespondWorkflowTaskFailed RespondActivityTaskCompleted RespondActivityTaskCompletedById RespondActivityTaskFailed
    RespondActivityTaskFailedById RespondActivityTaskCanceled RespondActivityTaskCanceledById RespondQueryTaskCompleted
    RespondNexusTaskCompleted RespondNexusTaskFailed RecordActivityTaskHeartbeat RecordActivityTaskHeartbeatById
    ResetStickyTaskQueue ShutdownWorker RecordWorkerHeartbeat FetchWorkerConfig DescribeNamespace
    GetWorkflowExecutionHistory
    """.split()  # noqa: SIM905
)
# Methods that operators use to change running work, and whose access is not ADMIN.
AUDITED: Final = frozenset(
    """
    TerminateWorkflowExecution ResetWorkflowExecution DeleteWorkflowExecution UpdateWorkflowExecutionOptions
    PauseWorkflowExecution UnpauseWorkflowExecution StartBatchOperation StopBatchOperation CreateSchedule
    UpdateSchedule PatchSchedule DeleteSchedule UpdateActivityOptions PauseActivity UnpauseActivity ResetActivity
    CreateWorkflowRule DeleteWorkflowRule TriggerWorkflowRule UpdateTaskQueueConfig UpdateWorkerConfig
    SetCurrentDeployment SetWorkerDeploymentCurrentVersion SetWorkerDeploymentRampingVersion
    SetWorkerDeploymentManager CreateWorkerDeployment CreateWorkerDeploymentVersion DeleteWorkerDeployment
    DeleteWorkerDeploymentVersion UpdateWorkerDeploymentVersionComputeConfig UpdateWorkerDeploymentVersionMetadata
    UpdateWorkerBuildIdCompatibility UpdateWorkerVersioningRules TerminateActivityExecution DeleteActivityExecution
    PauseActivityExecution ResetActivityExecution UnpauseActivityExecution UpdateActivityExecutionOptions
    TerminateNexusOperationExecution DeleteNexusOperationExecution RequestCancelWorkflowExecution
    RequestCancelActivityExecution RequestCancelNexusOperationExecution
    """.split()  # noqa: SIM905
)
# Methods that are in the audit only if a caller with the role admin calls them.
AUDITED_FOR_ADMINS: Final = frozenset(("SignalWorkflowExecution", "SignalWithStartWorkflowExecution"))
# SDKs call it before they have sent any credential.
OPEN_METHODS: Final = frozenset(("GetSystemInfo",))


def access_of(service: str, name: str) -> MethodAccess:
    """The requirements of a method of WorkflowService or OperatorService."""
    api = f"/{service}/{name}"
    if name in _ADMIN_OF_CLUSTER:
        return MethodAccess(api, name, Scope.CLUSTER, Access.ADMIN, is_audited=True)
    if name in _READS_OF_CLUSTER:
        return MethodAccess(api, name, Scope.CLUSTER, Access.READ, is_open=name in OPEN_METHODS)
    if name in _ADMIN_OF_NAMESPACE:
        return MethodAccess(api, name, Scope.NAMESPACE, Access.ADMIN, is_audited=True)
    access = Access.READ if name in _READS else Access.WRITE
    return MethodAccess(
        api,
        name,
        Scope.NAMESPACE,
        access,
        is_worker=name in WORKER_METHODS,
        is_audited=name in AUDITED,
        is_audited_for_admins=name in AUDITED_FOR_ADMINS,
    )
