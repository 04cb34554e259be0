"""Every method of a host's own port, caller by caller: hosts, operators, clients of task queues, and strangers."""

from typing import Any

import pytest

from fairlead.api.errors import ApiError
from fairlead.authorization.host_methods import HostAdmission
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.matching.messages import ADD, POLL, AddRequest, NewTask, PollRequest
from fairlead.rpc.hosts.credentials import SECRET_HEADER
from fairlead.server import Server
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import Address, ClusterConfig, MemoryConfig, StaticConfig
from fairlead.settings.static.security import SecurityConfig
from tests.authorization.tokens import Named, Peer, bearing, make_gate

SECRET = "0123456789abcdef"  # noqa: S105 - of a test

ANYBODY_KNOWN = {"cluster.Ring"}
SYSTEM_READER = {
    *("namespaces.find", "matching.Describe", "matching.Explain", "matching.List", "history.Tree"),
    "history.Running",
    *("replication.Status", "replication.ListDeadLetters", "replication.FailOverProgress"),
    *("matching.Peek", "matching.Figures", "replication.Preflight", "replication.Failovers"),
}
SYSTEM_ADMIN = {
    "matching.Purge",
    *("matching.Update", "matching.Configure", "replication.MergeDeadLetters", "replication.PurgeDeadLetters"),
    *("replication.Repair", "replication.FailOver", "authorization.CreateKey", "authorization.ListKeys"),
    "authorization.RevokeKey",
}
NAMESPACE_WRITER = {"matching.Add"}
NAMESPACE_WORKER = {"matching.Poll"}
HOSTS_ONLY = {
    *("matching.Push", "matching.Recall", "matching.Report", "matching.Shutdown", "matching.Review"),
    "matching.FreeSlot",
    *("history.Call", "history.SendPart", "history.NextPart", "cluster.Nudge"),
}
GROUPS = (ANYBODY_KNOWN, SYSTEM_READER, SYSTEM_ADMIN, NAMESPACE_WRITER, NAMESPACE_WORKER, HOSTS_ONLY)
ALL = set().union(*GROUPS)


async def test_the_table_has_every_method_of_a_host() -> None:
    server = Server(
        StaticConfig(
            frontend_listen=Address("127.0.0.1", 0),
            listen=Address("127.0.0.1", 0),
            store=MemoryConfig(),
            cluster=ClusterConfig("a"),
            security=SecurityConfig(AuthorizationConfig(authorizer="default")),
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        assert {method.name for method, _ in server._handlers} == ALL
        assert sum(map(len, GROUPS)) == len(ALL)
    finally:
        await server.stop()


def request_of(name: str, namespace: str) -> Any:
    partition = Partition(TaskQueueId(namespace, "queue", TaskType.ACTIVITY), 0)
    if name == ADD.name:
        return AddRequest(partition, NewTask(3, "", 1.0, b"hello"))
    return PollRequest(partition, "worker", "1", 1.0) if name == POLL.name else None


def allowed(name: str, permission: str) -> bool:
    """Whether a caller with one permission may call a method, if it is one of a namespace for `orders`."""
    if name in HOSTS_ONLY:
        return False
    if name in ANYBODY_KNOWN:
        return True
    scope, _, role = permission.partition(":")
    is_system = scope == "temporal-system"
    if name in SYSTEM_ADMIN:
        return is_system and role == "admin"
    if name in SYSTEM_READER:
        return is_system and role in ("read", "write", "admin")
    if not is_system and scope != "orders":
        return False
    return role in ("write", "admin") or (name in NAMESPACE_WORKER and role == "worker")


async def admits(admission: HostAdmission, peer: Peer, name: str, request: Any) -> bool:
    try:
        await admission.admit(peer, name, request)
    except ApiError as refused:
        return str(refused) != "Request unauthorized."
    return True


@pytest.mark.parametrize("scope", ["orders", "billing", "temporal-system"])
@pytest.mark.parametrize("role", ["worker", "read", "write", "admin"])
async def test_each_method_is_allowed_for_the_roles_that_suffice(scope: str, role: str) -> None:
    admission = HostAdmission(make_gate(mapper=Named(), secret=SECRET))
    for name in ALL:
        permission = f"{scope}:{role}"
        found = await admits(admission, bearing(permission), name, request_of(name, "orders"))
        assert found is allowed(name, permission), (name, permission)


async def test_hosts_may_call_everything_and_strangers_nothing() -> None:
    admission = HostAdmission(make_gate(mapper=Named(), secret=SECRET))
    for name in ALL:
        assert await admits(admission, Peer({SECRET_HEADER: SECRET}), name, request_of(name, "orders"))
        assert not await admits(admission, Peer({}), name, request_of(name, "orders"))
        assert not await admits(admission, Peer({SECRET_HEADER: "wrong"}), name, request_of(name, "orders"))


async def test_a_client_reaches_no_task_queue_of_a_namespace_by_its_id_or_version() -> None:
    """Ids are of registered namespaces, whose task queues belong to history."""
    admission = HostAdmission(make_gate(mapper=Named()))
    for namespace in ("11111111-2222-4333-8444-555555555555", "orders#deployment:1", "Orders", ""):
        for name in (ADD.name, POLL.name):
            assert not await admits(admission, bearing("orders:admin"), name, request_of(name, namespace))


async def test_only_hosts_add_tasks_that_stand_for_workflows() -> None:
    admission = HostAdmission(make_gate(mapper=Named(), secret=SECRET), is_reserved=lambda data: data == b"hello")
    request = request_of(ADD.name, "orders")
    assert not await admits(admission, bearing("orders:admin"), ADD.name, request)
    assert not await admits(admission, bearing("temporal-system:admin"), ADD.name, request)
    assert await admits(admission, Peer({SECRET_HEADER: SECRET}), ADD.name, request)
