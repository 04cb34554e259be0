"""Claims from JSON Web Tokens: valid tokens are accepted, and no others."""

import asyncio
import base64
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from fairlead.authorization import json_web_keys
from fairlead.authorization.claims import AuthInfo, Claims, Denied
from fairlead.authorization.json_web_keys import KEY_SET_BYTES_MAX, STALE_S_MAX, KeySource
from fairlead.authorization.json_web_tokens import JwtClaimMapper
from fairlead.authorization.roles import Role
from fairlead.authorization.verdicts import ACCEPTED_BYTES_MAX, REFUSED_MAX, Verdicts
from tests.authorization.tokens import Issuer

ISSUER = Issuer.make()
OTHER = Issuer.make()


@pytest.fixture
async def mapper(tmp_path: Path) -> AsyncIterator[JwtClaimMapper]:
    source = KeySource([ISSUER.write(tmp_path / "jwks.json")], refresh_s=0)
    await source.open()
    yield JwtClaimMapper(source, permissions_claim="permissions")
    await source.close()


def claims(mapper: JwtClaimMapper, token: str) -> Claims:
    found = mapper.claims(AuthInfo(f"Bearer {token}"))
    assert found is not None
    return found


@pytest.mark.parametrize("kid", ["rsa", "ec"])
def test_roles_come_from_the_permissions(mapper: JwtClaimMapper, kid: str) -> None:
    token = ISSUER.token("orders:worker", "orders:read", "temporal-system:Write", "a:unknown", "a:b:c", 5, kid=kid)
    found = claims(mapper, token)
    assert (found.subject, found.kind) == ("alice", "jwt")
    assert found.system is Role.WRITER
    assert dict(found.namespaces) == {"orders": Role.WORKER | Role.READER}
    # The second call returns the same claims without verifying the token again.
    assert claims(mapper, token) is found


def test_a_call_without_a_token_has_no_claims(mapper: JwtClaimMapper) -> None:
    assert mapper.claims(AuthInfo()) is None


def unsigned(**header: Any) -> str:
    parts = [
        {"alg": "none", "kid": "rsa", **header},
        {"sub": "eve", "exp": 2**33, "permissions": ["temporal-system:admin"]},
    ]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*encoded, ""))


def with_public_key_as_secret() -> str:
    """The classic confusion: HMAC with the public key as its secret."""
    public = ISSUER.rsa_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "HS256", "kid": "rsa"}, {"sub": "eve", "exp": 2**33, "permissions": ["x:admin"]})
    )
    import hashlib  # noqa: PLC0415
    import hmac  # noqa: PLC0415

    signed = hmac.new(public, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(signed).decode().rstrip('=')}"


NOW = int(time.time())
REFUSED = {
    "another issuer": OTHER.token("x:admin"),
    "an unknown kid": ISSUER.token("x:admin", header={"kid": "unknown"}),
    "the kid of another key": ISSUER.token("x:admin", header={"kid": "ec"}),
    "no kid": jwt.encode({"sub": "a", "exp": NOW + 60}, ISSUER.rsa_key, algorithm="RS256"),
    "expired": ISSUER.token("x:admin", exp=NOW - 1),
    "not yet valid": ISSUER.token("x:admin", nbf=NOW + 86_400),
    "no exp": ISSUER.token("x:admin", exp=None),
    "no sub": ISSUER.token("x:admin", sub=None),
    "another algorithm": jwt.encode(
        {"sub": "a", "exp": NOW + 60}, ISSUER.rsa_key, algorithm="RS512", headers={"kid": "rsa"}
    ),
    "PSS": jwt.encode({"sub": "a", "exp": NOW + 60}, ISSUER.rsa_key, algorithm="PS256", headers={"kid": "rsa"}),
    "unsigned": unsigned(),
    "unsigned, with RS256": unsigned(alg="RS256"),
    "HMAC with the public key": with_public_key_as_secret(),
    "its own key in the header": OTHER.token("x:admin", header={"jwk": OTHER.jwks()["keys"][0]}),
    "empty": "",
    "too long": ISSUER.token("x:admin") + "A" * 20_000,
    "cut": ISSUER.token("x:admin")[:-4],
}


@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED)
def test_a_token_is_refused_with(mapper: JwtClaimMapper, token: str) -> None:
    with pytest.raises(Denied):
        mapper.claims(AuthInfo(f"Bearer {token}"))


def test_another_scheme_is_refused(mapper: JwtClaimMapper) -> None:
    for header in ("Basic YTpi", ISSUER.token("x:admin"), "bearer", "Bearer"):
        with pytest.raises(Denied):
            mapper.claims(AuthInfo(header))


async def test_a_token_ends_even_if_it_was_verified_before(tmp_path: Path) -> None:
    now_s = time.time()
    source = KeySource([ISSUER.write(tmp_path / "jwks.json")], refresh_s=0)
    await source.open()
    mapper = JwtClaimMapper(source, permissions_claim="permissions", clock=lambda: now_s)
    token = ISSUER.token("x:admin", exp=int(now_s) + 30)
    claims(mapper, token)
    now_s += 31
    with pytest.raises(Denied):
        claims(mapper, token)
    await source.close()


class Counting(JwtClaimMapper):
    """Counts signature checks."""

    checks = 0

    def _verify(self, token: str, now_s: float) -> Claims:
        self.checks += 1
        return super()._verify(token, now_s)


@asynccontextmanager
async def counting(tmp_path: Path, clock: Callable[[], float] = time.time) -> AsyncIterator[Counting]:
    source = KeySource([ISSUER.write(tmp_path / "jwks.json")], refresh_s=0)
    await source.open()
    yield Counting(source, permissions_claim="permissions", clock=clock)
    await source.close()


async def test_a_token_is_kept_once_however_its_header_is_padded(tmp_path: Path) -> None:
    async with counting(tmp_path) as mapper:
        token = ISSUER.token("x:admin")
        for spaces in range(100):
            assert mapper.claims(AuthInfo(f"Bearer {' ' * spaces}{token}{' ' * spaces}"))
            assert mapper.claims(AuthInfo(f"bEARER {token}"))
        assert mapper.checks == 1
        assert len(mapper._verdicts) == 1


async def test_a_refused_token_is_checked_once_in_ten_seconds(tmp_path: Path) -> None:
    now_s = time.time()
    async with counting(tmp_path, lambda: now_s) as mapper:
        bogus, early = OTHER.token("x:admin"), ISSUER.token("x:admin", nbf=int(now_s) + 20, exp=int(now_s) + 600)
        for _ in range(100):
            for token in (bogus, early):
                with pytest.raises(Denied):
                    claims(mapper, token)
        assert mapper.checks == 2
        # The refusal does not outlast its reason for long, and a change of the keys ends it.
        now_s += 11
        with pytest.raises(Denied):
            claims(mapper, bogus)
        mapper.forget()
        with pytest.raises(Denied):
            claims(mapper, bogus)
        assert mapper.checks == 4


def test_the_cache_of_tokens_is_bounded_in_number_and_bytes() -> None:
    verdicts = Verdicts()
    for number in range(3 * REFUSED_MAX):
        verdicts.refuse(b"refused %d" % number, "no", until_s=2.0)
    assert len(verdicts) == REFUSED_MAX
    found = Claims("alice")
    for number in range(3_000):
        verdicts.accept(b"accepted %d" % number, found, until_s=2.0, size_bytes=16_000)
    assert verdicts.accepted_bytes <= ACCEPTED_BYTES_MAX
    assert len(verdicts) == REFUSED_MAX + ACCEPTED_BYTES_MAX // 16_000
    assert verdicts.find(b"accepted 2999", 1.0) is found
    assert verdicts.find(b"accepted 2999", 2.0) is None
    assert verdicts.find(b"accepted 0", 1.0) is None
    # The same token again counts once.
    before = verdicts.accepted_bytes
    verdicts.accept(b"accepted 2999", found, until_s=3.0, size_bytes=16_000)
    assert verdicts.accepted_bytes == before
    verdicts.clear()
    assert (len(verdicts), verdicts.accepted_bytes) == (0, 0)


async def test_the_audience_must_match_if_one_is_configured(tmp_path: Path) -> None:
    source = KeySource([ISSUER.write(tmp_path / "jwks.json")], refresh_s=0)
    await source.open()
    mapper = JwtClaimMapper(source, permissions_claim="permissions", audience="fairlead")
    for audience in ("fairlead", ["other", "fairlead"]):
        assert claims(mapper, ISSUER.token("x:admin", aud=audience)).role_in("x") is Role.ADMIN
    for token in (ISSUER.token("x:admin"), ISSUER.token("x:admin", aud="other"), ISSUER.token("x:admin", aud=[])):
        with pytest.raises(Denied):
            claims(mapper, token)
    await source.close()


async def test_the_permissions_may_have_another_name_and_form(tmp_path: Path) -> None:
    source = KeySource([ISSUER.write(tmp_path / "jwks.json")], refresh_s=0)
    await source.open()
    mapper = JwtClaimMapper(
        source, permissions_claim="groups", permissions_regex=r"^(?P<role>\w+)@(?P<namespace>[\w-]+)$"
    )
    found = claims(mapper, ISSUER.token("x:admin", groups=["worker@orders", "admin@temporal-system", "x:admin"]))
    assert (found.system, dict(found.namespaces)) == (Role.ADMIN, {"orders": Role.WORKER})
    # Permissions that are not a list grant nothing.
    assert not claims(mapper, ISSUER.token(groups="admin@temporal-system")).system
    await source.close()


async def test_a_withdrawn_key_is_gone_with_the_next_refresh(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    source = KeySource([ISSUER.write(file)], refresh_s=0.02)
    await source.open()
    mapper = JwtClaimMapper(source, permissions_claim="permissions")
    source.on_change(mapper.forget)
    old, new = ISSUER.token("x:admin"), OTHER.token("x:admin")
    claims(mapper, old)
    OTHER.write(file)
    async with asyncio.timeout(20):
        while True:
            try:
                claims(mapper, new)
                break
            except Denied:
                await asyncio.sleep(0.01)
    with pytest.raises(Denied):
        claims(mapper, old)
    # A source that can't be read leaves the keys as they are.
    file.write_text("{}")
    await source._read()
    claims(mapper, new)
    await source.close()


async def test_sources_are_read_independently_and_the_keys_of_one_that_is_down_end(tmp_path: Path) -> None:
    now_s = 0.0
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    kept = {**ISSUER.jwks()["keys"][0], "kid": "kept"}
    first.write_text(json.dumps({"keys": [kept]}))
    source = KeySource([first.as_uri(), ISSUER.write(second)], refresh_s=60, clock=lambda: now_s)
    changes: list[str] = []
    source.on_change(lambda: changes.append("changed"))
    await source._read()
    assert sorted(source._keys) == ["ec", "kept", "rsa"]
    # The first source is down, and the second one withdraws a key.
    first.unlink()
    second.write_text(json.dumps({"keys": ISSUER.jwks()["keys"][:1]}))
    now_s += STALE_S_MAX - 1
    await source._read()
    assert sorted(source._keys) == ["kept", "rsa"]
    now_s += 2
    await source._read()
    assert sorted(source._keys) == ["rsa"]
    assert len(changes) == 3
    # The file has the key again.
    first.write_text(json.dumps({"keys": [kept]}))
    await source._read()
    assert sorted(source._keys) == ["kept", "rsa"]


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["in its headers", "in its body"])
async def test_a_source_that_sends_a_byte_now_and_then_delays_no_call(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_web_keys, "FETCH_S_MAX", 0.5)

    ended = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            writer.write(head)
            while True:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.05)
        ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    source = KeySource([f"http://127.0.0.1:{port}/jwks", ISSUER.write(tmp_path / "jwks.json")], refresh_s=60)
    async with asyncio.timeout(30):
        await source.open()
    assert sorted(source._keys) == ["ec", "rsa"]
    await source.close()
    # The source has noticed the end of the connection.
    await ended.wait()
    server.close()


async def test_a_password_in_an_address_is_in_no_message() -> None:
    with capture_logs() as logs:
        for address in (
            "http://user:hunter2@127.0.0.1:1/jwks?key=hunter2",
            "http://user:hunter2@127.0.0.1/jwks",
            "https://user:hunter2@[::1]:1/jwks",
        ):
            source = KeySource([address], refresh_s=0)
            await source._read()
    assert len(logs) == 3
    assert "hunter2" not in str(logs)
    assert "127.0.0.1" in str(logs)


def weak_keys() -> list[dict[str, Any]]:
    small = rsa.generate_private_key(65537, 1024).public_key().public_numbers()  # noqa: S505 - it must be refused
    curve = ec.generate_private_key(ec.SECP384R1()).public_key().public_numbers()

    def number(value: int) -> str:
        return base64.urlsafe_b64encode(value.to_bytes(128, "big")).decode().rstrip("=")

    return [
        {"kty": "RSA", "kid": "small", "n": number(small.n), "e": "AQAB"},
        {"kty": "EC", "kid": "p384", "crv": "P-384", "x": number(curve.x), "y": number(curve.y)},
        {"kty": "oct", "kid": "secret", "k": "AAAA"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "!"},
        {**ISSUER.jwks()["keys"][0], "kid": "encryption", "use": "enc"},
        {**ISSUER.jwks()["keys"][0], "kid": ""},
    ]


async def test_weak_and_unusable_keys_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [*weak_keys(), "text", *ISSUER.jwks()["keys"]]}))
    source = KeySource([file.as_uri()], refresh_s=0)
    await source.open()
    assert sorted(source._keys) == ["ec", "rsa"]
    await source.close()


@contextmanager
def served(content: bytes, *, redirect: str = "", tls: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if redirect else 200)
            if redirect:
                self.send_header("Location", redirect)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/jwks.json"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_keys_are_read_from_an_address(tmp_path: Path) -> None:
    good = json.dumps(ISSUER.jwks()).encode()
    with (
        served(good) as address,
        served(b"", redirect=address) as redirected,
        served(b" " * (KEY_SET_BYTES_MAX + 9)) as large,
    ):
        for source_address, count in ((address, 2), (redirected, 0), (large, 0)):
            source = KeySource([source_address], refresh_s=0)
            await source.open()
            assert len(source._keys) == count
            await source.close()


# A fuzz: no token but a valid one is ever accepted, and nothing but the denial is ever raised.

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_part = st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()) | _json.map(
    lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")
)
_head = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from(["RS256", "ES256", "HS256", "none", "", "RS512"]) | _json,
        "kid": st.sampled_from(["rsa", "ec", "", "x"]) | _json,
        "typ": _json,
        "crit": _json,
        "b64": _json,
        "jwk": _json,
    },
).map(lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("="))
_strange = st.text(max_size=200) | st.lists(_part, min_size=0, max_size=5).map(".".join)
_forged = st.tuples(_head, _part, _part).map(".".join)
_SIGNED = ISSUER.token("x:admin")


@st.composite
def _mutated(draw: st.DrawFn) -> str:
    """A valid token with some characters of its signed part changed."""
    characters = list(_SIGNED)
    # The last character of a part may have bits that decode to nothing: leave the ends alone.
    end = _SIGNED.rindex(".") + 300
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, end))
        characters[place] = draw(st.sampled_from("ABCxyz019-_.{\x00é"))
    return "".join(characters)


@pytest.mark.sim
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(token=_strange | _forged | _mutated())
def test_no_other_token_is_accepted(mapper: JwtClaimMapper, token: str) -> None:
    if token == _SIGNED:
        return
    with pytest.raises(Denied):
        mapper.claims(AuthInfo(f"Bearer {token}"))


@pytest.mark.sim
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.dictionaries(st.sampled_from(["sub", "exp", "nbf", "aud", "iat", "iss", "jti", "permissions"]), _json)
)
def test_signed_tokens_with_strange_contents_grant_nothing_and_break_nothing(
    mapper: JwtClaimMapper, content: dict[str, Any]
) -> None:
    body = json.dumps({"sub": "alice", "exp": 2**33, **content}, allow_nan=True).encode()
    token = jwt.PyJWS().encode(body, ISSUER.rsa_key, algorithm="RS256", headers={"kid": "rsa"})
    try:
        found = mapper.claims(AuthInfo(f"Bearer {token}"))
    except Denied:
        return
    assert found is not None
    assert isinstance(found.subject, str)
    assert not found.system
