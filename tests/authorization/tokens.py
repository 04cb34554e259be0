"""Keys, tokens and gates for tests."""

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from fairlead.authorization import Authorizer, ClaimMapper, Claims, DefaultAuthorizer, Gate
from fairlead.authorization.api_keys import ApiKeys
from fairlead.authorization.claims import AuthInfo, with_permissions
from fairlead.authorization.gate import Decided
from fairlead.rpc.certificate import PeerCertificate
from fairlead.settings import DynamicSettings
from fairlead.settings.static.authorization import AuthorizationConfig, CertificateGrant
from fairlead.telemetry import Metrics


def _number(value: int) -> str:
    size = max(1, (value.bit_length() + 7) // 8)
    return base64.urlsafe_b64encode(value.to_bytes(size, "big")).decode().rstrip("=")


@dataclass
class Issuer:
    """Signs tokens; `jwks` is its key set."""

    rsa_key: rsa.RSAPrivateKey
    ec_key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls) -> "Issuer":
        return cls(rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1()))

    def jwks(self) -> dict[str, Any]:
        rsa_numbers = self.rsa_key.public_key().public_numbers()
        ec_numbers = self.ec_key.public_key().public_numbers()
        return {
            "keys": [
                {"kty": "RSA", "kid": "rsa", "alg": "RS256", "n": _number(rsa_numbers.n), "e": _number(rsa_numbers.e)},
                {"kty": "EC", "kid": "ec", "crv": "P-256", "x": _number(ec_numbers.x), "y": _number(ec_numbers.y)},
            ]
        }

    def write(self, file: Path) -> str:
        """Write the key set; returns its address."""
        file.write_text(json.dumps(self.jwks()))
        return file.as_uri()

    def token(
        self, *permissions: object, kid: str = "rsa", header: dict[str, Any] | None = None, **content: Any
    ) -> str:
        """A token that is valid unless `content` says otherwise."""
        claims = {"sub": "alice", "exp": int(time.time()) + 3600, "permissions": list(permissions), **content}
        claims = {name: value for name, value in claims.items() if value is not None}
        key, algorithm = (self.ec_key, "ES256") if kid == "ec" else (self.rsa_key, "RS256")
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid, **(header or {})})


@dataclass
class Peer:
    """The credentials of a call."""

    metadata: dict[str, str]
    certificate: PeerCertificate | None = None
    peer: str = "10.0.0.9:1234"


def bearing(token: str) -> Peer:
    return Peer({"authorization": f"Bearer {token}"})


class Named:
    """A claim mapper for tests: the token is a list of permissions, as in `Bearer a:worker,temporal-system:read`."""

    def claims(self, info: AuthInfo) -> Claims | None:
        if not info.token:
            return None
        listed = info.token.removeprefix("Bearer ").split(",")
        pairs = [(namespace, role) for namespace, _, role in (each.partition(":") for each in listed)]
        return with_permissions(info.token, pairs, kind="test")


def make_gate(
    *,
    mapper: ClaimMapper | None = None,
    authorizer: Authorizer | None = None,
    api_keys: ApiKeys | None = None,
    secret: str = "",
    certificates: tuple[CertificateGrant, ...] = (),
    dynamic: dict[str, Any] | None = None,
    metrics: Metrics | None = None,
    decided: list[Decided] | None = None,
    **config: Any,
) -> Gate:
    return Gate(
        AuthorizationConfig(authorizer="default", certificates=certificates, **config),
        authorizer=authorizer or DefaultAuthorizer(),
        mapper=mapper,
        api_keys=api_keys,
        settings=DynamicSettings(overrides=dynamic or {}),
        metrics=metrics or Metrics(),
        secret=secret,
        on_decision=None if decided is None else decided.append,
    )
