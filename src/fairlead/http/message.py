"""An HTTP request as its handler sees it, and the handler's response."""

import re
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from http import HTTPStatus
from types import MappingProxyType
from urllib.parse import parse_qsl

from msgspec import Struct

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

# Number of query parameters of one request.
PARAMETERS_MAX = 1_000

_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\x80-\xff\t]*")
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Response(Struct, frozen=True):
    """Response to a request; a body of several parts is sent as they come."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def with_headers(self, *headers: tuple[str, str]) -> "Response":
        """The same response with further headers."""
        return Response(self.status, self.body, self.content_type, (*self.headers, *headers))


class HttpFault(Exception):
    """Ends a request with an error response in plain text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def response(self) -> Response:
        """The error as a response."""
        return Response(self.status, f"{self.message}\n".encode(), TEXT)


class Request:
    """Method, target, headers and body of a request.

    `path` is as it was sent, with its percent-encoding: a handler splits it at slashes before it decodes the parts.
    """

    def __init__(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes, *, peer: str, is_secure: bool = False
    ) -> None:
        """`headers` have lower-case names; `peer` is the client's IP address."""
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = body
        self.peer = peer
        self.is_secure = is_secure

    @cached_property
    def parameters(self) -> list[tuple[str, str]]:
        """Names and values of the query, decoded, in order; raises `HttpFault` if there are too many."""
        try:
            return parse_qsl(self.query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX)
        except ValueError:
            raise HttpFault(400, f"the query has more than {PARAMETERS_MAX} parameters: send fewer") from None

    @cached_property
    def cookies(self) -> Mapping[str, str]:
        """Cookies by name; the first one if several have the same name."""
        found: dict[str, str] = {}
        for part in self.headers.get("cookie", "").split(";"):
            name, separator, value = part.strip().partition("=")
            if separator:
                found.setdefault(name, value)
        return MappingProxyType(found)


def response_head(response: Response, *, date: str, framing: str, is_last: bool) -> bytes:
    """Encode the status line and the headers; `framing` says how long the body is."""
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Unknown')}",
        f"Date: {date}",
        "X-Content-Type-Options: nosniff",
    ]
    if response.content_type is not None:
        lines.append(f"Content-Type: {response.content_type}")
    for name, value in response.headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"header {name!r} can't be sent with the value {value!r}")
        lines.append(f"{name}: {value}")
    if framing:
        lines.append(framing)
    if is_last:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
