"""Claims from JSON Web Tokens, by the rules of Temporal's default claim mapper."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

from fairlead.authorization.claims import PERMISSIONS_MAX, AuthInfo, Claims, Denied, with_permissions
from fairlead.authorization.json_web_keys import KeySource, VerificationKey
from fairlead.authorization.verdicts import Verdicts
from fairlead.telemetry import get_log

# Characters of a token.
TOKEN_CHARACTERS_MAX: Final = 16_384
# Seconds until a token is verified again, and until one that was refused is.
VERIFIED_S_MAX: Final = 60.0
REFUSED_S_MAX: Final = 10.0
# Seconds by which the clocks of the issuer and of this host may differ.
LEEWAY_S: Final = 0.0

_ALGORITHMS: Final = frozenset(("RS256", "ES256"))
_BEARER: Final = "bearer "

_log = get_log("authorization.tokens")


class JwtClaimMapper:
    """Verifies `Bearer` tokens. Only RS256 and ES256, `kid`, `sub` and `exp` are required."""

    def __init__(
        self,
        keys: KeySource,
        *,
        permissions_claim: str,
        permissions_regex: str = "",
        audience: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`permissions_regex` has the groups `namespace` and `role`; without it, a permission is `namespace:role`."""
        self._keys = keys
        self._claim = permissions_claim
        self._pattern = re.compile(permissions_regex) if permissions_regex else None
        self._audience = audience
        self._clock = clock
        self._verdicts = Verdicts()

    def forget(self) -> None:
        """Verify all tokens again: the keys have changed."""
        self._verdicts.clear()

    def claims(self, info: AuthInfo) -> Claims | None:
        """The claims of a token; None without one."""
        if not info.token:
            return None
        token = bearer(info.token)
        # By the digest: the token itself may be large, and its header may be padded in many ways.
        digest = sha256(token.encode(errors="replace")).digest()
        now_s = self._clock()
        kept = self._verdicts.find(digest, now_s)
        if isinstance(kept, str):
            raise Denied(kept)
        if kept is not None:
            return kept
        try:
            claims = self._verify(token, now_s)
        except Denied as denied:
            self._verdicts.refuse(digest, str(denied), until_s=now_s + REFUSED_S_MAX)
            raise
        until_s = min(claims.expires_s, now_s + VERIFIED_S_MAX)
        self._verdicts.accept(digest, claims, until_s=until_s, size_bytes=len(token))
        return claims

    def _verify(self, token: str, now_s: float) -> Claims:
        # Imported late: only servers with JWTs need it.
        import jwt  # noqa: PLC0415

        try:
            key = self._key(jwt.get_unverified_header(token))
            content: Mapping[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._audience or None,
                leeway=LEEWAY_S,
                options={
                    "require": ["exp", "sub"],
                    "verify_aud": bool(self._audience),
                    "verify_iat": False,
                    "strict_aud": False,
                },
            )
            subject, expires_s = content["sub"], float(content["exp"])
        except Denied:
            raise
        except Exception as wrong:  # noqa: BLE001 - tokens come from strangers: deny after any fault
            raise Denied(f"the token is not valid: {type(wrong).__name__}") from None
        if not isinstance(subject, str) or not subject:
            raise Denied("the token's sub is not a string")
        if not now_s < expires_s:
            raise Denied("the token has expired")
        return with_permissions(subject, self._permissions(content), kind="jwt", expires_s=expires_s)

    def _key(self, header: Mapping[str, Any]) -> VerificationKey:
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(kid, str) or not kid:
            raise Denied("the token has no kid")
        key = self._keys.find(kid)
        if key is None:
            raise Denied("the token's kid is not known here")
        if algorithm not in _ALGORITHMS or algorithm != key.algorithm:
            raise Denied("the token's algorithm differs from its key's")
        return key

    def _permissions(self, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        listed = content.get(self._claim)
        if not isinstance(listed, list):
            return
        for permission in listed[:PERMISSIONS_MAX]:
            pair = self._pair(permission)
            if pair is None:
                _log.warning("permission of a token skipped: it is not NAMESPACE:ROLE")
            else:
                yield pair

    def _pair(self, permission: object) -> tuple[str, str] | None:
        if not isinstance(permission, str):
            return None
        if self._pattern is None:
            parts = permission.split(":")
            return (parts[0], parts[1]) if len(parts) == 2 else None
        match = self._pattern.search(permission)
        return None if match is None else (match["namespace"] or "", match["role"] or "")


def bearer(header: str) -> str:
    """The token of an authorization header; raises `Denied` if it is not a bearer token."""
    if len(header) > TOKEN_CHARACTERS_MAX:
        raise Denied("the token is too long")
    if header[: len(_BEARER)].lower() != _BEARER:
        raise Denied("the authorization header is not of the form: Bearer TOKEN")
    return header[len(_BEARER) :].strip()
