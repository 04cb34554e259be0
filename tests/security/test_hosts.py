"""Three hosts on PostgreSQL with mutual TLS between them, and certificates that are replaced under load."""

import asyncio
from functools import partial
from pathlib import Path

import grpc
import pytest
from temporalio.client import Client, TLSConfig

from tests.cli.processes import run
from tests.patience import until
from tests.rpc.served import channel as channel_to
from tests.sdk.hosts import Host
from tests.security.certificates import Authority, Issued
from tests.security.workflows import QUEUE, Greeting, worker

SECURITY = """
namespaces: [orders]
global:
  authorization: {authorizer: default}
  tls:
    refreshInterval: 1s
    internode:
      server: {certFile: host.pem, keyFile: host.key, clientCaFiles: [ca.pem], requireClientAuth: true}
      client: {rootCaFiles: [ca.pem]}
    frontend:
      server: {certFile: host.pem, keyFile: host.key}
"""


async def test_three_hosts_with_mutual_tls_go_on_while_their_certificates_are_replaced(
    postgres_dsn: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.issue("localhost", file="host")
    hosts = [Host(number, postgres_dsn, tmp_path, more=SECURITY) for number in (1, 2, 3)]
    made = await run(
        *("admin", "key", "create", "--system", "--role", "admin", "--config", str(tmp_path / "host-1.yaml"))
    )
    assert made.code == 0, made.err
    key = made.out.strip()
    try:
        async with asyncio.TaskGroup() as starting:
            for host in hosts:
                starting.create_task(host.start())
        tls = TLSConfig(server_root_ca_cert=authority.certificate.read_bytes())
        clients = [await Client.connect(host.address, namespace="orders", api_key=key, tls=tls) for host in hosts]
        done = 0
        is_over = False

        async def load(client: Client, number: int) -> None:
            nonlocal done
            count = 0
            while not is_over:
                count += 1
                found = await client.execute_workflow(
                    Greeting.run, "world", id=f"greeting-{number}-{count}", task_queue=QUEUE
                )
                assert found == "Hello, world!"
                done += 1

        async with worker(clients[0]), worker(clients[1]):
            loads = [asyncio.create_task(load(client, number)) for number, client in enumerate(clients)]
            for _ in range(2):
                authority.issue("localhost", file="host")
                rereads = [host.log().count("certificates reread") for host in hosts]
                goal = done + 10
                async with asyncio.timeout(90):
                    # Each host has the new certificates, for both of its ports and its own calls, and continues.
                    while done < goal or any(
                        host.log().count("certificates reread") < before + 3
                        for host, before in zip(hosts, rereads, strict=True)
                    ):
                        assert not any(each.done() for each in loads), [each for each in loads if each.done()]
                        await asyncio.sleep(0.1)
            is_over = True
            await asyncio.gather(*loads)
        await check_strangers(hosts[0].internal_address, authority, tmp_path)
        await check_revoked(hosts, authority, tmp_path)
        # The hosts go on with the certificates of the new authority.
        found = await clients[0].start_workflow(Greeting.run, "world", id="after", task_queue=QUEUE)
        assert (await clients[1].get_workflow_handle(found.id).describe()).id == "after"
    finally:
        await asyncio.gather(*(host.kill() for host in hosts))


async def check_revoked(hosts: list[Host], authority: Authority, folder: Path) -> None:
    """A host's certificate is revoked by replacing the authority of hosts, in steps that no call notices."""
    stolen = Issued(folder / "stolen.pem", folder / "stolen.key")
    stolen.certificate.write_bytes((folder / "host.pem").read_bytes())
    stolen.key.write_bytes((folder / "host.key").read_bytes())
    old = authority.certificate.read_bytes()
    later = Authority(folder, "later")
    new = later.certificate.read_bytes()
    await ring(hosts[0].internal_address, old, stolen)

    for replace in (
        lambda: authority.certificate.write_bytes(old + new),
        lambda: later.issue("localhost", file="host"),
        lambda: authority.certificate.write_bytes(new),
    ):
        rereads = [host.log().count("certificates reread") + 2 for host in hosts]
        replace()
        await until(partial(have_reread, hosts, rereads))
    for host in hosts:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ring(host.internal_address, new, stolen)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        await ring(host.internal_address, new, Issued(folder / "host.pem", folder / "host.key"))


def have_reread(hosts: list[Host], goals: list[int]) -> bool:
    """Whether each host has read as many changed certificates."""
    return all(host.log().count("certificates reread") >= goal for host, goal in zip(hosts, goals, strict=True))


async def ring(address: str, trusted: bytes, issued: Issued) -> None:
    """Ask a host for the ring with the certificate of a host."""
    credentials = grpc.ssl_channel_credentials(trusted, issued.key.read_bytes(), issued.certificate.read_bytes())
    async with channel_to(address, credentials=credentials) as channel:
        assert await channel.unary_unary("/fairlead/cluster.Ring", None, None)(b"\x90", timeout=10)


async def check_strangers(address: str, authority: Authority, folder: Path) -> None:
    """Calls without a certificate of the hosts' authority are rejected."""
    trusted = authority.certificate.read_bytes()
    forged = Authority(folder, "other").issue("localhost", file="forged")
    for credentials in (
        grpc.ssl_channel_credentials(trusted),
        grpc.ssl_channel_credentials(trusted, forged.key.read_bytes(), forged.certificate.read_bytes()),
    ):
        async with grpc.aio.secure_channel(address, credentials) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/fairlead/cluster.Ring", None, None)(b"\x90", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
