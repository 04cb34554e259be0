"""The client of history: errors that it retries at another host, and errors that it raises at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from fairlead.api.errors import API_ERRORS, ApiError
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import Partition
from fairlead.history.client import HistoryClient
from fairlead.history.shard.ownership import NotOwner
from fairlead.rpc.hosts.local import LocalNetwork


class Request(msgspec.Struct, frozen=True, array_like=True):
    pass


class OneHostRing:
    hosts = ("host",)

    def route(self, _partition: Partition) -> str:
        return "host"

    def on_change(self, listener: Any) -> None:
        raise NotImplementedError

    async def refresh(self) -> None:
        await asyncio.sleep(0)


async def calls_until(errors: Sequence[FairleadError]) -> tuple[int, bytes | FairleadError]:
    """Number of attempts, and the result, if the first attempts fail with `errors`."""
    attempts = 0

    async def local(*_: object) -> bytes:
        nonlocal attempts
        attempts += 1
        if attempts <= len(errors):
            raise errors[attempts - 1]
        return b"done"

    client = HistoryClient("host", LocalNetwork().caller(), OneHostRing(), shards=1)
    client.serve_locally(local)
    try:
        result: bytes | FairleadError = await client.call("Any", "namespace", "workflow", Request())
    except FairleadError as error:
        result = error
    return attempts, result


@pytest.mark.parametrize("known", API_ERRORS)
async def test_an_api_error_is_raised_at_once(known: type[ApiError]) -> None:
    """Also `NotActive`: every host of this cluster would raise it."""
    error = known("m")
    assert await calls_until([error]) == (1, error)
    assert await calls_until([NotOwner("moved"), error]) == (2, error)


async def test_a_shard_that_has_moved_is_called_again() -> None:
    assert await calls_until([NotOwner("moved"), NotOwner("moved")]) == (3, b"done")
