"""File descriptors of this process: connections must leave some for files and stores."""

import asyncio
import os
import resource
from contextlib import suppress

from structlog.typing import FilteringBoundLogger

# Number of file descriptors that are reserved for stores, journal and outgoing connections.
RESERVED_MAX = 64
# Maximum share of the limit that is reserved, for processes with a very low limit.
_RESERVED_SHARE_MAX = 0.25
# Seconds between two warnings.
WARN_S = 30.0


def raise_descriptor_limit() -> None:
    """Raise the limit of open files of this process as far as the system allows without privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems refuse the limit that they report as possible.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Descriptors:
    """Refuses connections that take the last file descriptors, and warns when they run out.

    The system gives a new file the lowest free number, so a number close to the limit means that few are left.
    """

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._warned_s = float("-inf")

    def is_reserved(self, transport: asyncio.BaseTransport) -> bool:
        """Whether a connection takes one of the last file descriptors and has to be closed; logs a warning."""
        opened = transport.get_extra_info("socket")
        if opened is None or opened.fileno() < _free_max():
            return False
        self._warn(f"connection closed: the last {RESERVED_MAX} file descriptors are reserved")
        return True

    def check(self) -> None:
        """Warn if few file descriptors are left. Call it regularly: when accept() fails, no other code of ours runs."""
        try:
            probe = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._warn("no file descriptor is left: no connection can be accepted, no file opened")
            return
        os.close(probe)
        if probe >= _free_max():
            self._warn("few file descriptors are left")

    def _warn(self, event: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._warned_s >= WARN_S:
            self._warned_s = now_s
            self._log.warning(event, limit=_limit(), hint="raise the limit of open files (ulimit -n, LimitNOFILE)")


def _limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 if limit == resource.RLIM_INFINITY else limit


def _free_max() -> int:
    limit = _limit()
    return limit - min(RESERVED_MAX, int(limit * _RESERVED_SHARE_MAX))
