"""API keys: created, listed, used and revoked, on every store."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.authorization import api_keys
from fairlead.authorization.api_keys import (
    ApiKeys,
    InvalidKeyRequest,
    KeysUnavailable,
    list_keys,
    new_key,
    revoke_key,
    store_key,
)
from fairlead.authorization.claims import Denied
from fairlead.authorization.messages import CreateKeyRequest, KeyAdmin, ListKeysRequest, RevokeKeyRequest
from fairlead.authorization.roles import Role
from fairlead.storage.history import HistoryStore, StoreUnavailable
from fairlead.storage.memory.history import MemoryHistory
from tests.storage.history.conftest import STORES, opened

NOW_S = 1_800_000_000.0


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    async with opened(request.param, tmp_path, request) as history:
        yield history


async def test_a_key_is_valid_from_its_creation_to_its_revocation(store: HistoryStore, clock: Clock) -> None:
    keys = ApiKeys(store, clock=clock)
    await keys.refresh()
    admin = KeyAdmin(store, on_change=keys.refresh, clock=clock)
    made = await admin.create(CreateKeyRequest("order workers", "orders", "worker"))
    found = keys.claims(made.key)
    assert found.principal == ("api-key", f"{made.id} (order workers)")
    assert found.role_in("orders") is Role.WORKER
    assert not found.role_in("billing")
    [listed] = (await admin.list(ListKeysRequest())).keys
    assert (listed.id, listed.name, listed.permissions) == (made.id, "order workers", (("orders", "worker"),))
    await admin.revoke(RevokeKeyRequest(made.id))
    with pytest.raises(Denied):
        keys.claims(made.key)
    [listed] = (await admin.list(ListKeysRequest())).keys
    assert listed.revoked_s == NOW_S
    with pytest.raises(InvalidKeyRequest, match="there is no key"):
        await admin.revoke(RevokeKeyRequest("unknown"))


async def test_the_secret_is_nowhere_in_the_store(store: HistoryStore) -> None:
    key, text = new_key("", namespace="orders", role="worker", now_s=NOW_S)
    await store_key(store, key)
    rows = await store.list_metadata(prefix="", after=None, limit=100)
    secret = text.rpartition("_")[2] if text.count("_") == 2 else text.split("_", 2)[2]
    assert len(secret) == 43
    assert all(secret.encode() not in row.payload for row in rows)


async def test_another_host_knows_a_key_and_its_revocation_with_its_next_refresh(store: HistoryStore) -> None:
    here, there = ApiKeys(store), ApiKeys(store)
    await here.open()
    await there.open()
    try:
        admin = KeyAdmin(store, on_change=here.refresh)
        made = await admin.create(CreateKeyRequest("", "temporal-system", "admin"))
        assert here.claims(made.key).system is Role.ADMIN
        await until_known(there, made.key)
        await admin.revoke(RevokeKeyRequest(made.id))
        loop = asyncio.get_running_loop()
        revoked_s = loop.time()
        await until_denied(there, made.key)
        # The refresh interval, plus time for a busy machine.
        assert loop.time() - revoked_s < api_keys.REFRESH_S + 10
    finally:
        await here.close()
        await there.close()


async def until_known(keys: ApiKeys, text: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                keys.claims(text)
            except Denied:
                await asyncio.sleep(0.05)
            else:
                return


async def until_denied(keys: ApiKeys, text: str) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                keys.claims(text)
            except Denied:
                return
            await asyncio.sleep(0.05)


async def test_the_last_use_is_stored_at_most_once_a_minute(store: HistoryStore, clock: Clock) -> None:
    keys = ApiKeys(store, clock=clock)
    key, text = new_key("", namespace="orders", role="worker", now_s=NOW_S)
    await store_key(store, key)
    await keys.refresh()
    for seconds, expected in ((0, 0), (10, 0), (30, 0), (61, 61)):
        clock.now_s = NOW_S + seconds
        await keys.refresh()
        keys.claims(text)
        await keys._note_uses()
        [stored] = await list_keys(store)
        assert stored.last_used_s == NOW_S + expected


async def test_an_expired_key_is_denied_and_forgotten_a_month_later(clock: Clock) -> None:
    store = MemoryHistory()
    keys = ApiKeys(store, clock=clock)
    key, text = new_key("", namespace="orders", role="worker", expires_s=NOW_S + 60, now_s=NOW_S)
    await store_key(store, key)
    await keys.refresh()
    keys.claims(text)
    clock.now_s = NOW_S + 20
    keys.claims(text)
    # It ends at its time, not with the next refresh.
    clock.now_s = NOW_S + 60
    await keys.refresh()
    with pytest.raises(Denied):
        keys.claims(text)
    assert len(await list_keys(store)) == 1
    clock.now_s = NOW_S + 61 + api_keys.LISTED_S
    await keys.refresh()
    assert await list_keys(store) == []


async def test_keys_are_not_accepted_if_the_store_can_not_be_read_for_long(clock: Clock) -> None:
    store = MemoryHistory()
    keys = ApiKeys(store, clock=clock)
    key, text = new_key("", namespace="orders", role="worker", now_s=NOW_S)
    await store_key(store, key)
    await keys.refresh()
    clock.now_s = NOW_S + api_keys.STALE_S_MAX - 1
    keys.claims(text)
    clock.now_s = NOW_S + api_keys.STALE_S_MAX + 1
    with pytest.raises(KeysUnavailable):
        keys.claims(text)


async def test_a_failed_refresh_keeps_the_keys(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryHistory()
    keys = ApiKeys(store, clock=clock)
    key, text = new_key("", namespace="orders", role="worker", now_s=NOW_S)
    await store_key(store, key)
    await keys.refresh()

    async def fail(**_: object) -> list[object]:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(store, "list_metadata", fail)
    with pytest.raises(StoreUnavailable):
        await keys.refresh()
    keys.claims(text)


async def test_revoking_twice_keeps_the_first_time() -> None:
    store = MemoryHistory()
    key, _ = new_key("", namespace="orders", role="worker", now_s=NOW_S)
    await store_key(store, key)
    await revoke_key(store, key.id, now_s=NOW_S + 1)
    assert (await revoke_key(store, key.id, now_s=NOW_S + 2)).revoked_s == NOW_S + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"namespace": "", "role": "admin"}, "a key is for exactly one of these"),
        ({"namespace": "orders", "role": "king"}, "role 'king' is unknown"),
        ({"namespace": "orders", "role": "worker", "cluster": "b"}, "a key is for exactly one of these"),
        ({"namespace": "orders", "role": "worker", "expires_s": NOW_S - 1}, "expired already"),
    ],
)
def test_a_key_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidKeyRequest, match=message):
        new_key("", now_s=NOW_S, **arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidKeyRequest, match="printable"):
        new_key("\x1b[31m", namespace="orders", role="worker", now_s=NOW_S)


_KEY, _TEXT = new_key("", namespace="orders", role="worker", now_s=NOW_S)


async def _keys() -> ApiKeys:
    store = MemoryHistory()
    await store_key(store, _KEY)
    keys = ApiKeys(store, clock=Clock())
    await keys.refresh()
    return keys


_KEYS = asyncio.run(_keys())


@given(
    st.text(max_size=80)
    | st.text(max_size=80).map(lambda rest: f"fl_{rest}")
    | st.text(max_size=60).map(lambda rest: f"fl_{_KEY.id}_{rest}")
    | st.integers(0, len(_TEXT) - 1).map(
        lambda place: _TEXT[:place] + ("x" if _TEXT[place] != "x" else "y") + _TEXT[place + 1 :]
    )
    | st.integers(0, len(_TEXT) - 1).map(lambda length: _TEXT[:length])
    | st.text(min_size=1, max_size=4).map(lambda more: _TEXT + more)
)
def test_no_other_text_is_accepted(text: str) -> None:
    with pytest.raises(Denied):
        _KEYS.claims(text)
    assert _KEYS.claims(_TEXT).role_in("orders") is Role.WORKER
