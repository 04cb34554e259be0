"""Callers don't reach other namespaces by what their requests contain: commands, task tokens, forged Nexus tokens."""

from typing import Any

import pytest
from temporalio.api.command.v1 import (
    Command,
    RequestCancelExternalWorkflowExecutionCommandAttributes,
    SignalExternalWorkflowExecutionCommandAttributes,
    StartChildWorkflowExecutionCommandAttributes,
)
from temporalio.api.enums.v1 import CommandType
from temporalio.api.nexus.v1 import Response, StartOperationResponse
from temporalio.api.workflowservice.v1 import (
    RespondNexusTaskCompletedRequest,
    RespondWorkflowTaskCompletedRequest,
    StartWorkflowExecutionRequest,
)

from fairlead.api.namespaces import Namespace
from fairlead.api.tokens import NexusTaskToken, WorkflowTaskToken, encode_token
from fairlead.authorization import Gate
from fairlead.rpc.certificate import PeerCertificate
from fairlead.settings.static.authorization import CertificateGrant
from tests.authorization.tokens import Named, make_gate
from tests.frontend.served import DAY_NS, DEFAULT_ID, Serving, code_and_message, serving

OTHER_ID = "00000000-0000-4000-8000-000000000002"
UNAUTHORIZED = ("PERMISSION_DENIED", "Request unauthorized.")


def bearer(permissions: str) -> Any:
    return [("authorization", f"Bearer {permissions}")]


def commands(namespace: str) -> dict[str, Command]:
    return {
        "child": Command(
            command_type=CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION,
            start_child_workflow_execution_command_attributes=StartChildWorkflowExecutionCommandAttributes(
                namespace=namespace
            ),
        ),
        "signal": Command(
            command_type=CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION,
            signal_external_workflow_execution_command_attributes=SignalExternalWorkflowExecutionCommandAttributes(
                namespace=namespace
            ),
        ),
        "cancel": Command(
            command_type=CommandType.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION,
            request_cancel_external_workflow_execution_command_attributes=RequestCancelExternalWorkflowExecutionCommandAttributes(
                namespace=namespace
            ),
        ),
    }


@pytest.mark.parametrize("kind", ["child", "signal", "cancel"])
async def test_commands_into_another_namespace_need_its_role(kind: str) -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:

        async def complete(namespace: str, permissions: str) -> tuple[str, str]:
            request = RespondWorkflowTaskCompletedRequest(namespace="default", commands=[commands(namespace)[kind]])
            call = served.workflow.RespondWorkflowTaskCompleted(request, metadata=bearer(permissions))
            return await code_and_message(call)

        # Beyond the gate, the request fails because it has no token.
        passed = ("INVALID_ARGUMENT", "Task token not set on request.")
        for namespace in ("", "default"):
            assert await complete(namespace, "default:worker") == passed
        for permissions in (
            "default:worker",
            "default:admin",
            "default:worker,other:worker",
            "default:worker,other:read",
        ):
            assert await complete("other", permissions) == UNAUTHORIZED
            assert await complete("absent", permissions) == UNAUTHORIZED
        assert await complete("other", "default:worker,other:write") == passed
        assert await complete("other", "temporal-system:write") == passed


async def with_other(served: Serving) -> None:
    await served.frontend.namespaces.ensure(Namespace(id=OTHER_ID, name="other", retention_ns=DAY_NS))


async def test_a_task_token_of_another_namespace_is_refused() -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:
        await with_other(served)
        token = encode_token(WorkflowTaskToken(OTHER_ID, "w", "r", 1, 1, 2))
        request = RespondWorkflowTaskCompletedRequest(namespace="default", task_token=token)
        code, message = await code_and_message(
            served.workflow.RespondWorkflowTaskCompleted(request, metadata=bearer("default:admin"))
        )
        assert (code, message) == (
            "INVALID_ARGUMENT",
            "Operation requested with a token from a different namespace.",
        )
        # Without a namespace in the request, the namespace of the token would apply; only a role in the whole system
        # allows that.
        request.namespace = ""
        for permissions in ("default:admin", "other:admin"):
            call = served.workflow.RespondWorkflowTaskCompleted(request, metadata=bearer(permissions))
            assert await code_and_message(call) == UNAUTHORIZED


async def test_a_made_up_nexus_token_reaches_no_workflow_of_another_namespace() -> None:
    async with serving(gate=make_gate(mapper=Named())) as served:
        await with_other(served)
        token = encode_token(NexusTaskToken(DEFAULT_ID, "w", "r", OTHER_ID, 5, 1, is_cancel=False))
        request = RespondNexusTaskCompletedRequest(
            namespace="default",
            task_token=token,
            response=Response(start_operation=StartOperationResponse(sync_success=StartOperationResponse.Sync())),
        )
        code, message = await code_and_message(
            served.workflow.RespondNexusTaskCompleted(request, metadata=bearer("default:worker"))
        )
        assert (code, message) == ("NOT_FOUND", "Nexus task not found or already expired")


def gate_of_cluster() -> Gate:
    return make_gate(mapper=Named(), certificates=(CertificateGrant("b.example", cluster="b"),))


@pytest.mark.parametrize("kind", ["child", "signal", "cancel"])
async def test_a_cluster_forwards_commands_into_another_namespace_if_it_shares_both(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(gate=gate_of_cluster()) as served:
        for number, (name, clusters) in enumerate({"one": "ab", "two": "ab", "others": "ac"}.items(), 3):
            await served.frontend.namespaces.ensure(
                Namespace(
                    id=OTHER_ID[:-1] + str(number),
                    name=name,
                    retention_ns=DAY_NS,
                    is_global=True,
                    clusters=tuple(clusters),
                )
            )
        monkeypatch.setattr(
            "fairlead.rpc.connection.peer_certificate", lambda _: PeerCertificate("CN=b.example", "b.example")
        )

        async def complete(target: str) -> tuple[str, str]:
            request = RespondWorkflowTaskCompletedRequest(namespace="one", commands=[commands(target)[kind]])
            return await code_and_message(served.workflow.RespondWorkflowTaskCompleted(request))

        assert await complete("two") == ("INVALID_ARGUMENT", "Task token not set on request.")
        for target in ("others", "default", "absent"):
            assert await complete(target) == UNAUTHORIZED


@pytest.mark.parametrize(
    ("name", "is_global", "clusters", "is_allowed"),
    [
        ("shared", True, ("a", "b"), True),
        ("others", True, ("a", "c"), False),
        ("local", False, ("a", "b"), False),
    ],
)
async def test_a_cluster_forwards_calls_only_for_namespaces_that_it_shares(
    name: str, is_global: bool, clusters: tuple[str, ...], is_allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(gate=gate_of_cluster()) as served:
        await served.frontend.namespaces.ensure(
            Namespace(id=OTHER_ID, name=name, retention_ns=DAY_NS, is_global=is_global, clusters=clusters)
        )
        # The connection has no TLS, so the test sets the certificate directly.
        monkeypatch.setattr(
            "fairlead.rpc.connection.peer_certificate", lambda _: PeerCertificate("CN=b.example", "b.example")
        )
        start = served.workflow.StartWorkflowExecution(StartWorkflowExecutionRequest(namespace=name))
        assert (await code_and_message(start) != UNAUTHORIZED) is is_allowed
        absent = served.workflow.StartWorkflowExecution(StartWorkflowExecutionRequest(namespace="absent"))
        assert await code_and_message(absent) == UNAUTHORIZED
        from temporalio.api.workflowservice.v1 import UpdateNamespaceRequest  # noqa: PLC0415

        update = served.workflow.UpdateNamespace(UpdateNamespaceRequest(namespace=name))
        assert await code_and_message(update) == UNAUTHORIZED
