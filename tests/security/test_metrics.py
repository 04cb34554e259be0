"""A running server with TLS and authorization has a value for each metric of security that docs/metrics.md promises."""

from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, ListNamespacesRequest
from temporalio.client import Client
from temporalio.service import RPCError, TLSConfig

from fairlead.authorization import AuthorizationTarget, Claims, Decision
from fairlead.server import Server
from fairlead.settings.static.authorization import AuthorizationConfig
from fairlead.settings.static.config import Address, MemoryConfig, SecurityConfig, StaticConfig
from fairlead.settings.static.tls import Pem, ServerTls, TlsConfig, TlsGroup
from tests.authorization.plugins_of_test import Mapper
from tests.patience import until
from tests.security.certificates import Authority, Issued
from tests.server.test_promised_metrics import OF_SECURITY, samples_of
from tests.server.test_server import http_status

LOOPBACK = Address("127.0.0.1", 0)


class Faulty:
    """An authorizer that allows one method, fails at another one, and denies all others."""

    def __init__(self, _: AuthorizationConfig) -> None:
        pass

    async def authorize(self, _: Claims | None, target: AuthorizationTarget) -> Decision:
        if target.method.name == "ListNamespaces":
            raise RuntimeError("the authorizer has a bug")
        # The SDK calls it to connect.
        return Decision(is_allowed=target.method.name == "GetSystemInfo")


def server_tls(issued: Issued) -> ServerTls:
    return ServerTls(Pem(issued.certificate), Pem(issued.key))


async def test_every_promised_metric_of_security_has_a_value(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued, expired = authority.issue("localhost", days=1.0), authority.issue("old", days=-0.5)
    tls = TlsConfig(frontend=TlsGroup(server_tls(issued), overrides={"old": server_tls(expired)}))
    authorization = AuthorizationConfig(f"{__name__}:{Faulty.__name__}", f"{Mapper.__module__}:{Mapper.__name__}")
    server = Server(
        StaticConfig(
            frontend_listen=LOOPBACK,
            listen=LOOPBACK,
            metrics_listen=LOOPBACK,
            store=MemoryConfig(),
            security=SecurityConfig(authorization, tls=tls),
            hand_over_s=0.0,
            grace_s=0.0,
        )
    )
    await server.start()
    try:
        assert server.frontend_address is not None
        assert server.metrics_address is not None
        trusted = TLSConfig(server_root_ca_cert=authority.certificate.read_bytes())
        client = await Client.connect(
            server.frontend_address.replace("127.0.0.1", "localhost"), tls=trusted, api_key="bob"
        )
        service = client.workflow_service
        for call in (
            service.describe_namespace(DescribeNamespaceRequest(namespace="default")),
            service.list_namespaces(ListNamespacesRequest()),
        ):
            with pytest.raises(RPCError, match="unauthorized"):
                await call
        address = server.metrics_address

        async def has_all() -> bool:
            _, answer = await http_status(address, "/metrics")
            return {name for name, sample in samples_of(answer) if sample.value} >= OF_SECURITY

        # The server reads the ends of its certificates after its start.
        await until(has_all)
    finally:
        await server.stop()
