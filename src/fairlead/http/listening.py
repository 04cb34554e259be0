"""Binds the address of an HTTP server. The server itself is loaded later, see `fairlead.http`."""

import socket

from fairlead.telemetry.listen_errors import CannotListen, refusal

# Connections that the operating system queues until the server accepts them.
BACKLOG_MAX = 128


def bound_socket(host: str, port: int, *, key: str, host_key: str | None = None) -> socket.socket:
    """Bind an address and listen there; `key` and `host_key` are its settings, see `refusal`.

    Clients that connect before the server accepts them wait in the backlog.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # A restarted server must not wait until the old process's connections leave TIME_WAIT.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
            bound.listen(BACKLOG_MAX)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        why = refusal(error, key=key, host_key=host_key)
        raise CannotListen(f"can't listen for HTTP at {host}:{port}: {why}") from None
    bound.setblocking(False)  # noqa: FBT003 - its name says what is true or false
    return bound
