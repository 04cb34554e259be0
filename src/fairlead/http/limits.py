"""Limits on the clients of an HTTP server: sizes, counts and waiting times."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one server."""

    # Open connections; a further one gets status 503 and is closed.
    connections_max: int = 1_000
    # Bytes of a request line with its headers, and of a request body.
    head_bytes_max: int = 64 * KIB
    body_bytes_max: int = 4 * MIB
    # Header fields of a request.
    fields_max: int = 200
    # Bytes of all request bodies that are in memory; a request above it gets status 503.
    bodies_bytes_max: int = 256 * MIB
    # Requests that one client may send before it has read the responses to the earlier ones.
    pipelined_max: int = 8
    # Seconds without a request after which a connection is closed.
    idle_s_max: float = 120.0
    # Seconds from the first byte of a request to its last one.
    request_s_max: float = 60.0
    # Seconds in which a client must read something of the response that is sent to it.
    write_s_max: float = 30.0
    # Seconds for a client to close its side after an early error response.
    linger_s_max: float = 2.0
