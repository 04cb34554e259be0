"""The proofs of two real clusters over TLS: keys that are replaced and revoked under load, and certificates."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from temporalio.api.replication.v1 import NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, UpdateNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from fairlead.api.errors import ApiError
from fairlead.replication.grpc_remote import GrpcRemote
from fairlead.replication.messages import NamespacesRequest
from fairlead.rpc.hosts.credentials import Credentials, with_api_key
from fairlead.rpc.tls import ClientSide
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls
from tests.patience import until
from tests.security.certificates import Authority, Issued
from tests.security.test_clusters import Load, Pair, eventually, pair, register
from tests.security.workflows import QUEUE, Greeting, worker


def move(to: str) -> UpdateNamespaceRequest:
    return UpdateNamespaceRequest(
        namespace="shared", replication_config=NamespaceReplicationConfig(active_cluster_name=to)
    )


async def replace_cluster_key(clusters: Pair, name: str, other: str) -> str:
    """Give a cluster a new key of another one, and revoke its old one; return the old key."""
    config = clusters.configs[name].cluster
    assert config is not None
    address = clusters.addresses[other]
    old = config.api_keys[address]
    new = await clusters.cluster_key(other, name)
    await clusters.restart(name, replace(config, api_keys={address: new}))
    await clusters.revoke(other, old)
    return old


async def check_refused(clusters: Pair, name: str, credentials: Credentials) -> None:
    remote = GrpcRemote(clusters.addresses[name], here="b", credentials=credentials)
    with pytest.raises(ApiError, match=r"^Request unauthorized\.$"):
        await remote.info()
    await remote.close()


async def test_failovers_under_load_while_the_keys_of_the_clusters_are_replaced_and_revoked(tmp_path: Path) -> None:
    async with pair(tmp_path) as clusters:
        admins = {name: await clusters.client(name, "shared") for name in "ab"}
        await admins["a"].workflow_service.register_namespace(register("shared", "a", "b"))
        asked = DescribeNamespaceRequest(namespace="shared")
        await eventually(lambda: admins["b"].workflow_service.describe_namespace(asked))
        load = Load()

        def client_of(name: str) -> Client:
            return admins[name]

        async with worker(admins["a"]), worker(admins["b"]):
            loads = [
                asyncio.create_task(load.run(number, partial(client_of, name))) for number, name in enumerate("ab")
            ]
            for active, other in ("ba", "ab"):
                await eventually(partial(admins[active].workflow_service.update_namespace, move(active)))
                old = await replace_cluster_key(clusters, other, active)
                await check_refused(clusters, active, with_api_key(old, clusters.trust))
                # Both clusters continue. This needs calls with the new key: the passive cluster forwards to the active.
                goal = load.done + 6
                await until(partial(load.has_done, goal, loads))
                assert not any(each.done() for each in loads), [each for each in loads if each.done()]
            load.is_over = True
            await asyncio.gather(*loads)
        # The last events reach the passive cluster, too.
        started = await admins["a"].start_workflow(Greeting.run, "world", id="last", task_queue=QUEUE)
        await eventually(lambda: admins["b"].get_workflow_handle("last", run_id=started.result_run_id).describe())


def proof(clusters: Pair, issued: Issued) -> Credentials:
    """The credentials of a cluster that presents a certificate."""
    server = ServerTls(Pem(issued.certificate), Pem(issued.key))
    return Credentials((), ClientSide(ClientTls(authorities=(Pem(clusters.authority.certificate),)), server))


async def test_clusters_know_each_other_by_their_certificates(tmp_path: Path) -> None:
    async with pair(tmp_path, by_certificate=True, refresh_s=0.5) as clusters:
        admins = {name: await clusters.client(name, "shared") for name in "ab"}
        for name, members in (("shared", "ab"), ("alone", "a")):
            await admins["a"].workflow_service.register_namespace(register(name, *members))
        asked = DescribeNamespaceRequest(namespace="shared")
        await eventually(lambda: admins["b"].workflow_service.describe_namespace(asked))
        # A call is forwarded in the name of the cluster, and its workflow is replicated back.
        async with worker(admins["a"]):
            await until(partial(Load().greeted, "forwarded", lambda: admins["b"]))
        await eventually(admins["b"].get_workflow_handle("forwarded").describe)

        # The holder of b's certificate sees only what is shared with b, and may not ask on behalf of another cluster.
        genuine = Issued(tmp_path / "cluster-b.pem", tmp_path / "cluster-b.key")
        remote = GrpcRemote(clusters.addresses["a"], here="b", credentials=proof(clusters, genuine))
        assert [one.name for one in (await remote.namespaces(NamespacesRequest())).records] == ["shared"]
        with pytest.raises(ApiError, match="Request unauthorized"):
            await remote.namespaces(NamespacesRequest(cluster="a"))
        await remote.close()
        with pytest.raises(RPCError) as missing:
            await admins["b"].workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="alone"))
        assert missing.value.status is RPCStatusCode.NOT_FOUND

        # Certificates of other names, and of other authorities, are no proof.
        stranger = clusters.authority.issue("stranger.example", file="stranger")
        await check_refused(clusters, "a", proof(clusters, stranger))
        forged = Authority(tmp_path, "forger").issue("b.example", file="forged")
        remote = GrpcRemote(clusters.addresses["a"], here="b", credentials=proof(clusters, forged))
        with pytest.raises(Exception, match="UNAVAILABLE"):
            await remote.info()
        await remote.close()

        # A failover in the other cluster, after its certificate was replaced.
        clusters.authority.issue("b.example", file="cluster-b")
        await eventually(partial(admins["b"].workflow_service.update_namespace, move("b")))
        async with worker(admins["b"]):
            await until(partial(Load().greeted, "moved", lambda: admins["a"]))
