"""Public keys that verify tokens: JSON Web Key Sets from https addresses and files, read again at intervals."""

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import unquote, urlsplit

from fairlead.core.errors import GiveUp
from fairlead.telemetry import get_log

# Maximum bytes of a key set, maximum number of its keys, and the timeout of a read in seconds.
KEY_SET_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 1_000
FETCH_S_MAX: Final = 10.0
# Minimum number of bits of an RSA key.
RSA_BITS_MIN: Final = 2_048
# Seconds until the next attempt while no source has been read at all.
RETRY_S: Final = 5.0

_log = get_log("authorization.keys")


class UnreadableKeys(GiveUp):
    """A source of keys can't be read."""


class VerificationKey:
    """A public key, and the only algorithm for which it may be used."""

    __slots__ = ("algorithm", "key")

    def __init__(self, key: Any, algorithm: str) -> None:
        self.key = key
        self.algorithm = algorithm


class KeySource:
    """The keys of all sources, by their `kid`. They are replaced as a whole: a withdrawn key is gone at once.

    If a source can't be read, the keys stay as they are.
    """

    def __init__(self, sources: Sequence[str], *, refresh_s: float) -> None:
        self._sources = tuple(sources)
        self._refresh_s = refresh_s
        self._on_change: Callable[[], None] = lambda: None
        self._texts: tuple[bytes, ...] | None = None
        self._keys: Mapping[str, VerificationKey] = {}
        self._running: asyncio.Task[None] | None = None

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the keys have changed."""
        self._on_change = listener

    def find(self, kid: str) -> VerificationKey | None:
        """The key with an id."""
        return self._keys.get(kid)

    async def open(self) -> None:
        """Read all sources, and start to read them again at intervals."""
        await self._read()
        self._running = asyncio.create_task(self._read_forever())

    async def close(self) -> None:
        """Stop reading."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _read_forever(self) -> None:
        while True:
            if self._texts is None:
                await asyncio.sleep(RETRY_S)
            elif self._refresh_s > 0:
                await asyncio.sleep(self._refresh_s)
            else:
                return
            await self._read()

    async def _read(self) -> None:
        try:
            texts, keys = await asyncio.to_thread(_read_all, self._sources, self._texts)
        except UnreadableKeys as failure:
            _log.error("keys of tokens not read, keeping the last ones", reason=str(failure), keys=len(self._keys))
            return
        if keys is not None:
            self._texts, self._keys = texts, keys
            self._on_change()
            _log.info("keys of tokens read", keys=sorted(keys))


def _read_all(
    sources: Sequence[str], before: tuple[bytes, ...] | None
) -> tuple[tuple[bytes, ...], Mapping[str, VerificationKey] | None]:
    """Read the sources; the keys are None if nothing has changed."""
    texts = tuple(_fetch(source) for source in sources)
    if texts == before:
        return texts, None
    found: dict[str, VerificationKey] = {}
    for source, text in zip(sources, texts, strict=True):
        for kid, key in _parse(source, text).items():
            found.setdefault(kid, key)
    return texts, found


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to an address without TLS: the configured address must be the right one."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _fetch(source: str) -> bytes:
    parts = urlsplit(source)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as opened:
                text = opened.read(KEY_SET_BYTES_MAX + 1)
        else:
            opener = urllib.request.build_opener(_NoRedirects)
            response: HTTPResponse
            with opener.open(source, timeout=FETCH_S_MAX) as response:
                text = response.read(KEY_SET_BYTES_MAX + 1)
    except (OSError, URLError, ValueError) as failure:
        raise UnreadableKeys(f"{source} can't be read: {failure}") from None
    if len(text) > KEY_SET_BYTES_MAX:
        raise UnreadableKeys(f"{source} has more than {KEY_SET_BYTES_MAX} bytes")
    return text


def _parse(source: str, text: bytes) -> dict[str, VerificationKey]:
    try:
        content = json.loads(text)
        listed = list(content["keys"])
    except (ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise UnreadableKeys(f"{source} is not a JSON Web Key Set: {wrong}") from None
    found: dict[str, VerificationKey] = {}
    for entry in listed[:KEYS_MAX]:
        kid = entry.get("kid") if isinstance(entry, dict) else None
        if not isinstance(kid, str) or not kid:
            _log.warning("key without kid skipped", source=source)
            continue
        key = _key(entry)
        if key is None:
            _log.warning("key skipped: only RS256 with 2048 bits or more, and ES256", source=source, kid=kid)
        else:
            found[kid] = key
    return found


def _key(entry: Mapping[str, Any]) -> VerificationKey | None:
    # Imported late: cryptography takes a while to load, and only servers with JWTs need it.
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm  # noqa: PLC0415

    if entry.get("use", "sig") != "sig":
        return None
    try:
        if entry.get("kty") == "RSA" and entry.get("alg", "RS256") == "RS256":
            key: Any = RSAAlgorithm.from_jwk(dict(_public(entry)))
            return VerificationKey(key, "RS256") if key.key_size >= RSA_BITS_MIN else None
        if entry.get("kty") == "EC" and entry.get("alg", "ES256") == "ES256" and entry.get("crv") == "P-256":
            return VerificationKey(ECAlgorithm.from_jwk(dict(_public(entry))), "ES256")
    except Exception as wrong:  # noqa: BLE001 - whatever is wrong with a key, the others stay usable
        _log.warning("key not readable", kid=str(entry.get("kid")), reason=type(wrong).__name__)
    return None


def _public(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only the public parts of a key, even if the source has the private ones."""
    return {name: value for name, value in entry.items() if name in ("kty", "n", "e", "crv", "x", "y")}
