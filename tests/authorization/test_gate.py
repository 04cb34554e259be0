"""The gate: which credential counts, and what happens to calls that it refuses."""

from typing import Any

import pytest
from temporalio.api.errordetails.v1 import PermissionDeniedFailure

from fairlead.api.codes import code_of
from fairlead.api.errors import ApiError
from fairlead.authorization import (
    AuthInfo,
    AuthorizationTarget,
    Claims,
    Decision,
    Denied,
    MethodAccess,
    Role,
    access_of,
)
from fairlead.authorization.api_keys import ApiKeys, new_key, store_key
from fairlead.authorization.gate import HOST, Decided
from fairlead.authorization.methods import OPERATOR_SERVICE, WORKFLOW_SERVICE
from fairlead.rpc import Code
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.hosts.credentials import SECRET_HEADER
from fairlead.settings.static.authorization import CertificateGrant
from fairlead.storage.memory.history import MemoryHistory
from fairlead.telemetry import Metrics
from tests.authorization.tokens import Named, Peer, bearing, make_gate

START = access_of(WORKFLOW_SERVICE, "StartWorkflowExecution")
INFO = access_of(WORKFLOW_SERVICE, "GetSystemInfo")
CLUSTERS = access_of(OPERATOR_SERVICE, "ListClusters")
SECRET = "0123456789abcdef"  # noqa: S105 - of a test
NOBODY = Peer({})


def reason_of(refused: ApiError) -> str:
    from google.protobuf.any_pb2 import Any as Packed  # noqa: PLC0415

    detail = PermissionDeniedFailure()
    assert Packed.FromString(refused.detail).Unpack(detail)
    return detail.reason


async def denied(gate: Any, peer: Peer, method: MethodAccess = START, namespace: str = "orders") -> ApiError:
    with pytest.raises(ApiError) as raised:
        await gate.admit(peer, method, namespace)
    assert (code_of(raised.value), str(raised.value)) == (Code.PERMISSION_DENIED, "Request unauthorized.")
    return raised.value


async def test_only_open_methods_can_be_called_without_credentials() -> None:
    gate = make_gate()
    await denied(gate, NOBODY)
    await denied(gate, bearing("anything"))
    assert await gate.admit(NOBODY, INFO) is None
    # An open method ignores a wrong credential.
    assert await gate.admit(bearing("anything"), INFO) is None


async def test_a_host_proves_itself_by_the_secret() -> None:
    gate = make_gate(secret=SECRET)
    assert await gate.admit(Peer({SECRET_HEADER: SECRET}), CLUSTERS) is HOST
    for wrong in ("", SECRET[:-1], SECRET + "0", SECRET.upper(), "é"):
        await denied(gate, Peer({SECRET_HEADER: wrong}), CLUSTERS)
    # A cluster without a secret has no such header.
    await denied(make_gate(), Peer({SECRET_HEADER: ""}), CLUSTERS)


async def test_a_certificate_counts_if_there_is_no_token() -> None:
    grants = (
        CertificateGrant("billing.example", (("orders", "write"),)),
        CertificateGrant("b.example", cluster="b"),
    )
    gate = make_gate(certificates=grants, mapper=Named())
    by_name = PeerCertificate("CN=billing.example", "billing.example")
    by_alternative = PeerCertificate("CN=x", "x", ("y", "billing.example"))
    for certificate in (by_name, by_alternative):
        found = await gate.admit(Peer({}, certificate), START, "orders")
        assert found is not None
        assert found.principal == ("certificate", "billing.example")
        await denied(gate, Peer({}, certificate), START, "other")
    await denied(gate, Peer({}, PeerCertificate("CN=unknown", "unknown")))
    # A token decides alone, even if it grants less than the certificate.
    await denied(gate, Peer({"authorization": "Bearer orders:read"}, by_name))
    cluster = await gate.identify(Peer({}, PeerCertificate("CN=b.example", "b.example")), START)
    assert cluster is not None
    assert (cluster.cluster, cluster.kind) == ("b", "cluster")
    await denied(gate, Peer({}, PeerCertificate("CN=b.example", "b.example")))


async def test_api_keys_and_tokens_work_side_by_side() -> None:
    store = MemoryHistory()
    key, text = new_key("", namespace="orders", role="writer", now_s=0.0)
    await store_key(store, key)
    keys = ApiKeys(store)
    await keys.refresh()
    gate = make_gate(mapper=Named(), api_keys=keys)
    assert await gate.admit(bearing(text), START, "orders")
    assert await gate.admit(bearing("orders:write"), START, "orders")
    await denied(gate, bearing(text[:-1]), START, "orders")
    await denied(gate, bearing(text), START, "other")


@pytest.mark.parametrize("scheme", ["bearer", "BEARER"])
async def test_the_scheme_of_an_api_key_may_be_written_in_any_case(scheme: str) -> None:
    store = MemoryHistory()
    key, text = new_key("", namespace="orders", role="writer", now_s=0.0)
    await store_key(store, key)
    keys = ApiKeys(store)
    await keys.refresh()
    # With a claim mapper, which must not get the key, and without one.
    for mapper in (Named(), None):
        gate = make_gate(mapper=mapper, api_keys=keys)
        assert await gate.admit(Peer({"authorization": f"{scheme} {text}"}), START, "orders")
        await denied(gate, Peer({"authorization": f"{scheme} {text.upper()}"}), START, "orders")


async def test_the_headers_may_have_other_names() -> None:
    gate = make_gate(mapper=Named(), header="x-token")
    assert await gate.admit(Peer({"x-token": "Bearer orders:write"}), START, "orders")
    await denied(gate, bearing("orders:write"), START, "orders")


class Odd:
    """A claim mapper and an authorizer that misbehave as each test wants."""

    def __init__(self, *, mapped: Any = None, decided: Any = None) -> None:
        self.mapped, self.decided = mapped, decided

    async def claims(self, info: AuthInfo) -> Claims | None:
        if isinstance(self.mapped, Exception):
            raise self.mapped
        return Claims(info.extras or "alice", Role.ADMIN)

    async def authorize(self, claims: Claims | None, target: AuthorizationTarget) -> Decision:
        if isinstance(self.decided, Exception):
            raise self.decided
        decision: Decision = self.decided
        return decision


@pytest.mark.parametrize("fault", [ValueError("x"), Denied("no"), KeyError("x"), RecursionError("x")])
async def test_a_failing_mapper_or_authorizer_denies_every_call(fault: Exception) -> None:
    allowed = Odd(decided=Decision(is_allowed=True))
    assert await make_gate(mapper=Odd(), authorizer=allowed).admit(NOBODY, START, "orders")
    metrics = Metrics()
    await denied(make_gate(mapper=Odd(mapped=fault), authorizer=allowed, metrics=metrics), NOBODY)
    await denied(make_gate(mapper=Odd(), authorizer=Odd(decided=fault), metrics=metrics), NOBODY)
    counts = {event.name: sum(series.values()) for event, series in metrics.snapshot().events.items()}
    assert counts["service_errors_unauthorized"] == 2
    assert counts["service_errors_authorize_failed"] == (0 if isinstance(fault, Denied) else 2)


async def test_an_invalid_decision_denies_the_call() -> None:
    for decided in (None, True, 1, "yes", Decision(is_allowed=1)):  # type: ignore[arg-type]
        await denied(make_gate(mapper=Odd(), authorizer=Odd(decided=decided)), NOBODY)


@pytest.mark.parametrize("subject", ["x" * 257, "a\nb", "\x1b[2J", "a\u202eb"])
async def test_a_caller_with_a_name_that_is_too_long_or_not_printable_is_refused(subject: str) -> None:
    class Mapper:
        def claims(self, _: AuthInfo) -> Claims | None:
            return Claims(subject, Role.ADMIN)

    await denied(make_gate(mapper=Mapper()), bearing("x"))
    assert await make_gate(mapper=Odd(), authorizer=Odd(decided=Decision(is_allowed=True))).admit(
        Peer({"authorization-extras": "x" * 256}), START, "orders"
    )


async def test_callers_get_the_reason_only_if_the_setting_says_so() -> None:
    assert reason_of(await denied(make_gate(mapper=Named()), bearing("orders:read"))) == ""
    gate = make_gate(mapper=Named(), dynamic={"frontend.exposeAuthorizerErrors": True})
    assert reason_of(await denied(gate, bearing("orders:read"))) == "the role does not suffice"


async def test_refusals_and_admin_calls_are_reported() -> None:
    decided: list[Decided] = []
    gate = make_gate(mapper=Named(), decided=decided)
    await denied(gate, NOBODY)
    await denied(gate, bearing("orders:read"))
    await gate.admit(bearing("orders:write"), START, "orders")
    await gate.admit(bearing("temporal-system:admin"), CLUSTERS)
    assert [(each.method.name, each.is_allowed, each.principal.name) for each in decided] == [
        ("StartWorkflowExecution", False, ""),
        ("StartWorkflowExecution", False, "Bearer orders:read"),
        ("ListClusters", True, "Bearer temporal-system:admin"),
    ]
