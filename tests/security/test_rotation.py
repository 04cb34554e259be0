"""Keys of tokens and certificates that are replaced while a real server serves the official SDK."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, TLSConfig
from temporalio.service import RPCError, RPCStatusCode

from tests.authorization.tokens import Issuer
from tests.cli.processes import server
from tests.patience import until
from tests.security.certificates import Authority
from tests.security.workflows import QUEUE, Greeting, worker


async def test_a_withdrawn_signing_key_ends_its_tokens_and_a_new_certificate_breaks_no_connection(
    tmp_path: Path,
) -> None:
    authority, before, after = Authority(tmp_path), Issuer.make(), Issuer.make()
    authority.issue("localhost", file="server")
    keys = tmp_path / "jwks.json"
    (tmp_path / "fairlead.yaml").write_text(
        f"""
frontend: {{listen: "127.0.0.1:0"}}
listen: 127.0.0.1:0
store: {{memory: {{}}}}
namespaces: [orders]
stop: {{handOver: 0s, grace: 1s}}
global:
  authorization:
    authorizer: default
    claimMapper: default
    jwtKeyProvider: {{keySourceURIs: ["{before.write(keys)}"], refreshInterval: 1s}}
  tls:
    refreshInterval: 1s
    frontend: {{server: {{certFile: server.pem, keyFile: server.key}}}}
"""
    )
    tls = TLSConfig(server_root_ca_cert=authority.certificate.read_bytes())
    async with server("--config", str(tmp_path / "fairlead.yaml"), folder=tmp_path) as running:
        found = re.search(r"SDKs connect to (\S+),", running.ready)
        assert found is not None, running.ready

        async def client_of(issuer: Issuer) -> Client:
            token = issuer.token("orders:write")
            return await Client.connect(found[1], namespace="orders", api_key=token, tls=tls)

        old = await client_of(before)
        async with worker(old):
            assert await old.execute_workflow(Greeting.run, "world", id="1", task_queue=QUEUE) == "Hello, world!"
        authority.issue("localhost", file="server")
        after.write(keys)

        async def is_refused() -> bool:
            try:
                await old.get_workflow_handle("1").describe()
            except RPCError as refused:
                return refused.status is RPCStatusCode.PERMISSION_DENIED
            return False

        # The open connection keeps its old certificate; the token is refused, since its signing key was withdrawn.
        await until(is_refused)
        new = await client_of(after)
        async with worker(new):
            assert await new.execute_workflow(Greeting.run, "again", id="2", task_queue=QUEUE) == "Hello, again!"
        # A client that trusts another authority does not connect.
        other = Authority(tmp_path, "other")
        with pytest.raises(RuntimeError):
            await Client.connect(found[1], tls=TLSConfig(server_root_ca_cert=other.certificate.read_bytes()))


async def test_a_withdrawn_authority_of_clients_ends_open_connections_and_disturbs_no_others(tmp_path: Path) -> None:
    authority, gone = Authority(tmp_path), Authority(tmp_path, "gone")
    authority.issue("localhost", file="server")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.certificate.read_bytes() + gone.certificate.read_bytes())
    (tmp_path / "fairlead.yaml").write_text(
        """
frontend: {listen: "127.0.0.1:0"}
listen: 127.0.0.1:0
store: {memory: {}}
namespaces: [orders]
stop: {handOver: 0s, grace: 1s}
global:
  authorization:
    authorizer: default
    certificates: {shop.example: {permissions: ["orders:write"]}}
  tls:
    refreshInterval: 1s
    frontend:
      server: {certFile: server.pem, keyFile: server.key, clientCaFiles: [clients.pem], requireClientAuth: true}
"""
    )
    async with server("--config", str(tmp_path / "fairlead.yaml"), folder=tmp_path) as running:
        found = re.search(r"SDKs connect to (\S+),", running.ready)
        assert found is not None, running.ready

        async def client_of(issuer: Authority, file: str) -> Client:
            own = issuer.issue("shop.example", file=file)
            tls = TLSConfig(
                server_root_ca_cert=authority.certificate.read_bytes(),
                client_cert=own.certificate.read_bytes(),
                client_private_key=own.key.read_bytes(),
            )
            return await Client.connect(found[1], namespace="orders", tls=tls)

        kept, ended = await client_of(authority, "kept"), await client_of(gone, "ended")
        async with worker(kept):
            assert await ended.execute_workflow(Greeting.run, "world", id="1", task_queue=QUEUE) == "Hello, world!"
            # A call of the valid client that waits meanwhile: this task queue has no worker yet.
            waiting = asyncio.create_task(kept.execute_workflow(Greeting.run, "again", id="2", task_queue="later"))
            trusted.write_bytes(authority.certificate.read_bytes())

            async def is_refused() -> bool:
                try:
                    await ended.get_workflow_handle("1").describe(rpc_timeout=timedelta(seconds=1))
                except RPCError:
                    return True
                return False

            await until(is_refused)
            # It does not come back.
            with pytest.raises(RuntimeError):
                await client_of(gone, "again")
            assert await kept.execute_workflow(Greeting.run, "shop", id="3", task_queue=QUEUE) == "Hello, shop!"
        async with worker(kept, task_queue="later"):
            assert await waiting == "Hello, again!"
