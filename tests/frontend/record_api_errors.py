"""Records the reference server's error for each bad request: `python -m tests.frontend.record_api_errors HOST:PORT`.

The server must be new, with nothing in its database. Its errors are kept in `api_errors.json`; null stands for a
request that its frontend accepts, and that only the run itself could reject.
"""

import json
import sys

import grpc
import temporalio.api.workflowservice.v1 as api
from google.protobuf.message import Message
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from tests.frontend.bad_requests import NAMESPACE, RECORDED, all_requests, method_of

DEADLINE_S = 2.5
# Errors about a missing or closed run don't come from the frontend.
PASSED_ON = (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.DEADLINE_EXCEEDED)


def main(target: str) -> None:
    """Send all requests, and write down the responses."""
    with grpc.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = WorkflowServiceStub(channel)
        answers = {name: _answer(stub, request) for name, request in all_requests()}
    RECORDED.write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def _answer(stub: WorkflowServiceStub, request: Message) -> tuple[int, str] | None:
    try:
        getattr(stub, method_of(request))(request, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        code, message = error.code(), (error.details() or "").replace("\u00a0", " ")
        is_about_a_run = code is grpc.StatusCode.NOT_FOUND and message.startswith(("workflow ", "update "))
        if code not in PASSED_ON and not is_about_a_run:
            return int(code.value[0]), message
    execution = WorkflowExecution(workflow_id="bad-requests")
    for clean in (
        api.TerminateWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution),
        api.DeleteWorkflowExecutionRequest(namespace=NAMESPACE, workflow_execution=execution),
    ):
        try:
            getattr(stub, method_of(clean))(clean, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
    return None


if __name__ == "__main__":
    main(sys.argv[1])
