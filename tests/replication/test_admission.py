"""Every method of the service for other clusters, for each kind of caller and namespace: allowed or denied."""

from typing import Any, cast

import pytest

from fairlead.api.errors import ApiError
from fairlead.api.namespaces import Namespace, Namespaces
from fairlead.authorization import Gate
from fairlead.replication.admission import ClusterAdmission
from fairlead.replication.allowed_addresses import is_address_allowed
from fairlead.replication.messages import (
    DeadLetterCountRequest,
    Done,
    FailOverRequest,
    NamespacesRequest,
    Nudge,
    PullRequest,
    RemoteReadBranch,
    RepairRequest,
)
from fairlead.rpc.call import Call
from fairlead.rpc.certificate import PeerCertificate
from fairlead.settings.static.authorization import CertificateGrant
from fairlead.storage.memory.history import MemoryHistory
from tests.authorization.tokens import Named, Peer, bearing, make_gate

IDS = {name: f"{number}" * 8 + "-1111-4111-8111-111111111111" for number, name in enumerate(("ab", "ac", "local"), 1)}
GRANTS = (CertificateGrant("b.example", cluster="b"),)
B = Peer({}, PeerCertificate("CN=b.example", "b.example"))


async def admission(gate: Gate | None) -> ClusterAdmission:
    namespaces = Namespaces(MemoryHistory(), clock=lambda: 1.0)
    await namespaces.open()
    for name, clusters in (("ab", ("a", "b")), ("ac", ("a", "c")), ("local", ("a",))):
        await namespaces.ensure(
            Namespace(
                id=IDS[name],
                name=name,
                retention_ns=1,
                is_global=name != "local",
                clusters=clusters,
                active_cluster="a",
                failover_version=0 if name == "local" else 1,
            )
        )
    await namespaces.close()
    return ClusterAdmission(namespaces, gate)


def requests(cluster: str, namespace: str) -> dict[str, Any]:
    """A request of `cluster` about `namespace` for each method."""
    namespace_id = IDS.get(namespace, "99999999-1111-4111-8111-111111111111")
    return {
        "Info": Done(),
        "Pull": PullRequest(cluster, 0, 0, 0, 1, 1, 0.0),
        "ReadBranch": RemoteReadBranch(namespace_id, "w", "r", ((1, 1),), 1, 2, 1),
        "Namespaces": NamespacesRequest(cluster=cluster),
        "FailOver": FailOverRequest(namespace, cluster, is_graceful=False, timeout_s=1.0),
        "CountDeadLetters": DeadLetterCountRequest(cluster, namespace_id),
        "Nudge": Nudge(cluster),
        "Repair": RepairRequest(cluster, (), namespace_id),
    }


OF_NAMESPACE = {"ReadBranch", "FailOver", "CountDeadLetters", "Repair"}
OF_ITSELF = {"Pull", "Nudge", "CountDeadLetters", "Namespaces"}


async def admits(admitting: ClusterAdmission, peer: Any, name: str, request: Any) -> bool:
    try:
        await admitting.check(peer, await admitting.identify(peer, name), name, request)
    except ApiError as refused:
        return str(refused) != "Request unauthorized."
    return True


@pytest.mark.parametrize("cluster", ["b", "c", "a"])
@pytest.mark.parametrize("namespace", ["ab", "ac", "local", "absent"])
async def test_a_cluster_asks_only_for_itself_and_about_what_it_shares(cluster: str, namespace: str) -> None:
    admitting = await admission(make_gate(certificates=GRANTS))
    for name, request in requests(cluster, namespace).items():
        allowed = (name not in OF_NAMESPACE or namespace == "ab") and (name not in OF_ITSELF or cluster == "b")
        assert await admits(admitting, B, name, request) is allowed, name


async def test_a_cluster_that_does_not_say_its_name_gets_its_own_namespaces() -> None:
    """Requests of an older release have no field for the name."""
    admitting = await admission(make_gate(certificates=GRANTS))
    claims = await admitting.identify(cast("Call", B), "Namespaces")
    found = await admitting.check(cast("Call", B), claims, "Namespaces", NamespacesRequest("digest"))
    assert found == NamespacesRequest("digest", cluster="b")


@pytest.mark.parametrize("permission", ["", "ab:admin", "temporal-system:write", "temporal-system:admin"])
async def test_others_need_the_role_admin_in_the_whole_system(permission: str) -> None:
    admitting = await admission(make_gate(certificates=GRANTS, mapper=Named()))
    for name, request in requests("b", "ab").items():
        peer = bearing(permission) if permission else Peer({})
        assert await admits(admitting, peer, name, request) is (permission == "temporal-system:admin"), name


async def test_without_authorization_only_global_namespaces_can_be_read() -> None:
    admitting = await admission(None)
    for namespace in ("ab", "ac", "local", "absent"):
        request = requests("b", namespace)["ReadBranch"]
        assert await admits(admitting, Peer({}), "ReadBranch", request) is (namespace in ("ab", "ac"))


@pytest.mark.parametrize(
    ("address", "is_allowed"),
    [
        ("b.example:7233", True),
        ("B.Example:7233", True),
        ("b.example:7234", False),
        ("x.inner.example:1", True),
        ("inner.example:1", False),
        ("10.1.2.3:7233", True),
        ("11.1.2.3:7233", False),
        ("[fd00::1]:7233", True),
        ("169.254.169.254:80", False),
        ("localhost:1", False),
    ],
)
def test_addresses_of_remote_clusters_can_be_restricted(address: str, is_allowed: bool) -> None:
    patterns = ("b.example:7233", "*.inner.example", "10.0.0.0/8", "fd00::/8")
    assert is_address_allowed(address, patterns) is is_allowed
    assert is_address_allowed(address, ())
