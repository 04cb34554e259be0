"""Public keys that verify tokens: JSON Web Key Sets from https addresses and files, read again at intervals."""

import asyncio
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import unquote, urlsplit, urlunsplit

from fairlead.core.errors import GiveUp
from fairlead.telemetry import get_log

# Maximum bytes of a key set, maximum number of its keys, and seconds for reading it from its first to its last byte.
KEY_SET_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 1_000
FETCH_S_MAX: Final = 10.0
# Minimum number of bits of an RSA key.
RSA_BITS_MIN: Final = 2_048
# Seconds until the next attempt while a source has not been read at all.
RETRY_S: Final = 5.0
# Seconds for which the keys of a source count that can't be read: one of them may be withdrawn.
STALE_S_MAX: Final = 3_600.0

_log = get_log("authorization.keys")


class UnreadableKeys(GiveUp):
    """A source of keys can't be read."""


class VerificationKey:
    """A public key, and the only algorithm for which it may be used."""

    __slots__ = ("algorithm", "key")

    def __init__(self, key: Any, algorithm: str) -> None:
        self.key = key
        self.algorithm = algorithm


class _Source:
    """One source: its last keys, and when they were read."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.text: bytes | None = None
        self.keys: Mapping[str, VerificationKey] = {}
        # Time in seconds of the monotonic clock.
        self.read_s = 0.0


class KeySource:
    """The keys of all sources, by their `kid`.

    The keys of a source are replaced as a whole: a withdrawn key is gone at once. If a source can't be read, its keys
    stay for `STALE_S_MAX`, or for two more reads if these take longer. Those of the others are read all the same.
    """

    def __init__(
        self, sources: Sequence[str], *, refresh_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources = [_Source(address) for address in sources]
        self._refresh_s = refresh_s
        self._clock = clock
        self._on_change: Callable[[], None] = lambda: None
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
            if any(source.text is None for source in self._sources):
                await asyncio.sleep(min(RETRY_S, self._refresh_s or RETRY_S))
            elif self._refresh_s > 0:
                await asyncio.sleep(self._refresh_s)
            else:
                return
            await self._read()

    async def _read(self) -> None:
        """Read all sources at once: a slow one does not delay the others by more than `FETCH_S_MAX`."""
        changed = await asyncio.gather(*(self._read_one(source) for source in self._sources))
        if not any(changed):
            return
        found: dict[str, VerificationKey] = {}
        for source in self._sources:
            for kid, key in source.keys.items():
                found.setdefault(kid, key)
        self._keys = found
        self._on_change()
        _log.info("keys of tokens read", keys=sorted(found))

    async def _read_one(self, source: _Source) -> bool:
        """Read one source; return whether its keys have changed."""
        if self._refresh_s == 0 and source.text is not None:
            return False
        try:
            text, keys = await asyncio.to_thread(_read, source.address, source.text)
        except Exception as failure:  # noqa: BLE001 - a fault of one source must not affect the others
            reason = (
                str(failure)
                if isinstance(failure, UnreadableKeys)
                else f"{shown(source.address)}: {type(failure).__name__}"
            )
            return self._has_failed(source, reason)
        source.read_s = self._clock()
        if keys is None:
            return False
        source.text, source.keys = text, keys
        return True

    def _has_failed(self, source: _Source, reason: str) -> bool:
        """Log the failure; drop the source's keys if they are too old, and return whether they were dropped."""
        _log.error("keys of tokens not read, keeping the last ones", reason=reason, keys=len(source.keys))
        # With long pauses between reads, a single failure must not drop the keys.
        if not source.keys or self._clock() - source.read_s < max(STALE_S_MAX, 2.5 * self._refresh_s):
            return False
        _log.error("keys of tokens dropped: their source was unreadable for too long", source=shown(source.address))
        # The next read that succeeds brings them back.
        source.keys, source.text = {}, None
        return True


def shown(source: str) -> str:
    """The address of a source for messages, without a password or a query, which may be secret."""
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _read(source: str, before: bytes | None) -> tuple[bytes, Mapping[str, VerificationKey] | None]:
    """Read a source; the keys are None if nothing has changed."""
    text = _fetch(source)
    return text, None if text == before else _parse(shown(source), text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to an address without TLS: the configured address must be the right one."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps the connections that it opens, so that a deadline can cut them."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: list[HTTPConnection] = []

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._kept(HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._kept(HTTPSConnection), request)

    def cut(self) -> None:
        """End all reads on the connections; called in another thread."""
        for connection in self._opened:
            opened = connection.sock
            if opened is not None:
                with suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)

    def _kept(self, kind: type[HTTPConnection]) -> Any:
        def make(host: str, **options: Any) -> HTTPConnection:
            self._opened.append(kind(host, **options))
            return self._opened[-1]

        return make


def _fetch(source: str) -> bytes:
    parts = urlsplit(source)
    try:
        if parts.scheme == "file":
            with Path(unquote(parts.path)).open("rb") as opened:
                text = opened.read(KEY_SET_BYTES_MAX + 1)
        else:
            text = _downloaded(source)
    except TimeoutError:
        raise UnreadableKeys(f"{shown(source)} has not answered in {FETCH_S_MAX:g} s") from None
    except (OSError, URLError) as failure:
        raise UnreadableKeys(f"{shown(source)} can't be read: {failure}") from None
    except (HTTPException, ValueError) as failure:
        # Its text may have the address, with a password.
        raise UnreadableKeys(f"{shown(source)} can't be read: {type(failure).__name__}") from None
    if len(text) > KEY_SET_BYTES_MAX:
        raise UnreadableKeys(f"{shown(source)} has more than {KEY_SET_BYTES_MAX} bytes")
    return text


def _downloaded(source: str) -> bytes:
    """Read an address within `FETCH_S_MAX`; a source that sends a byte now and then does not get longer."""
    deadline_s = time.monotonic() + FETCH_S_MAX
    connections = _Connections()
    # The timeout of a socket is for each read: only this ends a response whose headers come byte by byte.
    timer = threading.Timer(FETCH_S_MAX, connections.cut)
    timer.daemon = True
    timer.start()
    found = bytearray()
    try:
        opener = urllib.request.build_opener(_NoRedirects, connections)
        response: HTTPResponse
        with opener.open(source, timeout=FETCH_S_MAX) as response:
            while len(found) <= KEY_SET_BYTES_MAX and (part := response.read1(KEY_SET_BYTES_MAX + 1 - len(found))):
                found += part
                if time.monotonic() > deadline_s:
                    raise TimeoutError
    finally:
        timer.cancel()
    return bytes(found)


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
    except Exception as wrong:  # noqa: BLE001 - a fault of one key must not affect the others
        _log.warning("key not readable", kid=str(entry.get("kid")), reason=type(wrong).__name__)
    return None


def _public(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only the public parts of a key, even if the source has the private ones."""
    return {name: value for name, value in entry.items() if name in ("kty", "n", "e", "crv", "x", "y")}
