"""Addresses on which a process listens."""

import socket

from fairlead.settings.static.config import Address
from fairlead.telemetry import CannotListen, refusal


def check_free(address: Address, *, key: str, host_key: str | None = None) -> None:
    """Raise `CannotListen`, with the reason, if the process can't listen on the address; gRPC hides the reason.

    `key` is the setting of the address; `host_key` is the setting of its host, if that is another one.
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
    why = (
        refusal(failure, key=key, host_key=host_key)
        if failure
        else f"the host name has no address; choose another `{key}`"
    )
    raise CannotListen(f"can't listen at {address}: {why}")
