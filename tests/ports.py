"""Ports for servers that must know them before they listen."""

import random
import socket

# Below the ports that the system gives to outgoing connections: those of parallel tests take none of these.
FIRST, LAST = 10_000, 32_000


def free_port() -> int:
    """Return a port on which no process listens now."""
    while True:
        port = random.SystemRandom().randrange(FIRST, LAST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
