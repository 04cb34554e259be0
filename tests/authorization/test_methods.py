"""Every RPC of both services, role by role and namespace by namespace: allowed or denied."""

from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.errordetails.v1 import PermissionDeniedFailure
from temporalio.api.operatorservice.v1 import service_pb2 as operator_api
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_api

from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics
from tests.authorization.tokens import Named, make_gate
from tests.frontend.served import decode_error, serving

WORKFLOW = workflow_api.DESCRIPTOR.services_by_name["WorkflowService"]
OPERATOR = operator_api.DESCRIPTOR.services_by_name["OperatorService"]

# The lowest role that a caller needs: in the namespace of its request, or, below, in the whole system.
OPEN = {"GetSystemInfo"}
NAMESPACE_WORKER = {
    *("PollWorkflowTaskQueue", "PollActivityTaskQueue", "PollNexusTaskQueue", "RespondWorkflowTaskCompleted"),
    *("RespondWorkflowTaskFailed", "RespondActivityTaskCompleted", "RespondActivityTaskCompletedById"),
    *("RespondActivityTaskFailed", "RespondActivityTaskFailedById", "RespondActivityTaskCanceled"),
    *("RespondActivityTaskCanceledById", "RespondQueryTaskCompleted", "RespondNexusTaskCompleted"),
    *("RespondNexusTaskFailed", "RecordActivityTaskHeartbeat", "RecordActivityTaskHeartbeatById"),
    *("ResetStickyTaskQueue", "ShutdownWorker", "RecordWorkerHeartbeat"),
}
NAMESPACE_WORKER_OR_READER = {"DescribeNamespace", "GetWorkflowExecutionHistory", "FetchWorkerConfig"}
NAMESPACE_READER = {
    *("GetWorkflowExecutionHistoryReverse", "ListOpenWorkflowExecutions", "ListClosedWorkflowExecutions"),
    *("ListWorkflowExecutions", "ListArchivedWorkflowExecutions", "ScanWorkflowExecutions", "CountWorkflowExecutions"),
    *("QueryWorkflow", "DescribeWorkflowExecution", "DescribeTaskQueue", "ListTaskQueuePartitions"),
    *("DescribeSchedule", "ListScheduleMatchingTimes", "ListSchedules", "CountSchedules"),
    *("GetWorkerBuildIdCompatibility", "GetWorkerVersioningRules", "GetWorkerTaskReachability", "DescribeDeployment"),
    *("DescribeWorkerDeploymentVersion", "ListDeployments", "GetDeploymentReachability", "GetCurrentDeployment"),
    *("DescribeWorkerDeployment", "ListWorkerDeployments", "PollWorkflowExecutionUpdate", "DescribeBatchOperation"),
    *("ListBatchOperations", "DescribeWorkflowRule", "ListWorkflowRules", "ListWorkers", "CountWorkers"),
    *("DescribeWorker", "DescribeActivityExecution", "PollActivityExecution", "ListActivityExecutions"),
    *("CountActivityExecutions", "DescribeNexusOperationExecution", "PollNexusOperationExecution"),
    *("ListNexusOperationExecutions", "CountNexusOperationExecutions", "PollWorkflowExecutionTimeSkipping"),
    "ListSearchAttributes",
}
NAMESPACE_WRITER = {
    *("StartWorkflowExecution", "ExecuteMultiOperation", "RequestCancelWorkflowExecution", "SignalWorkflowExecution"),
    *("SignalWithStartWorkflowExecution", "ResetWorkflowExecution", "TerminateWorkflowExecution"),
    *("DeleteWorkflowExecution", "CreateSchedule", "UpdateSchedule", "PatchSchedule", "DeleteSchedule"),
    *("UpdateWorkerBuildIdCompatibility", "UpdateWorkerVersioningRules", "SetCurrentDeployment"),
    *("SetWorkerDeploymentCurrentVersion", "DeleteWorkerDeployment", "DeleteWorkerDeploymentVersion"),
    *("SetWorkerDeploymentRampingVersion", "CreateWorkerDeployment", "CreateWorkerDeploymentVersion"),
    *("UpdateWorkerDeploymentVersionComputeConfig", "ValidateWorkerDeploymentVersionComputeConfig"),
    *("UpdateWorkerDeploymentVersionMetadata", "SetWorkerDeploymentManager", "UpdateWorkflowExecution"),
    *("StartBatchOperation", "StopBatchOperation", "UpdateActivityOptions", "UpdateWorkflowExecutionOptions"),
    *("PauseActivity", "UnpauseActivity", "ResetActivity", "CreateWorkflowRule", "DeleteWorkflowRule"),
    *("TriggerWorkflowRule", "UpdateTaskQueueConfig", "UpdateWorkerConfig", "PauseWorkflowExecution"),
    *("UnpauseWorkflowExecution", "StartActivityExecution", "StartNexusOperationExecution"),
    *("RequestCancelActivityExecution", "RequestCancelNexusOperationExecution", "TerminateActivityExecution"),
    *("DeleteActivityExecution", "PauseActivityExecution", "ResetActivityExecution", "UnpauseActivityExecution"),
    *("UpdateActivityExecutionOptions", "TerminateNexusOperationExecution", "DeleteNexusOperationExecution"),
}
NAMESPACE_ADMIN = {
    *("RegisterNamespace", "UpdateNamespace", "DeprecateNamespace", "DeleteNamespace"),
    *("AddSearchAttributes", "RemoveSearchAttributes"),
}
SYSTEM_READER = {"ListNamespaces", "GetClusterInfo", "GetSearchAttributes"}
SYSTEM_ADMIN = {
    *("AddOrUpdateRemoteCluster", "RemoveRemoteCluster", "ListClusters", "GetNexusEndpoint", "CreateNexusEndpoint"),
    *("UpdateNexusEndpoint", "DeleteNexusEndpoint", "ListNexusEndpoints"),
}

ROLES = ("worker", "read", "write", "admin")
# The roles that suffice for each group.
_WORKER, _READ, _WRITE, _ADMIN = {"worker"}, {"read", "write", "admin"}, {"write", "admin"}, {"admin"}
IN_NAMESPACE: dict[str, set[str]] = {
    **dict.fromkeys(NAMESPACE_WORKER, _WORKER | _WRITE),
    **dict.fromkeys(NAMESPACE_WORKER_OR_READER, _WORKER | _READ),
    **dict.fromkeys(NAMESPACE_READER, _READ),
    **dict.fromkeys(NAMESPACE_WRITER, _WRITE),
    **dict.fromkeys(NAMESPACE_ADMIN, _ADMIN),
}
IN_SYSTEM: dict[str, set[str]] = {
    **IN_NAMESPACE,
    **dict.fromkeys(SYSTEM_READER, _READ),
    **dict.fromkeys(SYSTEM_ADMIN, _ADMIN),
}
METHODS = [*WORKFLOW.methods, *OPERATOR.methods]


def test_the_table_has_every_method_once() -> None:
    groups = [OPEN, NAMESPACE_WORKER, NAMESPACE_WORKER_OR_READER, NAMESPACE_READER, NAMESPACE_WRITER, NAMESPACE_ADMIN]
    groups += [SYSTEM_READER, SYSTEM_ADMIN]
    assert sum(map(len, groups)) == len(set().union(*groups))
    assert {method.name for method in METHODS} == set().union(*groups)


def allowed(name: str, permission: str, namespace: str) -> bool:
    """Whether a caller with one permission may call a method for a namespace."""
    if name in OPEN:
        return True
    scope, _, role = permission.partition(":")
    if scope == "temporal-system":
        return role in IN_SYSTEM[name]
    return scope == namespace and role in IN_NAMESPACE.get(name, set())


async def called(channel: Any, method: Any, namespace: str, authorization: str | None) -> grpc.aio.AioRpcError | None:
    request: Any = GetMessageClass(method.input_type)()
    if "namespace" in method.input_type.fields_by_name:
        request.namespace = namespace
    send = channel.unary_unary(f"/{method.containing_service.full_name}/{method.name}")
    metadata = [] if authorization is None else [("authorization", authorization)]
    try:
        await send(request.SerializeToString(), metadata=metadata, timeout=20)
    except grpc.aio.AioRpcError as failed:
        return failed
    return None


@pytest.mark.parametrize(
    "permission", [f"{scope}:{role}" for scope in ("default", "temporal-system") for role in ROLES]
)
async def test_each_method_is_allowed_for_the_roles_that_suffice_and_denied_for_all_others(permission: str) -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:
        wrong = []
        for method in METHODS:
            for namespace in ("default", "absent", ""):
                failed = await called(served.channel, method, namespace, f"Bearer {permission}")
                # Some methods that are switched off answer PERMISSION_DENIED, too, with another message.
                is_denied = failed is not None and failed.details() == "Request unauthorized."
                if is_denied is allowed(method.name, permission, namespace):
                    wrong.append((method.name, namespace, "denied" if is_denied else "allowed"))
        assert wrong == []


async def test_a_caller_without_credentials_may_only_ask_for_system_info_and_health() -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:
        for authorization in (None, "", "Basic YTpi", "Bearer", "Bearer unknown", "Bearer default:unknown"):
            for method in METHODS:
                failed = await called(served.channel, method, "default", authorization)
                if method.name in OPEN:
                    assert failed is None
                else:
                    assert failed is not None
                    assert failed.code() is grpc.StatusCode.PERMISSION_DENIED, method.name
        assert await served.channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            await served.channel.unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")(b"")
        assert hidden.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_refusal_is_the_same_for_namespaces_that_exist_and_that_do_not() -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:
        for method in METHODS:
            if method.name in OPEN:
                continue
            said = []
            for namespace in ("default", "absent"):
                failed = await called(served.channel, method, namespace, "Bearer other:admin")
                assert failed is not None
                refusal = decode_error(failed)
                assert refusal.details is not None
                said.append((refusal.code, refusal.message, [each.SerializeToString() for each in refusal.details]))
            detail = Packed()
            detail.Pack(PermissionDeniedFailure())
            expected = ("PERMISSION_DENIED", "Request unauthorized.", [detail.SerializeToString()])
            assert said == [expected, expected], method.name


class Lookups(dict[str, Any]):
    """A cache that counts the look-ups of namespaces by name."""

    count = 0

    def get(self, name: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(name, default)

    def __getitem__(self, name: str) -> Any:
        self.count += 1
        return super().__getitem__(name)


async def test_a_refusal_takes_the_same_steps_whether_or_not_the_namespace_exists() -> None:
    """Response times must not show that a namespace exists: refused calls read no store and no cache of names."""
    reads: list[str] = []

    class Reads:
        async def before(self, operation: str, _location: object) -> None:
            reads.append(operation)

        async def after(self, _operation: str, _location: object) -> None: ...

    async with serving(MemoryHistory(Reads()), gate=make_gate(mapper=Named())) as served:
        namespaces = served.frontend.namespaces
        names = namespaces._by_name = Lookups(namespaces._by_name)
        # A call that is allowed looks its namespace up, here or in the store.
        describe = WORKFLOW.methods_by_name["DescribeNamespace"]
        assert await called(served.channel, describe, "default", "Bearer default:read") is None
        assert names.count or reads
        names.count = 0
        reads.clear()
        for method in METHODS:
            if method.name not in OPEN:
                for namespace in ("default", "absent"):
                    for permission in ("other:admin", "default:unknown"):
                        failed = await called(served.channel, method, namespace, f"Bearer {permission}")
                        assert failed is not None
                        assert failed.details() == "Request unauthorized."
        assert (names.count, reads) == (0, [])


async def test_malformed_requests_of_strangers_are_denied_before_they_are_decoded() -> None:
    metrics = Metrics()
    async with serving(gate=make_gate(mapper=Named(), metrics=metrics), metrics=metrics) as served:
        send = served.channel.unary_unary(f"/{WORKFLOW.full_name}/StartWorkflowExecution")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(b"\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        events = {event.name: series for event, series in metrics.snapshot().events.items()}
        assert events["service_errors_unauthorized"] == {("StartWorkflowExecution",): 1}
