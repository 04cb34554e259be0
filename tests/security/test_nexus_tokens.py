"""A Nexus task can be answered only with the token that its worker got."""

import uuid

import pytest
from msgspec.structs import replace
from temporalio.api.command.v1 import Command, ScheduleNexusOperationCommandAttributes
from temporalio.api.common.v1 import Payload, WorkflowType
from temporalio.api.enums.v1 import CommandType
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget, Response, StartOperationResponse
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    PollNexusTaskQueueRequest,
    PollWorkflowTaskQueueRequest,
    RespondNexusTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.service import RPCError, RPCStatusCode

from fairlead.api.tokens import NexusTaskToken, decode_token, encode_token
from fairlead.testing import FairleadServer

QUEUE = TaskQueue(name="queue")


async def test_a_token_with_another_request_id_is_not_accepted() -> None:
    async with FairleadServer.start(other_namespaces=["handler"]) as server:
        client = await server.connect()
        service = client.workflow_service
        await client.operator_service.create_nexus_endpoint(
            CreateNexusEndpointRequest(
                spec=EndpointSpec(
                    name="desk",
                    target=EndpointTarget(worker=EndpointTarget.Worker(namespace="handler", task_queue="queue")),
                )
            )
        )
        await service.start_workflow_execution(
            StartWorkflowExecutionRequest(
                namespace="default",
                workflow_id="caller",
                workflow_type=WorkflowType(name="Caller"),
                task_queue=QUEUE,
                request_id=str(uuid.uuid4()),
            )
        )
        task = await service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(namespace="default", task_queue=QUEUE)
        )
        operation = ScheduleNexusOperationCommandAttributes(endpoint="desk", service="service", operation="operation")
        await service.respond_workflow_task_completed(
            RespondWorkflowTaskCompletedRequest(
                namespace="default",
                task_token=task.task_token,
                commands=[
                    Command(
                        command_type=CommandType.COMMAND_TYPE_SCHEDULE_NEXUS_OPERATION,
                        schedule_nexus_operation_command_attributes=operation,
                    )
                ],
            )
        )
        polled = await service.poll_nexus_task_queue(PollNexusTaskQueueRequest(namespace="handler", task_queue=QUEUE))
        token = decode_token(polled.task_token)
        assert isinstance(token, NexusTaskToken)
        assert token.request_id == polled.request.start_operation.request_id

        def answer(task_token: bytes) -> RespondNexusTaskCompletedRequest:
            success = StartOperationResponse.Sync(payload=Payload(data=b"1"))
            response = Response(start_operation=StartOperationResponse(sync_success=success))
            return RespondNexusTaskCompletedRequest(namespace="handler", task_token=task_token, response=response)

        with pytest.raises(RPCError) as refused:
            await service.respond_nexus_task_completed(
                answer(encode_token(replace(token, request_id=str(uuid.uuid4()))))
            )
        assert refused.value.status is RPCStatusCode.NOT_FOUND
        await service.respond_nexus_task_completed(answer(polled.task_token))
