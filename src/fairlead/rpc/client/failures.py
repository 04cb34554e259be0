"""Failures of a client's call, by what the caller may conclude from them."""

from collections.abc import Mapping
from types import MappingProxyType

from fairlead.rpc.message import Packed
from fairlead.rpc.status import Code, RpcStatus

_NO_TRAILERS: Mapping[str, str | bytes] = MappingProxyType({})


class CallFailed(RpcStatus):
    """A call ended without a successful response."""


class NotSent(CallFailed):
    """The server did not begin to process the call: it may be sent again, to any server."""


class ResponseLost(CallFailed):
    """No response came: the call may have been processed, or may still be."""


class RemoteStatus(CallFailed):
    """The server ended the call with this status; `trailers` have the decoded fields of its response."""

    def __init__(
        self,
        code: Code,
        message: str,
        details: bytes | None = None,
        *,
        trailers: Mapping[str, str | bytes] = _NO_TRAILERS,
    ) -> None:
        super().__init__(code, message, details)
        self.trailers = trailers


def unreadable(path: str, status: RpcStatus) -> ResponseLost:
    """The failure of a call whose response is not a valid message."""
    return ResponseLost(status.code, f"the response of {path}: {status.message}")


async def unpacked(path: str, packed: Packed) -> bytes:
    """Decompress a large response; raises ResponseLost."""
    try:
        return await packed.unpacked_aside()
    except RpcStatus as status:
        raise unreadable(path, status) from None
