"""The users of the clusters: workers that poll, and clients that start, signal, cancel, terminate, reset and update."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, WorkflowIdConflictPolicy
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.errordetails.v1 import NamespaceNotActiveFailure
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollActivityTaskQueueResponse,
    PollWorkflowTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RequestCancelWorkflowExecutionRequest,
    ResetWorkflowExecutionRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
    RespondWorkflowTaskCompletedRequest,
    SignalWithStartWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
    UpdateWorkflowExecutionResponse,
)

from fairlead.api.errors import NotActive
from fairlead.api.tokens import decode_token
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import TaskType
from tests.simulators.matching.transcript import Transcript
from tests.simulators.replication.cluster import Cluster
from tests.simulators.replication.commands import TASK_QUEUE, TASK_TIMEOUT_S, decide

HOPS_MAX = 3
POLL_S = 1.0
COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED


@dataclass(slots=True)
class ClientRecord:
    """Counts of the clients' calls, and the acknowledged signals and updates with namespace id and workflow id."""

    acknowledged: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: int = 0
    refused: int = 0


class Clusters:
    """All clusters, seen from outside: requests are redirected to the active cluster, as a frontend does."""

    def __init__(self, clusters: dict[str, Cluster]) -> None:
        self.all = clusters

    @property
    def up(self) -> list[str]:
        """The clusters that are up; all of them if none is."""
        return [name for name, cluster in self.all.items() if cluster.is_up] or list(self.all)

    async def call(self, cluster: str, name: str, namespace_id: str, workflow_id: str, request: Message) -> bytes:
        """Call `cluster`; if it is not active for the namespace, call the active cluster that its error names."""
        for _ in range(HOPS_MAX):
            try:
                return await self.all[cluster].call(name, namespace_id, workflow_id, request)
            except NotActive as error:
                active = _active_of(error)
                if active not in self.all or active == cluster:
                    raise
                cluster = active
        return await self.all[cluster].call(name, namespace_id, workflow_id, request)


def _active_of(error: NotActive) -> str:
    failure = NamespaceNotActiveFailure()
    AnyMessage.FromString(error.detail).Unpack(failure)
    return failure.active_cluster


class Worker:
    """Polls one cluster, and responds there or at the active cluster."""

    def __init__(
        self, name: str, cluster: str, clusters: Clusters, transcript: Transcript, random: Random, others: Sequence[str]
    ) -> None:
        self.name = name
        self.cluster = cluster
        self._clusters = clusters
        self._transcript = transcript
        self._random = random
        self._others = others
        self.namespaces: dict[str, str] = {}
        self.is_paused = False
        self.is_ending = False
        self.is_stopped = False

    async def run(self, kind: TaskType) -> None:
        """Poll and respond until `is_stopped`."""
        home = self._clusters.all[self.cluster]
        while not self.is_stopped:
            if self.is_paused:
                await asyncio.sleep(1.0)
                continue
            try:
                task = await home.poll(kind, self.name, timeout_s=POLL_S)
                if task is not None and not self.is_paused:
                    await (self._workflow(task) if kind is TaskType.WORKFLOW else self._activity(task))
            except FairleadError as failure:
                self._transcript.note(self.name, f"{type(failure).__name__}: {failure}")
                await asyncio.sleep(0.2)

    async def _workflow(self, polled: bytes) -> None:
        task = PollWorkflowTaskQueueResponse.FromString(polled)
        execution = task.workflow_execution
        namespace_id = decode_token(task.task_token).namespace_id
        await self._think(0.3)
        if self._random.random() < 0.05 and not self.is_ending:
            # The worker never responds to this task.
            return
        fields = decide(
            task,
            self._random,
            namespace=self.namespaces[namespace_id],
            others=self._others,
            is_ending=self.is_ending,
        )
        request = RespondWorkflowTaskCompletedRequest(
            namespace=self.namespaces[namespace_id], task_token=task.task_token, identity=_seen(task), **fields
        )
        kinds = [str(one.WhichOneof("attributes")).removesuffix("_command_attributes") for one in request.commands]
        self._transcript.note(
            self.name, f"answers task {task.started_event_id} of {execution.workflow_id} {execution.run_id}: {kinds}"
        )
        await self._clusters.call(
            self.cluster, "RespondWorkflowTaskCompleted", namespace_id, execution.workflow_id, request
        )

    async def _activity(self, polled: bytes) -> None:
        task = PollActivityTaskQueueResponse.FromString(polled)
        namespace_id = decode_token(task.task_token).namespace_id
        workflow_id = task.workflow_execution.workflow_id
        await self._think(0.8)
        dice = 1.0 if self.is_ending else self._random.random()
        if dice < 0.1:
            return
        if dice < 0.4:
            beat = RecordActivityTaskHeartbeatRequest(task_token=task.task_token, identity=self.name)
            beat.details.payloads.add(data=str(self._random.randrange(1000)).encode())
            await self._clusters.call(self.cluster, "RecordActivityTaskHeartbeat", namespace_id, workflow_id, beat)
            await self._think(0.8)
        if dice < 0.6:
            failed = RespondActivityTaskFailedRequest(task_token=task.task_token, identity=self.name)
            failed.failure.message = "not this time"
            failed.failure.application_failure_info.type = "again"
            await self._clusters.call(self.cluster, "RespondActivityTaskFailed", namespace_id, workflow_id, failed)
            return
        done = RespondActivityTaskCompletedRequest(task_token=task.task_token, identity=self.name)
        await self._clusters.call(self.cluster, "RespondActivityTaskCompleted", namespace_id, workflow_id, done)

    async def _think(self, s_max: float) -> None:
        await asyncio.sleep(self._random.uniform(0.0, s_max))


def _seen(task: PollWorkflowTaskQueueResponse) -> str:
    """The worker's identity, with the id and version of the event that started its task, if that event is written.

    The checks compare it with the branch to which the response is written.
    """
    last = task.history.events[-1]
    return f"seen|{last.event_id}|{last.version if task.attempt <= 1 else ''}"


class Client:
    """Sends one request after another, each to any cluster."""

    def __init__(
        self,
        name: str,
        clusters: Clusters,
        record: ClientRecord,
        transcript: Transcript,
        random: Random,
        *,
        namespaces: dict[str, str],
        workflow_ids: Sequence[str],
        gap_s: float,
    ) -> None:
        self._name = name
        self._clusters = clusters
        self._record = record
        self._transcript = transcript
        self._random = random
        self._namespaces = namespaces
        self._workflow_ids = workflow_ids
        self._gap_s = gap_s
        self._number = 0
        self.is_stopped = False

    async def run(self) -> None:
        """Send requests until `is_stopped`."""
        wishes = [
            self._start,
            self._signal,
            self._signal_start,
            self._cancel,
            self._terminate,
            self._reset,
            self._update,
        ]
        weights = [6, 9, 2, 1, 1, 1.5, 2]
        while not self.is_stopped:
            await asyncio.sleep(self._random.expovariate(1 / self._gap_s))
            namespace_id = self._random.choice(list(self._namespaces))
            cluster = self._random.choice(self._clusters.up)
            workflow_id = self._random.choice(self._workflow_ids)
            wish = self._random.choices(wishes, weights)[0]
            self._number += 1
            self._record.calls += 1
            what = f"{wish.__name__.strip('_')} #{self._number} of {workflow_id} at {cluster}"
            try:
                done = await wish(cluster, namespace_id, workflow_id)
                self._transcript.note(self._name, f"{what}: done {done or ''}")
            except FairleadError as failure:
                self._record.refused += 1
                self._transcript.note(self._name, f"{what}: {type(failure).__name__}: {failure}")

    async def _call(self, cluster: str, name: str, namespace_id: str, workflow_id: str, request: Message) -> bytes:
        return await self._clusters.call(cluster, name, namespace_id, workflow_id, request)

    def _start_fields(self, namespace_id: str, workflow_id: str) -> dict[str, Any]:
        policy = WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL
        if self._random.random() < 0.15:
            policy = WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING
        return {
            "namespace": self._namespaces[namespace_id],
            "workflow_id": workflow_id,
            "request_id": f"{self._name}.{self._number}",
            "workflow_task_timeout": Duration(seconds=TASK_TIMEOUT_S),
            "workflow_id_conflict_policy": policy,
        }

    async def _start(self, cluster: str, namespace_id: str, workflow_id: str) -> None:
        request = StartWorkflowExecutionRequest(**self._start_fields(namespace_id, workflow_id))
        request.workflow_type.name = "type"
        request.task_queue.name = TASK_QUEUE
        await self._call(cluster, "StartWorkflowExecution", namespace_id, workflow_id, request)

    async def _signal(self, cluster: str, namespace_id: str, workflow_id: str) -> str:
        name = f"{self._name}-{self._number}"
        request = SignalWorkflowExecutionRequest(
            namespace=self._namespaces[namespace_id],
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            signal_name=name,
            # Most clients set no request id; then a reapplied signal has another deduplication key.
            request_id=self._random.choice(["", f"request-{name}"]),
        )
        await self._call(cluster, "SignalWorkflowExecution", namespace_id, workflow_id, request)
        self._record.acknowledged[f"signal {name}"] = (namespace_id, workflow_id)
        return name

    async def _signal_start(self, cluster: str, namespace_id: str, workflow_id: str) -> str:
        name = f"{self._name}-{self._number}"
        fields = self._start_fields(namespace_id, workflow_id)
        del fields["workflow_id_conflict_policy"]
        request = SignalWithStartWorkflowExecutionRequest(**fields, signal_name=name)
        request.workflow_type.name = "type"
        request.task_queue.name = TASK_QUEUE
        await self._call(cluster, "SignalWithStartWorkflowExecution", namespace_id, workflow_id, request)
        self._record.acknowledged[f"signal {name}"] = (namespace_id, workflow_id)
        return name

    async def _cancel(self, cluster: str, namespace_id: str, workflow_id: str) -> None:
        request = RequestCancelWorkflowExecutionRequest(
            namespace=self._namespaces[namespace_id],
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            request_id=f"{self._name}.{self._number}",
        )
        await self._call(cluster, "RequestCancelWorkflowExecution", namespace_id, workflow_id, request)

    async def _terminate(self, cluster: str, namespace_id: str, workflow_id: str) -> None:
        request = TerminateWorkflowExecutionRequest(
            namespace=self._namespaces[namespace_id], workflow_execution=WorkflowExecution(workflow_id=workflow_id)
        )
        await self._call(cluster, "TerminateWorkflowExecution", namespace_id, workflow_id, request)

    async def _reset(self, cluster: str, namespace_id: str, workflow_id: str) -> str:
        execution = WorkflowExecution(workflow_id=workflow_id)
        asked = GetWorkflowExecutionHistoryRequest(namespace=self._namespaces[namespace_id], execution=execution)
        answer = await self._call(cluster, "GetWorkflowExecutionHistory", namespace_id, workflow_id, asked)
        history = GetWorkflowExecutionHistoryResponse.FromString(answer).history
        points = [event.event_id for event in history.events if event.event_type == COMPLETED]
        if not points:
            return "nothing: no workflow task was completed"
        request = ResetWorkflowExecutionRequest(
            namespace=self._namespaces[namespace_id],
            workflow_execution=execution,
            workflow_task_finish_event_id=self._random.choice(points),
            request_id=f"{self._name}.{self._number}",
            reason="simulated",
        )
        await self._call(cluster, "ResetWorkflowExecution", namespace_id, workflow_id, request)
        return f"to {request.workflow_task_finish_event_id}"

    async def _update(self, cluster: str, namespace_id: str, workflow_id: str) -> str:
        request = UpdateWorkflowExecutionRequest(
            namespace=self._namespaces[namespace_id], workflow_execution=WorkflowExecution(workflow_id=workflow_id)
        )
        request.wait_policy.lifecycle_stage = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
        request.request.meta.update_id = f"{self._name}-{self._number}"
        request.request.input.name = "update"
        answer = await self._call(cluster, "UpdateWorkflowExecution", namespace_id, workflow_id, request)
        answered = UpdateWorkflowExecutionResponse.FromString(answer)
        if answered.stage < Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED:
            return "not accepted in time"
        if answered.outcome.HasField("failure"):
            return "failed"
        self._record.acknowledged[f"update {request.request.meta.update_id}"] = (namespace_id, workflow_id)
        return "accepted"
