"""Where a process listens."""

import socket

from fairlead.cluster.grpc_server import CannotListen
from fairlead.settings.static import Address
from fairlead.telemetry import refusal


def check_free(address: Address, *, key: str) -> None:
    """Refuse an address that can't be listened at, with the reason, which gRPC keeps for itself.

    `key` is where it was configured.
    """
    failure: OSError | None = None
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            try:
                with socket.socket(family, kind, protocol) as trial:
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    trial.bind(place)
                    return
            except OSError as refused:
                failure = refused
    except OSError as unknown:
        failure = unknown
    why = refusal(failure, key=key) if failure else f"it has no address; choose another `{key}`"
    raise CannotListen(f"can't listen at {address}: {why}")
