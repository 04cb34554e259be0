"""The audit in the journal, and the principal in the events: who did what, and never a payload."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    TerminateWorkflowExecutionRequest,
    UpdateNamespaceRequest,
)
from temporalio.api.workflowservice.v1.service_pb2_grpc import WorkflowServiceStub

from fairlead.api.principals import NOBODY, current_principal, use_principal
from fairlead.authorization.audit import Audit, object_of
from fairlead.authorization.claims import Principal
from fairlead.authorization.gate import Decided
from fairlead.authorization.host_methods import HOST_METHODS
from fairlead.authorization.messages import CREATE_KEY, LIST_KEYS, CreateKeyRequest, ListKeysRequest
from fairlead.journal import read_segment
from fairlead.replication.messages import FailOverRequest
from fairlead.rpc.hosts.credentials import AUTHORIZATION_HEADER, PRINCIPAL_HEADER, Credentials, with_secret
from fairlead.server import Server, new_caller
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import Address, JournalConfig, MemoryConfig, SecurityConfig, StaticConfig
from tests.cli.processes import run

SECRET = "0123456789abcdef"  # noqa: S105 - of a test
PRIVATE = b"nobody else's business"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    running = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig(),
            journal=JournalConfig(tmp_path / "journal"),
            security=SecurityConfig(AuthorizationConfig(authorizer="default"), secret=SECRET),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await running.start()
    yield running
    await running.stop()


async def key_of(server: Server, role: str, name: str) -> str:
    caller = new_caller(with_secret(SECRET))
    try:
        request = CreateKeyRequest(name, "default", role)
        return (await caller.call(server.address, CREATE_KEY, request, timeout_s=10)).key
    finally:
        await caller.close()


def records(folder: Path) -> list[dict[str, Any]]:
    return [record for path in sorted(folder.rglob("audit.v1.*")) for record in read_segment(path)]


async def test_operators_changes_and_all_refusals_are_in_the_audit_and_principals_in_events(
    server: Server, tmp_path: Path
) -> None:
    admin, reader = await key_of(server, "admin", "alice"), await key_of(server, "reader", "bob")
    assert server.frontend_address is not None
    async with grpc.aio.insecure_channel(server.frontend_address) as channel:
        any_channel: Any = channel
        service: Any = WorkflowServiceStub(any_channel)

        def with_key(key: str) -> Any:
            # A principal in a header is ignored.
            return {
                "metadata": [
                    ("authorization", f"Bearer {key}"),
                    (PRINCIPAL_HEADER, "host/mallory"),
                    ("principal-name", "mallory"),
                ]
            }

        payloads = Payloads(payloads=[Payload(data=PRIVATE)])
        execution = WorkflowExecution(workflow_id="order-1")
        start = StartWorkflowExecutionRequest(
            namespace="default",
            workflow_id="order-1",
            workflow_type=WorkflowType(name="T"),
            task_queue=TaskQueue(name="q"),
            request_id=str(uuid.uuid4()),
            input=payloads,
        )
        await service.StartWorkflowExecution(start, **with_key(admin))
        signal = SignalWorkflowExecutionRequest(
            namespace="default", workflow_execution=execution, signal_name="s", input=payloads
        )
        with pytest.raises(grpc.aio.AioRpcError):
            await service.SignalWorkflowExecution(signal, **with_key(reader))
        with pytest.raises(grpc.aio.AioRpcError):
            await service.SignalWorkflowExecution(signal)
        await service.UpdateNamespace(UpdateNamespaceRequest(namespace="default"), **with_key(admin))
        terminate = TerminateWorkflowExecutionRequest(
            namespace="default", workflow_execution=execution, reason="a reason", details=payloads
        )
        await service.TerminateWorkflowExecution(terminate, **with_key(admin))
        read = GetWorkflowExecutionHistoryRequest(namespace="default", execution=execution)
        history = (await service.GetWorkflowExecutionHistory(read, **with_key(reader))).history
        named = {event.event_type: (event.principal.type, event.principal.name) for event in history.events}
        alice = f"{admin.split('_')[1]} (alice)"
        # Started and terminated by alice; what the server did by itself has no principal.
        assert named[1] == named[27] == ("api-key", alice)
    await server.stop()
    found = await asyncio.to_thread(records, tmp_path)
    service_name = "temporal.api.workflowservice.v1.WorkflowService"
    bob = f"{reader.split('_')[1]} (bob)"
    said = [
        (
            record["method"],
            record.get("principal", ""),
            record.get("namespace", ""),
            record.get("object", ""),
            record["is_allowed"],
        )
        for record in found
    ]
    assert said == [
        ("fairlead/authorization.CreateKey", "host", "", "alice", True),
        ("fairlead/authorization.CreateKey", "host", "", "bob", True),
        (f"{service_name}/SignalWorkflowExecution", bob, "default", "order-1", False),
        (f"{service_name}/SignalWorkflowExecution", "", "", "", False),
        (f"{service_name}/UpdateNamespace", alice, "default", "", True),
        (f"{service_name}/TerminateWorkflowExecution", alice, "default", "order-1", True),
    ]
    assert all(record["reason"] for record in found if not record["is_allowed"])
    assert PRIVATE.decode() not in str(found)


async def test_admin_commands_are_in_the_audit(server: Server, tmp_path: Path) -> None:
    caller = new_caller(with_secret("another secret than it"))
    with pytest.raises(Exception, match="Request unauthorized"):
        await caller.call(server.address, LIST_KEYS, ListKeysRequest(), timeout_s=10)
    await caller.close()
    await server.stop()
    [record] = await asyncio.to_thread(records, tmp_path)
    assert (record["method"], record["is_allowed"]) == ("fairlead/authorization.ListKeys", False)


async def test_a_key_keeps_the_name_of_its_creator(server: Server) -> None:
    caller = new_caller(with_secret(SECRET))
    first = await caller.call(
        server.address, CREATE_KEY, CreateKeyRequest("alice", "temporal-system", "admin"), timeout_s=10
    )
    await caller.close()
    alice = new_caller(Credentials(((AUTHORIZATION_HEADER, f"Bearer {first.key}"),)))
    await alice.call(server.address, CREATE_KEY, CreateKeyRequest("bob", "default", "reader"), timeout_s=10)
    found = (await alice.call(server.address, LIST_KEYS, ListKeysRequest(), timeout_s=10)).keys
    await alice.close()
    assert {each.name: each.created_by for each in found} == {
        "alice": "host/host",
        "bob": f"api-key/{first.id} (alice)",
    }


async def test_keys_that_are_made_and_revoked_in_the_store_itself_are_in_the_audit(tmp_path: Path) -> None:
    config = tmp_path / "fairlead.yaml"
    config.write_text("store: {sqlite: {file: fairlead.db}}\njournal: {folder: journal}\n")
    made = await run(
        *("admin", "key", "create", "--system", "--role", "admin", "--name", "me", "--config", str(config)),
        folder=tmp_path,
    )
    assert made.code == 0, made.err
    key_id = made.out.split("_")[1]
    assert (await run("admin", "key", "revoke", key_id, "--config", str(config), folder=tmp_path)).code == 0
    found = await asyncio.to_thread(records, tmp_path / "journal")
    assert [(each["method"], each["object"], each["is_allowed"]) for each in found] == [
        ("fairlead/authorization.CreateKey", "me", True),
        ("fairlead/authorization.RevokeKey", key_id, True),
    ]
    assert {each["principal_kind"] for each in found} == {"command-line"}


async def test_a_flood_of_refusals_leaves_the_changes_of_operators_in_the_journal(
    server: Server, tmp_path: Path
) -> None:
    admin = await key_of(server, "admin", "alice")
    assert server.frontend_address is not None
    async with grpc.aio.insecure_channel(server.frontend_address) as channel:
        any_channel: Any = channel
        service: Any = WorkflowServiceStub(any_channel)
        update = UpdateNamespaceRequest(namespace="default")
        for _ in range(5):
            outcomes = await asyncio.gather(
                *(service.UpdateNamespace(update) for _ in range(200)), return_exceptions=True
            )
            assert {outcome.code() for outcome in outcomes} == {grpc.StatusCode.PERMISSION_DENIED}  # type: ignore[union-attr]
            # A header does not put an ordinary call into the audit.
            read = GetWorkflowExecutionHistoryRequest(namespace="default")
            metadata = [("authorization", f"Bearer {admin}"), ("fairlead-reason", "look at me")]
            with pytest.raises(grpc.aio.AioRpcError):
                await service.GetWorkflowExecutionHistory(read, metadata=metadata)
            await service.UpdateNamespace(update, metadata=metadata)
    await server.stop()
    found = await asyncio.to_thread(records, tmp_path)
    changes = [record for record in found if record["is_allowed"] and record["method"].endswith("UpdateNamespace")]
    assert len(changes) == 5
    assert not any("look at me" in str(record) for record in found)
    refused = [record for record in found if not record["is_allowed"]]
    assert len(refused) < 100
    # The rest is counted when the server stops at the latest.
    assert sum(record.get("left_out", 1) for record in refused) == 1_000


async def test_a_principal_belongs_to_the_task_of_its_call() -> None:
    use_principal(("api-key", "alice"))
    assert current_principal() == ("api-key", "alice")

    async def elsewhere() -> tuple[str, str]:
        return current_principal()

    assert await elsewhere() == ("api-key", "alice")
    # Work that a call only schedules has no principal.
    assert await asyncio.create_task(elsewhere()) == NOBODY
    seen: list[tuple[str, str]] = []
    asyncio.get_running_loop().call_soon(lambda: seen.append(current_principal()))
    await asyncio.sleep(0)
    assert seen == [NOBODY]
    use_principal(NOBODY)
    assert current_principal() == NOBODY


def test_the_object_of_a_request_is_its_name() -> None:
    assert object_of(StartWorkflowExecutionRequest(workflow_id="w")) == "w"
    assert object_of(UpdateNamespaceRequest(namespace="default")) == ""
    assert object_of(CreateKeyRequest("alice", "orders", "reader")) == "alice"
    assert object_of(None) == ""


@pytest.mark.parametrize(
    ("name", "asked", "namespace", "found"),
    [
        ("replication.FailOver", FailOverRequest("orders", "b", is_graceful=True, timeout_s=1.0), "", "orders"),
        ("authorization.CreateKey", CreateKeyRequest("alice", "orders", "reader"), "", "alice"),
        ("matching.Poll", UpdateNamespaceRequest(namespace="orders"), "orders", ""),
        ("replication.FailOver", None, "", ""),
    ],
)
def test_the_object_of_a_request_about_the_cluster_may_be_a_namespace(
    name: str, asked: Any, namespace: str, found: str
) -> None:
    audit = Audit(None, host="host")
    audit.record(Decided(Principal("api-key", "alice"), HOST_METHODS[name], namespace, True, "", "127.0.0.1:1", asked))
    assert [(record.namespace, record.object) for record in audit.recent] == [(namespace, found)]
