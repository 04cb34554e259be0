"""Contexts of TLS: their requirements, the certificate for each host name, rotation, and expiry."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fairlead.rpc import Call, Code, RpcLimits
from fairlead.rpc.certificate import PeerCertificate
from fairlead.rpc.client import CallFailed, Channel
from fairlead.rpc.hosts.credentials import Credentials
from fairlead.rpc.tls import BadCertificate, ClientSide, ServerSide, TlsProvider
from fairlead.rpc.tls import provider as tls_provider
from fairlead.rpc.trust import fingerprints_of
from fairlead.settings.static.tls import ClientTls, Pem, ServerTls, TlsConfig, TlsGroup
from tests.rpc.served import ECHO, WAIT, Serving, serving, until
from tests.security.certificates import Authority, Issued


def server_tls(issued: Issued, *authorities: Authority, requires: bool = False) -> ServerTls:
    return ServerTls(
        Pem(issued.certificate), Pem(issued.key), tuple(Pem(each.certificate) for each in authorities), requires
    )


def client_tls(authority: Authority, name: str = "") -> ClientTls:
    return ClientTls(server_name=name, authorities=(Pem(authority.certificate),))


@asynccontextmanager
async def calling(served: Serving, side: ClientSide) -> AsyncIterator[Channel]:
    async with Channel(served.address, tls=Credentials(tls=side).channel_tls) as channel:
        yield channel


async def answers(served: Serving, side: ClientSide) -> bool:
    async with calling(served, side) as channel:
        try:
            return await channel.unary(ECHO, b"hello", timeout_s=10) == b"hello"
        except CallFailed as failed:
            if failed.code is Code.UNAVAILABLE:
                return False
            raise


async def test_a_client_certificate_of_the_right_authority_is_required(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    side = ServerSide(server_tls(authority.issue("localhost"), authority, requires=True))
    async with serving(tls=side.context) as served:
        config = client_tls(authority)
        assert await answers(served, ClientSide(config, server_tls(authority.issue("client"))))
        assert not await answers(served, ClientSide(config))
        assert not await answers(served, ClientSide(config, server_tls(other.issue("client", file="forged"))))
        # The client verifies the server, too.
        assert not await answers(served, ClientSide(client_tls(other), server_tls(authority.issue("client"))))
        assert not await answers(
            served, ClientSide(client_tls(authority, "elsewhere"), server_tls(authority.issue("client")))
        )


async def test_each_host_name_has_its_own_certificate_and_authorities(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    side = ServerSide(
        server_tls(ours.issue("ours.example")),
        {"theirs.example": server_tls(theirs.issue("theirs.example"), theirs, requires=True)},
    )
    async with serving(tls=side.context) as served:
        assert await answers(served, ClientSide(client_tls(ours, "ours.example")))
        assert not await answers(served, ClientSide(client_tls(ours, "theirs.example")))
        # This name requires a certificate of its own authority, though the other does not.
        assert not await answers(served, ClientSide(client_tls(theirs, "theirs.example")))
        own = server_tls(theirs.issue("client"))
        assert await answers(served, ClientSide(client_tls(theirs, "theirs.example"), own))
        wrong = server_tls(ours.issue("client", file="wrong"))
        assert not await answers(served, ClientSide(client_tls(theirs, "theirs.example"), wrong))


async def test_a_call_knows_which_authorities_have_signed_its_certificate(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    side = ServerSide(
        server_tls(ours.issue("ours.example"), ours),
        {
            "theirs.example": server_tls(theirs.issue("theirs.example"), theirs),
            "both.example": server_tls(theirs.issue("both.example"), theirs, ours),
        },
    )
    seen: list[PeerCertificate | None] = []

    async def look(request: bytes, call: Call) -> bytes:
        seen.append(call.certificate)
        return request

    async with serving(tls=side.context) as served:
        served.server.add("/test.Service/Look", look)
        by_us, by_them = server_tls(ours.issue("ops.example")), server_tls(theirs.issue("ops.example", file="forged"))
        for name, trusted, own in (
            ("ours.example", ours, by_us),
            ("theirs.example", theirs, by_them),
            ("both.example", theirs, by_us),
        ):
            async with calling(served, ClientSide(client_tls(trusted, name), own)) as channel:
                await channel.unary("/test.Service/Look", b"", timeout_s=10)
    of_ours, of_theirs = (tuple(fingerprints_of(each.certificate.read_bytes())) for each in (ours, theirs))
    assert [(each.common_name, each.authorities, each.is_of_default) for each in seen if each is not None] == [
        ("ops.example", of_ours, True),
        ("ops.example", of_theirs, False),
        ("ops.example", of_ours, True),
    ]


async def test_certificates_are_replaced_without_a_dropped_call(tmp_path: Path) -> None:
    old, new = Authority(tmp_path), Authority(tmp_path, "new")
    side = ServerSide(server_tls(old.issue("localhost", file="server")))
    client = ClientSide(client_tls(old))
    async with serving(tls=side.context) as served, calling(served, client) as channel:
        waiting = asyncio.create_task(channel.unary(WAIT, b"poll"))
        await until(lambda: served.handlers.begun == 1)
        new.issue("localhost", file="server")
        assert side.refresh()
        assert not side.refresh()
        # New connections get the new certificate, and the open one continues.
        assert not await answers(served, client)
        assert await answers(served, ClientSide(client_tls(new)))
        assert await channel.unary(ECHO, b"hello") == b"hello"
        served.handlers.release.set()
        assert await waiting == b"poll"


async def test_a_withdrawn_authority_of_clients_is_gone_at_the_next_connection(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.certificate.read_bytes() + other.certificate.read_bytes())
    issued = authority.issue("localhost")
    config = ServerTls(Pem(issued.certificate), Pem(issued.key), (Pem(trusted),), requires_client=True)
    side = ServerSide(config)
    own = ClientSide(client_tls(authority), server_tls(other.issue("client")))
    async with serving(tls=side.context) as served:
        assert await answers(served, own)
        trusted.write_bytes(authority.certificate.read_bytes())
        side.refresh()
        assert not await answers(served, own)


@asynccontextmanager
async def trusting_two(folder: Path) -> AsyncIterator[tuple[ServerSide, Path, Authority, Authority, Serving]]:
    """A server that trusts two authorities of clients; `trusted.pem` has both."""
    ours, theirs = Authority(folder), Authority(folder, "theirs")
    trusted = folder / "trusted.pem"
    trusted.write_bytes(ours.certificate.read_bytes() + theirs.certificate.read_bytes())
    issued = ours.issue("localhost", file="server")
    side = ServerSide(ServerTls(Pem(issued.certificate), Pem(issued.key), (Pem(trusted),), requires_client=True))
    limits = RpcLimits(preface_s_max=0.2)
    async with serving(limits, tls=side.context) as served:
        yield side, trusted, ours, theirs, served


async def test_open_connections_end_with_the_authority_of_their_certificate_and_no_others(tmp_path: Path) -> None:
    async with trusting_two(tmp_path) as (side, trusted, ours, theirs, served):
        good = ClientSide(client_tls(ours), server_tls(ours.issue("good")))
        gone = ClientSide(client_tls(ours), server_tls(theirs.issue("gone")))
        async with calling(served, good) as kept, calling(served, gone) as ended:
            polls = [asyncio.create_task(channel.unary(WAIT, b"poll")) for channel in (kept, ended)]
            await until(lambda: served.handlers.begun == 2)
            trusted.write_bytes(ours.certificate.read_bytes())
            assert side.refresh()
            # The open call of the withdrawn client ends at once, and it can't connect again.
            with pytest.raises(CallFailed):
                await polls[1]
            with pytest.raises(CallFailed):
                await ended.unary(ECHO, b"hello", timeout_s=10)
            assert served.server.stats().connections == 1
            assert await kept.unary(ECHO, b"hello") == b"hello"
            served.handlers.release.set()
            assert await polls[0] == b"poll"


async def test_a_connection_is_drained_when_its_certificate_expires(tmp_path: Path) -> None:
    async with trusting_two(tmp_path) as (side, _, ours, _theirs, served):
        short = ClientSide(client_tls(ours), server_tls(ours.issue("short", file="short", days=1.0)))
        async with calling(served, short) as channel:
            poll = asyncio.create_task(channel.unary(WAIT, b"poll"))
            await until(lambda: served.handlers.begun == 1)
            # A day passes. The client has a new certificate by now.
            ours.issue("short", file="short", days=3.0)
            short.refresh()
            side._trust._clock = lambda: time.time() + 1.5 * 86_400
            await until(lambda: served.server.lasting_connections == 0)
            # Its open call ends well, and its next calls come on another connection.
            async with asyncio.timeout(20):
                while served.server.lasting_connections == 0:
                    assert await channel.unary(ECHO, b"hello") == b"hello"
            served.handlers.release.set()
            assert await poll == b"poll"


async def test_a_renewed_certificate_of_the_same_authority_ends_no_connection(tmp_path: Path) -> None:
    async with trusting_two(tmp_path) as (side, trusted, ours, _theirs, served):
        good = ClientSide(client_tls(ours), server_tls(ours.issue("good")))
        async with calling(served, good) as channel:
            poll = asyncio.create_task(channel.unary(WAIT, b"poll"))
            await until(lambda: served.handlers.begun == 1)
            before = ours.certificate.read_bytes()
            ours.renew()
            assert ours.certificate.read_bytes() != before
            trusted.write_bytes(ours.certificate.read_bytes())
            assert side.refresh()
            [connection] = served.server._host.connections  # type: ignore[union-attr]
            connection.check(asyncio.get_running_loop().time())
            assert not connection.is_draining
            served.handlers.release.set()
            assert await poll == b"poll"


def test_only_tls_1_2_and_later_are_spoken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sides = (ServerSide(server_tls(authority.issue("x"))), ClientSide(client_tls(authority)))
    assert {side.context.minimum_version for side in sides} == {ssl.TLSVersion.TLSv1_2}


def test_a_swapped_certificate_and_key_are_refused(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("localhost")
    with pytest.raises(BadCertificate, match="swapped"):
        ServerSide(ServerTls(Pem(issued.key), Pem(issued.certificate)))


def test_a_file_that_can_not_be_used_changes_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost")
    side = ServerSide(server_tls(issued))
    before = side._default
    for content in (b"", b"nonsense", authority.issue("another").key.read_bytes()):
        issued.key.write_bytes(content)
        with pytest.raises(BadCertificate):
            side.refresh()
    issued.key.unlink()
    with pytest.raises(BadCertificate, match="can't be read"):
        side.refresh()
    assert side._default is before
    with pytest.raises(BadCertificate):
        ServerSide(server_tls(issued))
    assert not list(Path("/tmp").glob("fairlead-tls-*"))  # noqa: S108 - where they would be left behind


def test_certificates_may_be_in_the_configuration_itself(tmp_path: Path) -> None:
    issued = Authority(tmp_path).issue("localhost")
    pem = ServerTls(Pem(None, issued.certificate.read_bytes()), Pem(None, issued.key.read_bytes()))
    assert not ServerSide(pem).refresh()


def test_a_remote_cluster_has_the_group_of_its_address(tmp_path: Path) -> None:
    group = TlsGroup(client=client_tls(Authority(tmp_path)))
    names = ("exact.example:7233", "host.example", "*.wild.example", "::1")
    provider = TlsProvider(TlsConfig(remotes=dict.fromkeys(names, group)))
    for address in ("exact.example:7233", "Host.example:1", "a.wild.example:2", "[::1]:7233"):
        assert provider.to_cluster(address) is not None, address
    for address in ("exact.example:7234", "wild.example:1", "x.example:1"):
        assert provider.to_cluster(address) is None, address


class Log:
    """Keeps the level and the event of each line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **_: self.lines.append((level, event))


async def test_listeners_are_notified_of_new_certificates_and_expiry_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost", file="server", days=1.0)
    expired = authority.issue("old", days=-0.5)
    config = TlsConfig(
        frontend=TlsGroup(server_tls(issued), overrides={"old": server_tls(expired)}),
        internode=TlsGroup(server_tls(issued), client_tls(authority)),
    )
    provider = TlsProvider(config)
    reported: list[str] = []
    assert provider.to_hosts is not None
    provider.to_hosts.on_change(lambda: reported.append("changed"))
    log = Log()
    monkeypatch.setattr(tls_provider, "_log", log)
    await provider._check()
    assert set(log.lines) == {("error", "certificate has expired"), ("error", "certificate expires soon")}
    [gauges] = provider.gauges()
    assert (gauges.expired, gauges.expiring) == (1, 1)
    authority.issue("localhost", file="server")
    await provider.refresh()
    assert reported == ["changed"]
    [gauges] = provider.gauges()
    assert (gauges.expired, gauges.expiring) == (1, 0)
    issued.certificate.write_text("nonsense")
    log.lines.clear()
    await provider.refresh()
    assert {event for _, event in log.lines} == {"certificates not reread, keeping the last good ones"}


async def test_files_are_read_again_while_the_server_runs(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("localhost", file="server")
    provider = TlsProvider(TlsConfig(frontend=TlsGroup(server_tls(issued)), refresh_s=0.02))
    assert provider.frontend is not None
    before = provider.frontend._default
    provider.start()
    try:
        authority.issue("localhost", file="server")
        async with asyncio.timeout(20):
            while provider.frontend._default is before:  # noqa: ASYNC110 - a condition of the provider
                await asyncio.sleep(0.01)
    finally:
        await provider.close()


def test_without_tls_there_is_nothing_to_report() -> None:
    assert TlsProvider(TlsConfig()).gauges() == []


async def test_a_server_is_verified_unless_the_configuration_says_otherwise(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    side = ServerSide(server_tls(theirs.issue("elsewhere.example")))
    async with serving(tls=side.context) as served:
        assert not await answers(served, ClientSide(client_tls(ours)))
        assert await answers(served, ClientSide(ClientTls(verifies_host=False, is_forced=True)))
