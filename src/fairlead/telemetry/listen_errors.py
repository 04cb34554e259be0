"""Error messages with advice for addresses on which the process can't listen."""

import errno
import os
import socket

from fairlead.core.errors import FixRequest

# `key` is the setting of the port, `host_key` the setting of the host.
_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or choose another `{key}`",
    errno.EADDRNOTAVAIL: "this machine has no such address, so give one of its own as `{host_key}`",
    errno.EACCES: "only root may listen there, so choose a port above 1023 as `{key}`",
}


class CannotListen(FixRequest):
    """The server can't listen on the configured address."""


def refusal(failure: OSError, *, key: str, host_key: str | None = None) -> str:
    """The system's error message, followed by advice.

    `key` is the setting of the address; `host_key` is the setting of its host, if that is another one.
    """
    host_key = key if host_key is None else host_key
    if isinstance(failure, socket.gaierror):
        return f"{failure.strerror}; the name stands for no address, so write an IP address as `{host_key}`"
    advice = _ADVICE.get(failure.errno or 0, "choose another `{key}`").format(key=key, host_key=host_key)
    # Don't use the exception's own text: asyncio repeats the address in it.
    return f"{os.strerror(failure.errno) if failure.errno else failure}; {advice}"
