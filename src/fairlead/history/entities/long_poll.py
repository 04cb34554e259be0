"""Long polls for a state of an entity, and the token with the last state that a client has seen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from fairlead.api.errors import InvalidArgument
from fairlead.history.entities import entity
from fairlead.history.entities.entity import Archetype
from fairlead.history.shard.context import OperationContext


class Versioned(Protocol):
    """An entity's state that counts its changes."""

    run_id: str
    transitions: int


S = TypeVar("S", bound=Versioned)


class ChangeToken(msgspec.Struct, array_like=True, frozen=True):
    """The last state of an entity that a waiting client has seen."""

    run_id: str
    transitions: int


def encode_token(state: Versioned) -> bytes:
    """Encode the token for the present state of an entity."""
    return msgspec.msgpack.encode(ChangeToken(state.run_id, state.transitions))


def decode_token(token: bytes) -> ChangeToken:
    """Decode a token that a client sent."""
    try:
        return msgspec.msgpack.decode(token, type=ChangeToken)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidArgument("invalid long poll token") from None


async def wait_until(
    context: OperationContext,
    archetype: Archetype[Any],
    entity_id: str,
    run_id: str,
    *,
    read: Callable[[OperationContext, str, str], Awaitable[S]],
    is_there: Callable[[S], bool],
) -> S | None:
    """Wait until the state satisfies the condition; None if the request's time ends first.

    An empty `run_id` means the run that is current now: a later run of the same id is not waited for.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + context.timeout_s
    state = await read(context, entity_id, run_id)
    while not is_there(state):
        left_s = end_s - loop.time()
        if left_s <= 0:
            return None
        await entity.wait_for_change(context, archetype, entity_id, state.run_id, left_s)
        state = await read(context, entity_id, state.run_id)
    return state
