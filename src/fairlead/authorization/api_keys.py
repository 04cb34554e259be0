"""API keys: made by `fairlead admin key create`, shown once, stored as a hash.

A key is `fl_<id>_<secret>`. The id is public: it names the key in lists, logs and the audit. The secret has 256 random
bits, so that its plain SHA-256 can't be reversed by trying secrets.
"""

import asyncio
import hmac
import secrets
import time
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from fairlead.authorization.claims import Claims, Denied, with_permissions
from fairlead.authorization.roles import SYSTEM_NAMESPACE, role_name, role_of
from fairlead.core.errors import FixRequest, GiveUp, RetryLater, reported
from fairlead.storage.history import StoredMetadata
from fairlead.storage.history_conflicts import MetadataConflict
from fairlead.telemetry import get_log

PREFIX: Final = "fl_"
ROWS: Final = "api-keys/"
# Number of stored keys, including revoked and expired ones, until these are deleted.
KEYS_MAX: Final = 5_000
PAGE: Final = 1_000
NAME_CHARACTERS_MAX: Final = 200
# Seconds until every host knows a new key or a revocation.
REFRESH_S: Final = 2.0
# Seconds without a successful refresh after which no keys are accepted: any of them may have been revoked.
STALE_S_MAX: Final = 30.0
# Seconds between two writes of a key's last use.
LAST_USE_S: Final = 60.0
# Seconds for which a revoked or expired key is still listed.
LISTED_S: Final = 30 * 86_400.0
WRITE_ATTEMPTS_MAX: Final = 5
_SECRET_BYTES: Final = 32
_ID_BYTES: Final = 10

_log = get_log("authorization.keys")


class InvalidKeyRequest(FixRequest):
    """A key can't be created, or there is no such key."""


class KeysUnavailable(RetryLater):
    """Keys can't be checked: the store has not answered for too long."""


class UnreadableKey(GiveUp):
    """The stored record of a key can't be decoded."""


class ApiKey(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """A key as it is stored. Fields are added at the end only, with a default. Times are in seconds since 1970."""

    id: str
    digest: bytes
    name: str
    # Pairs of namespace and role; the namespace `temporal-system` stands for the whole system.
    permissions: tuple[tuple[str, str], ...]
    # Name of the remote cluster that uses the key; empty for all other keys.
    cluster: str = ""
    created_s: float = 0.0
    # 0: the key doesn't expire.
    expires_s: float = 0.0
    revoked_s: float = 0.0
    last_used_s: float = 0.0
    created_by: str = ""

    def is_valid(self, now_s: float) -> bool:
        """Whether the key is neither revoked nor expired."""
        return not self.revoked_s and (not self.expires_s or now_s < self.expires_s)


class KeyStore(Protocol):
    """The part of a store that keeps keys."""

    async def read_metadata(self, key: str) -> StoredMetadata | None:
        """Read one value."""
        ...

    async def write_metadata(self, key: str, payload: bytes, *, expected_version: int) -> int:
        """Write one value."""
        ...

    async def delete_metadata(self, key: str, *, expected_version: int) -> None:
        """Delete one value."""
        ...

    async def list_metadata(self, *, prefix: str, after: str | None, limit: int) -> list[StoredMetadata]:
        """List values in the order of their keys."""
        ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ApiKey).decode


def new_key(
    name: str,
    *,
    namespace: str,
    role: str,
    cluster: str = "",
    expires_s: float = 0.0,
    now_s: float,
    created_by: str = "",
) -> tuple[ApiKey, str]:
    """A new key, and its text, which is not kept anywhere."""
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise InvalidKeyRequest(f"the name of a key has at most {NAME_CHARACTERS_MAX} printable characters")
    if bool(cluster) == bool(namespace):
        raise InvalidKeyRequest(
            "give a namespace and a role, a role for the whole system, or a cluster: a key is for exactly one of these"
        )
    if namespace and not role_of(role):
        raise InvalidKeyRequest(f"role {role!r} is unknown: give worker, reader, writer or admin")
    if expires_s and expires_s <= now_s:
        raise InvalidKeyRequest("the key would have expired already: give a later time")
    key_id = b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    secret = urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).decode().rstrip("=")
    made = ApiKey(
        id=key_id,
        digest=sha256(secret.encode()).digest(),
        name=name,
        permissions=((namespace, role_name(role_of(role))),) if namespace else (),
        cluster=cluster,
        created_s=now_s,
        expires_s=expires_s,
        created_by=created_by,
    )
    return made, f"{PREFIX}{key_id}_{secret}"


async def store_key(store: KeyStore, key: ApiKey) -> None:
    """Store a new key; it is valid on all hosts `REFRESH_S` later."""
    if len(await list_keys(store)) >= KEYS_MAX:
        raise InvalidKeyRequest(f"{KEYS_MAX} keys exist, which is the limit: revoke those that are not used")
    await store.write_metadata(ROWS + key.id, _encode(key), expected_version=0)


async def list_keys(store: KeyStore) -> list[ApiKey]:
    """All stored keys, in the order of their ids."""
    found: list[ApiKey] = []
    after: str | None = None
    while True:
        page = await store.list_metadata(prefix=ROWS, after=after, limit=PAGE)
        found += [_decoded(row) for row in page]
        if len(page) < PAGE:
            return found
        after = page[-1].key


async def revoke_key(store: KeyStore, key_id: str, *, now_s: float) -> ApiKey:
    """Revoke a key for good; raises `InvalidKeyRequest` if there is no such key."""
    revoked = await _change(store, key_id, lambda key: key if key.revoked_s else replace(key, revoked_s=now_s))
    if revoked is None:
        raise InvalidKeyRequest(f"there is no key {key_id!r}: `fairlead admin key list` lists all")
    return revoked


async def _change(store: KeyStore, key_id: str, change: Callable[[ApiKey], ApiKey]) -> ApiKey | None:
    row = await store.read_metadata(ROWS + key_id)
    for _ in range(WRITE_ATTEMPTS_MAX):
        if row is None:
            return None
        changed = change(_decoded(row))
        try:
            await store.write_metadata(row.key, _encode(changed), expected_version=row.version)
        except MetadataConflict as conflict:
            row = conflict.present
        else:
            return changed
    raise KeysUnavailable(f"key {key_id} changed during {WRITE_ATTEMPTS_MAX} attempts to write it: try again")


def _decoded(row: StoredMetadata) -> ApiKey:
    try:
        return _decode(row.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise UnreadableKey(f"the stored {row.key} can't be decoded ({wrong}): did a newer release write it?") from None


class ApiKeys:
    """The valid keys, as one host knows them; refreshed every `REFRESH_S`."""

    def __init__(self, store: KeyStore, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._keys: Mapping[str, tuple[ApiKey, Claims]] = {}
        self._refreshed_s = 0.0
        self._used_s: dict[str, float] = {}
        self._running: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the keys, and start to refresh them."""
        await self.refresh()
        self._running = asyncio.create_task(self._refresh_forever())

    async def close(self) -> None:
        """Stop refreshing, and store the last uses."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await self._note_uses()

    def claims(self, text: str) -> Claims:
        """The claims of a key; raises `Denied` if it is unknown, revoked or expired."""
        now_s = self._clock()
        if now_s - self._refreshed_s > STALE_S_MAX:
            raise KeysUnavailable(f"API keys could not be read from the store for {STALE_S_MAX:g} s: try again")
        key_id, _, secret = text[len(PREFIX) :].partition("_")
        known = self._keys.get(key_id)
        if known is None or not text.startswith(PREFIX):
            raise Denied("the API key is unknown")
        key, claims = known
        if not hmac.compare_digest(key.digest, sha256(secret.encode(errors="replace")).digest()):
            raise Denied("the API key is wrong")
        if not key.is_valid(now_s):
            raise Denied("the API key is revoked" if key.revoked_s else "the API key has expired")
        self._used_s[key_id] = now_s
        return claims

    async def refresh(self) -> None:
        """Read all keys."""
        began_s = self._clock()
        found = await list_keys(self._store)
        self._keys = {key.id: (key, claims_of(key)) for key in found if key.is_valid(began_s)}
        self._refreshed_s = began_s
        await self._forget([key for key in found if not key.is_valid(began_s - LISTED_S)], now_s=began_s)

    async def _forget(self, ended: list[ApiKey], *, now_s: float) -> None:
        """Delete keys that ended long ago."""
        for key in ended:
            if (key.revoked_s or key.expires_s) > now_s - LISTED_S:
                continue
            row = await self._store.read_metadata(ROWS + key.id)
            if row is not None:
                try:
                    await self._store.delete_metadata(row.key, expected_version=row.version)
                except MetadataConflict:
                    continue

    async def _refresh_forever(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
                await self._note_uses()
                is_failing = False
            except Exception as failure:  # noqa: BLE001 - known keys stay for a while, and the refresh is retried
                if not is_failing:
                    _log.warning("API keys not refreshed", **reported(failure, "reason"))
                is_failing = True

    async def _note_uses(self) -> None:
        """Store the last use of each key, at most once in `LAST_USE_S`."""
        used, self._used_s = self._used_s, {}
        for key_id, used_s in used.items():
            known = self._keys.get(key_id)
            if known is None or used_s - known[0].last_used_s < LAST_USE_S:
                continue

            def later(key: ApiKey, used_s: float = used_s) -> ApiKey:
                return replace(key, last_used_s=max(key.last_used_s, used_s))

            await _change(self._store, key_id, later)


def claims_of(key: ApiKey) -> Claims:
    """The claims that a key gives its holder."""
    subject = f"{key.id} ({key.name})" if key.name else key.id
    kind = "cluster" if key.cluster else "api-key"
    return with_permissions(subject, key.permissions, kind=kind, cluster=key.cluster)


def describe(key: ApiKey) -> tuple[str, str]:
    """Where a key is valid, and its role, for people."""
    if key.cluster:
        return f"cluster {key.cluster}", "cluster"
    namespace, role = key.permissions[0] if key.permissions else ("", "none")
    return ("the whole system" if namespace == SYSTEM_NAMESPACE else namespace), role
