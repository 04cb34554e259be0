"""Why an address can't be listened at, and what to do about it."""

import errno
import os
import socket

_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or choose another `{key}`",
    errno.EADDRNOTAVAIL: "this machine has no such address, so give one of its own as `{key}`",
    errno.EACCES: "only root may listen there, so choose a port above 1023 as `{key}`",
}


def refusal(failure: OSError, *, key: str) -> str:
    """The reason in the system's words, then the advice that fits it; `key` is where the address was configured."""
    if isinstance(failure, socket.gaierror):
        return f"{failure.strerror}; the name stands for no address, so write an IP address as `{key}`"
    advice = _ADVICE.get(failure.errno or 0, "choose another `{key}`").format(key=key)
    # Not its own text, in which asyncio repeats the address.
    return f"{os.strerror(failure.errno) if failure.errno else failure}; {advice}"
