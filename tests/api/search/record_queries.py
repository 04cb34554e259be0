"""Record the reference server's responses to the queries: `python -m tests.api.search.record_queries`.

Needs the `temporal` command line with its development server. The tests read only the responses in `queries.json`.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from temporalio.api.command.v1 import (
    Command,
    CompleteWorkflowExecutionCommandAttributes,
    FailWorkflowExecutionCommandAttributes,
    StartChildWorkflowExecutionCommandAttributes,
)
from temporalio.api.common.v1 import Payload, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import CommandType
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    ListWorkflowExecutionsRequest,
    PollWorkflowTaskQueueRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
)
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from fairlead.api.search.names import TYPE_NAMES
from tests.api.search.world import CUSTOM, RECORDED

NAMESPACE = "default"


class Reference:
    """The reference server with the runs of `world`. Its stub is untyped: the methods take any message."""

    def __init__(self, address: str) -> None:
        self.service: Any = WorkflowServiceStub(grpc.insecure_channel(address))

    def start(self, workflow_id: str, kind: str, queue: str, **attributes: object) -> None:
        fields = {
            name: Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())
            for name, value in attributes.items()
        }
        request = StartWorkflowExecutionRequest(
            namespace=NAMESPACE,
            workflow_id=workflow_id,
            workflow_type=WorkflowType(name=kind),
            task_queue=TaskQueue(name=queue),
            request_id=workflow_id,
        )
        for name, payload in fields.items():
            request.search_attributes.indexed_fields[name].CopyFrom(payload)
        self.service.StartWorkflowExecution(request)

    def complete_task(self, queue: str, command: Command) -> None:
        polled = self.service.PollWorkflowTaskQueue(
            PollWorkflowTaskQueueRequest(namespace=NAMESPACE, task_queue=TaskQueue(name=queue)), timeout=20
        )
        self.service.RespondWorkflowTaskCompleted(
            RespondWorkflowTaskCompletedRequest(task_token=polled.task_token, commands=[command])
        )

    def make_runs(self) -> None:
        self.start(
            "w-1", "Alpha", "q1",
            CustomKeyword="red", CustomInt=1, CustomDouble=1.5, CustomBool=True, CustomTime="2024-01-01T00:00:00Z",
            CustomList=["a", "b"], CustomText="Hello brave World",
        )  # fmt: skip
        self.start(
            "w-2", "Beta", "q2",
            CustomKeyword="blue", CustomInt=2, CustomDouble=2.0, CustomBool=False, CustomList=["b", "c"],
            CustomTime="2024-06-01T12:00:00.5+02:00", CustomText="brave new world, hello-there",
        )  # fmt: skip
        self.start("w-3", "Alpha", "q3", CustomKeyword="redder", CustomInt=-5)
        time.sleep(6.4)
        self.complete_task(
            "q3",
            Command(
                command_type=CommandType.COMMAND_TYPE_COMPLETE_WORKFLOW_EXECUTION,
                complete_workflow_execution_command_attributes=CompleteWorkflowExecutionCommandAttributes(),
            ),
        )
        self.start("w-4", "Beta", "q4")
        execution = WorkflowExecution(workflow_id="w-4")
        self.service.TerminateWorkflowExecution(
            TerminateWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution)
        )
        self.start("it's", "Gamma", "q5", CustomKeyword='it\'s "q" a_b%', CustomInt=100, CustomList=["it's", "a"])
        time.sleep(1.2)
        child = StartChildWorkflowExecutionCommandAttributes(
            workflow_id="child",
            workflow_type=WorkflowType(name="Child"),
            task_queue=TaskQueue(name="q6"),
            parent_close_policy=2,  # type: ignore[arg-type]
        )
        self.complete_task(
            "q5",
            Command(
                command_type=CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
                start_child_workflow_execution_command_attributes=child,
            ),
        )
        time.sleep(0.5)
        self.complete_task(
            "q5",
            Command(
                command_type=CommandType.COMMAND_TYPE_FAIL_WORKFLOW_EXECUTION,
                fail_workflow_execution_command_attributes=FailWorkflowExecutionCommandAttributes(
                    failure=Failure(message="x")
                ),
            ),
        )
        # Wait until all runs can be found.
        time.sleep(2)

    def ask(self, query: str) -> dict[str, object]:
        """The runs that the server lists, or its error."""
        answer = self._call("ListWorkflowExecutions", ListWorkflowExecutionsRequest(namespace=NAMESPACE, query=query))
        if isinstance(answer, dict):
            return {"query": query, **answer}
        return {"query": query, "found": [one.execution.workflow_id for one in answer.executions]}

    def count(self, query: str) -> dict[str, object]:
        """The server's counts, or its error."""
        answer = self._call("CountWorkflowExecutions", CountWorkflowExecutionsRequest(namespace=NAMESPACE, query=query))
        if isinstance(answer, dict):
            return {"count": query, **answer}
        groups = [[group.group_values[0].data.decode(), group.count] for group in answer.groups]
        return {"count": query, "rows": answer.count, "groups": groups}

    def _call(self, method: str, request: Message) -> Any:
        while True:
            try:
                return getattr(self.service, method)(request, timeout=10)
            except grpc.RpcError as error:
                code, message = error.code().name, error.details()
            if code != "RESOURCE_EXHAUSTED":
                return {"code": code, "message": message}
            time.sleep(0.3)


def main() -> None:
    """Start the reference server on a free loopback port, send all queries, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    attributes = [
        word for name, number in CUSTOM.items() for word in ("--search-attribute", f"{name}={TYPE_NAMES[number]}")
    ]
    command = [str(Path(sys.executable).parent / "temporal"), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    cases = json.loads(RECORDED.read_text())
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(  # noqa: S603 - the reference server on loopback
            [*command, "--port", str(port), "--db-filename", f"{folder}/db", "--log-level", "never", *attributes]
        )
        try:
            time.sleep(8)
            reference = Reference(f"127.0.0.1:{port}")
            reference.make_runs()
            recorded = [
                reference.ask(case["query"]) if "query" in case else reference.count(case["count"]) for case in cases
            ]
        finally:
            server.terminate()
            server.wait(20)
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in recorded)
    RECORDED.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
