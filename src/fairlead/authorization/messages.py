"""Requests of `fairlead admin key` to a host, and their handlers."""

import time
from collections.abc import Awaitable, Callable

from msgspec import Struct

from fairlead.api.principals import current_principal
from fairlead.authorization.api_keys import ApiKey, KeyStore, list_keys, new_key, revoke_key, store_key
from fairlead.rpc.hosts.caller import Handlers, Method


class CreateKeyRequest(Struct, frozen=True, array_like=True):
    """Create a key for a namespace and a role, or for a remote cluster. `expires_s` 0: it doesn't expire."""

    name: str
    namespace: str = ""
    role: str = ""
    cluster: str = ""
    expires_s: float = 0.0


class CreateKeyResponse(Struct, frozen=True, array_like=True):
    """The text of the new key. It is shown only once."""

    id: str
    key: str


class ListKeysRequest(Struct, frozen=True, array_like=True):
    """List all keys."""


class ListedKey(Struct, frozen=True, array_like=True):
    """A key without its hash."""

    id: str
    name: str
    permissions: tuple[tuple[str, str], ...]
    cluster: str
    created_s: float
    expires_s: float
    revoked_s: float
    last_used_s: float
    # Means of authentication and name of the caller that made the key; empty for a key of an earlier release.
    created_by: str = ""


class ListKeysResponse(Struct, frozen=True, array_like=True):
    """All keys, the newest last."""

    keys: list[ListedKey]


class RevokeKeyRequest(Struct, frozen=True, array_like=True):
    """Revoke a key by its id."""

    id: str


class RevokeKeyResponse(Struct, frozen=True, array_like=True):
    """The key is revoked."""

    id: str


CREATE_KEY = Method("authorization.CreateKey", CreateKeyRequest, CreateKeyResponse)
LIST_KEYS = Method("authorization.ListKeys", ListKeysRequest, ListKeysResponse)
REVOKE_KEY = Method("authorization.RevokeKey", RevokeKeyRequest, RevokeKeyResponse)


class KeyAdmin:
    """Creates, lists and revokes keys in a store. `on_change` notifies this host of a change at once."""

    def __init__(
        self,
        store: KeyStore,
        *,
        on_change: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
        by: str = "",
    ) -> None:
        """`by` names the creator of keys; by default, it is the authenticated caller."""
        self._store = store
        self._by = by
        self._on_change = on_change
        self._clock = clock

    def handlers(self) -> Handlers:
        """Handlers of the three methods."""
        handlers = Handlers()
        handlers.add(CREATE_KEY, self.create)
        handlers.add(LIST_KEYS, self.list)
        handlers.add(REVOKE_KEY, self.revoke)
        return handlers

    async def create(self, request: CreateKeyRequest) -> CreateKeyResponse:
        """Create a key."""
        key, text = new_key(
            request.name,
            namespace=request.namespace,
            role=request.role,
            cluster=request.cluster,
            expires_s=request.expires_s,
            now_s=self._clock(),
            created_by=self._by or "/".join(filter(None, current_principal())),
        )
        await store_key(self._store, key)
        await self._changed()
        return CreateKeyResponse(key.id, text)

    async def list(self, _: ListKeysRequest) -> ListKeysResponse:
        """List all keys."""
        found = sorted(await list_keys(self._store), key=lambda key: key.created_s)
        return ListKeysResponse([_listed(key) for key in found])

    async def revoke(self, request: RevokeKeyRequest) -> RevokeKeyResponse:
        """Revoke a key."""
        revoked = await revoke_key(self._store, request.id, now_s=self._clock())
        await self._changed()
        return RevokeKeyResponse(revoked.id)

    async def _changed(self) -> None:
        if self._on_change is not None:
            await self._on_change()


def _listed(key: ApiKey) -> ListedKey:
    return ListedKey(
        key.id,
        key.name,
        key.permissions,
        key.cluster,
        key.created_s,
        key.expires_s,
        key.revoked_s,
        key.last_used_s,
        key.created_by,
    )
