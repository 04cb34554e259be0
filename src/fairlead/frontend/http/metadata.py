"""Headers of an HTTP request that become metadata of the call, as Temporal's server forwards them."""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence

from fairlead.http import Request
from fairlead.rpc import Code, RpcStatus
from fairlead.rpc.head import IDENTITY, Head

# Client of calls whose request does not name one.
CLIENT_NAME = "fairlead-http"
TIMEOUT_HEADER = "grpc-timeout"
FORWARDED_FOR = "x-forwarded-for"

_FORWARDED = ("authorization", "authorization-extras", "client-name", "client-version")
_METADATA_PREFIX = "grpc-metadata-"
_RESERVED_PREFIX = "grpc-"
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class Forwarding:
    """Selects the headers to forward."""

    def __init__(self, additional: Sequence[str] = ()) -> None:
        """`additional` are names of further headers; a name that ends in `*` stands for all names with that prefix."""
        lowered = [name.lower() for name in additional]
        self._names = (*_FORWARDED, *(name for name in lowered if not name.endswith("*")))
        self._prefixes = tuple(name[:-1] for name in lowered if name.endswith("*"))

    def head(self, path: str, request: Request) -> Head:
        """The head of the gRPC call that a request stands for; raises RpcStatus for a bad timeout."""
        headers = request.headers
        metadata = {"client-name": CLIENT_NAME}
        metadata |= {name: headers[name] for name in self._names if name in headers}
        binary: dict[str, bytes] = {}
        for name, value in headers.items():
            if name.startswith(_METADATA_PREFIX):
                _add(name.removeprefix(_METADATA_PREFIX), value, metadata, binary)
            elif self._prefixes and name.startswith(self._prefixes):
                metadata[name] = value
        via = headers.get(FORWARDED_FOR)
        metadata[FORWARDED_FOR] = f"{via}, {request.peer}" if via else request.peer
        return Head(path, metadata, binary, timeout_s=_timeout_s(headers), encoding=IDENTITY, refusal=None)


def _add(name: str, value: str, metadata: dict[str, str], binary: dict[str, bytes]) -> None:
    if not name or name.startswith(_RESERVED_PREFIX):
        return
    if not name.endswith("-bin"):
        metadata[name] = value
        return
    try:
        binary[name] = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except binascii.Error as error:
        raise RpcStatus(Code.INVALID_ARGUMENT, f"header {name!r} is not base64: {error}") from None


def _timeout_s(headers: Mapping[str, str]) -> float | None:
    text = headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise RpcStatus(Code.INVALID_ARGUMENT, f"invalid {TIMEOUT_HEADER}: {text}")
    return int(match[1]) * _UNIT_S[match[2]]
