"""A client that resumes a session of TLS 1.2 keeps its certificate, as long as the certificate's authority counts."""

import ssl
from pathlib import Path

import pytest

from fairlead.rpc import trust
from fairlead.rpc.certificate import peer_certificate
from fairlead.rpc.tls.server_side import ServerSide
from fairlead.rpc.trust import TrustingContext, chain_of, trust_of
from fairlead.settings.static.tls import Pem, ServerTls
from tests.security.certificates import Authority

STEPS_MAX = 10


class Meeting:
    """A server with authorities of clients, and a client whose handshakes take place in memory."""

    def __init__(self, folder: Path, version: ssl.TLSVersion) -> None:
        self.authority = Authority(folder)
        server, client = self.authority.issue("server"), self.authority.issue("client")
        self.trusted = folder / "trusted.pem"
        self.trusted.write_bytes(self.authority.certificate.read_bytes())
        certificate, key = Pem(file=server.certificate), Pem(file=server.key)
        self.side = ServerSide(ServerTls(certificate, key, (Pem(file=self.trusted),), True))
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.load_verify_locations(self.authority.certificate)
        self._client.load_cert_chain(client.certificate, client.key)
        self._client.maximum_version = version
        self._client.set_alpn_protocols(["h2"])

    def handshake(self, session: ssl.SSLSession | None = None) -> tuple[ssl.SSLObject, ssl.SSLObject]:
        """Return both ends of a new connection, the client's first."""
        to_client, from_client, to_server, from_server = (ssl.MemoryBIO() for _ in range(4))
        client = self._client.wrap_bio(to_client, from_client, server_hostname="localhost", session=session)
        server = self.side.context.wrap_bio(to_server, from_server, server_side=True)
        ready: set[ssl.SSLObject] = set()
        for _ in range(STEPS_MAX):
            for end, out, incoming in ((client, from_client, to_server), (server, from_server, to_client)):
                try:
                    end.do_handshake()
                    ready.add(end)
                except ssl.SSLWantReadError:
                    pass
                incoming.write(out.read())
            if len(ready) == 2:
                return client, server
        raise AssertionError("the handshake did not end")


def counts(server: ssl.SSLObject) -> bool:
    assert isinstance(server.context, TrustingContext)
    return server.context.check_of(server)()


def test_a_resumed_session_has_the_chain_of_its_first_connection(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, ssl.TLSVersion.TLSv1_2)
    client, server = meeting.handshake()
    first, certificate = chain_of(server), peer_certificate(server)
    resumed, again = meeting.handshake(client.session)
    assert resumed.session_reused
    assert chain_of(again) == first is not None
    assert peer_certificate(again) == certificate
    assert counts(again)


def test_a_resumed_session_does_not_count_after_its_authority_was_withdrawn(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, ssl.TLSVersion.TLSv1_2)
    client, server = meeting.handshake()
    assert counts(server)
    (tmp_path / "other").mkdir()
    meeting.trusted.write_bytes(Authority(tmp_path / "other", "other").certificate.read_bytes())
    assert meeting.side.refresh()
    assert not counts(server)
    resumed, again = meeting.handshake(client.session)
    assert resumed.session_reused
    assert not counts(again)
    chain, authorities = chain_of(again), trust_of(again)
    assert chain is not None
    assert authorities is not None
    assert not authorities.accepts(chain)


def test_a_resumed_session_whose_chain_is_forgotten_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(tmp_path, ssl.TLSVersion.TLSv1_2)
    monkeypatch.setattr(trust, "_SESSIONS_MAX", 1)
    client, server = meeting.handshake()
    chain_of(server)
    # Another client takes the only place.
    chain_of(meeting.handshake()[1])
    resumed, again = meeting.handshake(client.session)
    assert resumed.session_reused
    assert chain_of(again) is None
    assert not counts(again)
    certificate = peer_certificate(again)
    assert certificate is not None
    assert not certificate.is_of_default


def test_sessions_of_tls_1_3_are_not_resumed(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, ssl.TLSVersion.TLSv1_3)
    client, server = meeting.handshake()
    assert chain_of(server) is not None
    resumed, again = meeting.handshake(client.session)
    assert not resumed.session_reused
    assert chain_of(again) is not None
