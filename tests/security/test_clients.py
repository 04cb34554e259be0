"""The official SDK and the `temporal` command against a real process, with certificates, tokens and API keys."""

import asyncio
import re
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client, TLSConfig
from temporalio.service import RPCError, RPCStatusCode

from fairlead.cli.admin.credentials import credentials_of
from fairlead.client import FairleadError
from fairlead.client import connect as connect_to_queues
from fairlead.journal import read_segment
from fairlead.pipeline.public_export.source import ReadAgain, SourceRefuses, SourceServer
from tests.authorization.tokens import Issuer
from tests.cli.processes import Done, run, server
from tests.cli.thread import run_in_thread
from tests.frontend.served import TEMPORAL, needs_command_line
from tests.ports import free_port
from tests.security.certificates import Authority, Issued
from tests.security.workflows import QUEUE, Greeting, worker

# One server for all tests, in one event loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")

ISSUER = Issuer.make()


@dataclass
class Locked:
    """A locked server with the namespaces `orders` and `billing`."""

    folder: Path
    frontend: str
    hosts: str
    authority: Authority
    admin_key: str

    async def client(self, namespace: str = "orders", certificate: Issued | None = None, **options: Any) -> Client:
        tls = TLSConfig(
            server_root_ca_cert=self.authority.certificate.read_bytes(),
            client_cert=None if certificate is None else certificate.certificate.read_bytes(),
            client_private_key=None if certificate is None else certificate.key.read_bytes(),
        )
        return await Client.connect(self.frontend, namespace=namespace, tls=tls, **options)

    async def temporal(self, *arguments: str) -> Done:
        process = await asyncio.create_subprocess_exec(
            *(str(TEMPORAL), *arguments, "--address", self.frontend),
            *("--tls-ca-path", str(self.authority.certificate)),
            stdout=PIPE,
            stderr=PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def admin(self, *arguments: str, api_key: str | None = None) -> Done:
        environment = {
            "FAIRLEAD_API_KEY": self.admin_key if api_key is None else api_key,
            "FAIRLEAD_ADDRESS": self.hosts,
            "FAIRLEAD_TLS_CA_PATH": str(self.authority.certificate),
        }
        return await run("admin", *arguments, environment=environment)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Locked]:
    folder = tmp_path_factory.mktemp("locked")
    authority = Authority(folder)
    authority.issue("localhost", file="server")
    config = folder / "fairlead.yaml"
    config.write_text(
        f"""
frontend: {{listen: "127.0.0.1:0"}}
listen: 127.0.0.1:0
store: {{sqlite: {{file: fairlead.db}}}}
namespaces: [orders, billing]
stop: {{handOver: 0s, grace: 1s}}
global:
  authorization:
    authorizer: default
    claimMapper: default
    jwtKeyProvider: {{keySourceURIs: ["{ISSUER.write(folder / "jwks.json")}"]}}
    certificates:
      order-workers: {{permissions: ["orders:worker"]}}
      order-clients: {{permissions: ["orders:write"]}}
  tls:
    frontend: {{server: {{certFile: server.pem, keyFile: server.key, clientCaFiles: [ca.pem]}}}}
    internode: {{server: {{certFile: server.pem, keyFile: server.key}}, client: {{rootCaFiles: [ca.pem]}}}}
"""
    )
    made = await run("admin", "key", "create", "--system", "--role", "admin", "--config", str(config))
    assert made.code == 0, made.err
    key = made.out.strip()
    assert key.startswith("fl_")
    async with server("--config", str(config), folder=folder) as running:
        found = re.search(r"ready at (\S+): SDKs connect to (\S+),", running.ready)
        assert found is not None, running.ready
        yield Locked(folder, found[2], found[1], authority, key)


def denied(error: RPCError) -> bool:
    return error.status is RPCStatusCode.PERMISSION_DENIED and error.message == "Request unauthorized."


async def check_roles(of_worker: Client, of_writer: Client, of_stranger: Client) -> None:
    """A worker works and does not start; a writer starts; a stranger does neither."""
    async with worker(of_worker):
        found = await of_writer.execute_workflow(Greeting.run, "world", id="greeting", task_queue=QUEUE)
        assert found == "Hello, world!"
    with pytest.raises(RPCError) as refused:
        await of_worker.start_workflow(Greeting.run, "world", id="refused", task_queue=QUEUE)
    assert denied(refused.value)
    for stranger in (of_stranger,):
        with pytest.raises(RPCError) as refused:
            await stranger.get_workflow_handle("greeting").describe()
        assert denied(refused.value)


async def test_the_sdk_with_tokens(locked: Locked) -> None:
    def bearer(*permissions: str) -> dict[str, Any]:
        return {"rpc_metadata": {"authorization": f"Bearer {ISSUER.token(*permissions)}"}}

    await check_roles(
        await locked.client(**bearer("orders:worker")),
        await locked.client(**bearer("orders:write")),
        await locked.client(**bearer("billing:admin")),
    )


async def test_the_sdk_with_certificates(locked: Locked) -> None:
    issue = locked.authority.issue
    await check_roles(
        await locked.client(certificate=issue("order-workers")),
        await locked.client(certificate=issue("order-clients")),
        await locked.client(certificate=issue("somebody")),
    )
    # A certificate of another authority: the handshake fails.
    other = Authority(locked.folder, "other").issue("order-clients", file="forged")
    with pytest.raises(RuntimeError):
        await locked.client(certificate=other)


async def test_the_sdk_with_api_keys_until_they_are_revoked(locked: Locked) -> None:
    async def key(*arguments: str) -> str:
        made = await locked.admin("key", "create", *arguments)
        assert made.code == 0, made.err
        return made.out.strip()

    of_worker = await key("--namespace", "orders", "--role", "worker", "--name", "workers")
    of_writer = await key("--namespace", "orders", "--role", "writer")
    of_stranger = await key("--namespace", "billing", "--role", "admin")
    writer = await locked.client(api_key=of_writer)
    await check_roles(await locked.client(api_key=of_worker), writer, await locked.client(api_key=of_stranger))
    listed = await locked.admin("key", "list")
    assert "workers" in listed.out
    assert of_writer not in listed.out
    revoked = await locked.admin("key", "revoke", of_writer.split("_")[1])
    assert revoked.code == 0, revoked.err
    async with asyncio.timeout(30):
        while True:
            try:
                await writer.get_workflow_handle("greeting").describe()
            except RPCError as refused:
                if denied(refused):
                    break
                raise
            await asyncio.sleep(0.1)


@needs_command_line
async def test_the_official_command_line(locked: Locked) -> None:
    with_key = await locked.temporal("operator", "namespace", "list", "--api-key", locked.admin_key)
    assert with_key.code == 0, with_key.err
    assert "billing" in with_key.out
    token = ISSUER.token("orders:read")
    with_token = await locked.temporal("workflow", "list", "--namespace", "orders", "--api-key", token)
    assert with_token.code == 0, with_token.err
    refused = await locked.temporal("workflow", "list", "--namespace", "billing", "--api-key", token)
    assert refused.code != 0
    assert "Request unauthorized." in refused.err
    own = locked.authority.issue("order-clients")
    certificate = ("--tls-cert-path", str(own.certificate), "--tls-key-path", str(own.key))
    start = (
        "workflow",
        "start",
        "--namespace",
        "orders",
        "--type",
        "T",
        "--task-queue",
        "q",
        "--workflow-id",
        "by-cli",
    )
    with_certificate = await locked.temporal(*start, *certificate)
    assert with_certificate.code == 0, with_certificate.err
    anonymous = await locked.temporal("operator", "cluster", "system")
    assert anonymous.code == 0, anonymous.err
    refused = await locked.temporal("operator", "cluster", "describe")
    assert "Request unauthorized." in refused.err


async def test_our_own_command_line_and_client(locked: Locked) -> None:
    assert (await locked.admin("ring", "show")).code == 0
    for wrong in ("", "fl_x_y"):
        refused = await locked.admin("ring", "show", api_key=wrong)
        assert refused.code != 0
        assert "refuses: give --api-key" in refused.err
    made = await locked.admin("key", "create", "--namespace", "orders", "--role", "writer")
    key = made.out.strip()
    refused = await locked.admin("tasklist", "list", api_key=key)
    assert refused.code != 0
    assert "Request unauthorized." in refused.err
    async with connect_to_queues(
        locked.hosts, namespace="orders", api_key=key, tls_ca=locked.authority.certificate
    ) as queues:
        await queues.add("emails", b"welcome")
        task = await queues.poll("emails", timeout_s=10)
        assert task is not None
        assert task.payload == b"welcome"
    async with connect_to_queues(
        locked.hosts, namespace="billing", api_key=key, tls_ca=locked.authority.certificate
    ) as queues:
        with pytest.raises(FairleadError, match="Request unauthorized"):
            await queues.add("emails", b"welcome")


async def test_clear_text_is_refused(locked: Locked) -> None:
    with pytest.raises(RuntimeError):
        await Client.connect(locked.frontend, namespace="orders")


async def test_a_reader_exports_over_tls(locked: Locked, tmp_path: Path) -> None:
    """The export needs no more than the right to read."""
    made = await locked.admin("key", "create", "--namespace", "orders", "--role", "writer", "--name", "starter")
    starter = await locked.client(api_key=made.out.strip())
    async with worker(starter):
        await starter.execute_workflow(Greeting.run, "world", id="exported", task_queue=QUEUE)

    async def export(role: str) -> Done:
        made = await locked.admin("key", "create", "--namespace", "orders", "--role", role, "--name", role)
        environment = {"FAIRLEAD_API_KEY": made.out.strip()}
        arguments = ("--from", locked.frontend, "--namespace", "orders", "--journal", str(tmp_path / role))
        ca = str(locked.authority.certificate)
        return await run("export", *arguments, "--tls-ca-path", ca, "--rate", "1000", environment=environment)

    done = await export("reader")
    assert (done.code, done.err) == (0, "")
    assert "new events" in done.out
    assert "exported" in workflows_in(tmp_path / "reader")
    refused = await export("worker")
    assert refused.code == 2
    assert "ListWorkflowExecutions was refused with PERMISSION_DENIED" in refused.line
    plain = await run("export", "--from", locked.frontend, "--namespace", "orders", "--journal", str(tmp_path))
    assert plain.code == 1
    assert "DescribeNamespace failed 3 times" in plain.line
    assert "needs --tls" in plain.line


async def test_an_export_says_what_is_wrong_with_its_credentials(locked: Locked, tmp_path: Path) -> None:
    """Certificates and files with keys work, and a failure names its cause in one line without the key."""
    issue, ca = locked.authority.issue, locked.authority.certificate
    started = await locked.client(certificate=issue("order-clients"))
    await started.start_workflow("Any", id="exported", task_queue="nobody")
    made = await locked.admin("key", "create", "--namespace", "billing", "--role", "reader", "--name", "other")
    other_key = made.out.strip()

    async def export(*arguments: str) -> Done:
        to = ("--namespace", "orders", "--journal", str(tmp_path / "journal"), "--rate", "1000")
        return await run("export", "--from", locked.frontend, *to, "--tls-ca-path", str(ca), *arguments)

    own = issue("order-clients")
    done = await export("--tls-cert-path", str(own.certificate), "--tls-key-path", str(own.key))
    assert (done.code, done.err) == (0, "")
    assert "exported" in workflows_in(tmp_path / "journal")
    (file := tmp_path / "key").write_text(f"{locked.admin_key}\n")
    done = await export("--api-key-file", str(file))
    assert (done.code, done.err) == (0, "")

    async def refusal(address: str = locked.frontend, **options: Any) -> str:
        names = ("api_key", "tls_ca_path", "tls_cert_path", "tls_key_path", "tls_server_name")
        given: dict[str, Any] = dict.fromkeys(names) | {"tls_ca_path": ca, "is_tls": True} | options
        source = SourceServer(address, "orders", calls_per_s=1000.0, credentials=credentials_of(**given))
        try:
            with pytest.raises((SourceRefuses, ReadAgain)) as refused:
                await source.namespace_id()
        finally:
            await source.close()
        assert (options.get("api_key") or "no key") not in str(refused.value)
        return str(refused.value)

    wrong_key = f"{locked.admin_key[:-3]}abc"
    assert "the API key is wrong" in await refusal(api_key=wrong_key)
    assert "its role can't read this namespace" in await refusal(api_key=other_key)
    assert "give the credentials of a reader of this namespace" in await refusal()
    foreign = Authority(tmp_path, "foreign")
    assert "unknown authority: give --tls-ca-path" in await refusal(tls_ca_path=foreign.certificate)
    assert "has another name: connect to that name" in await refusal(tls_server_name="orders.example")
    issued = foreign.issue("order-clients")
    strange: dict[str, Any] = {"tls_cert_path": issued.certificate, "tls_key_path": issued.key}
    # Our own server closes the connection without an alert.
    assert "not trust that of --tls-cert-path" in await refusal(**strange)
    with openssl_server(locked) as strict:
        assert "requires a certificate" in await refusal(strict)
        assert "does not trust the authority" in await refusal(strict, **strange)


@contextmanager
def openssl_server(locked: Locked) -> Iterator[str]:
    """Run OpenSSL's own server, which requires a certificate and sends alerts; yields its address."""
    address = f"127.0.0.1:{free_port()}"
    files = ("-cert", locked.folder / "server.pem", "-key", locked.folder / "server.key")
    asked = ("-CAfile", locked.authority.certificate, "-Verify", "2", "-verify_return_error", "-alpn", "h2", "-quiet")
    command = ("openssl", "s_server", "-accept", address, *files, *asked)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603 - OpenSSL
        try:
            yield address
        finally:
            process.kill()


async def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "key").write_text("two words")
    to = ("export", "--from", "127.0.0.1:1", "--namespace", "orders", "--journal", str(tmp_path / "journal"))
    refused = await run_in_thread(*to, "--api-key-file", str(file))
    assert (refused.code, refused.out) == (2, "")
    assert "has no key: it must be one line" in refused.line
    refused = await run_in_thread(*to, "--api-key-file", str(file), "--api-key", "another")
    assert (refused.code, refused.out) == (2, "")
    assert "exclude each other" in refused.line


def workflows_in(journal: Path) -> set[str]:
    return {record["workflow_id"] for path in journal.glob("*/*.zst") for record in read_segment(path)}
