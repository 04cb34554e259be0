"""What a store itself says of why it fails: its text is at the end of a chain of causes, or only in a library's log."""

import logging
import time

# What the pool said longer ago has nothing to do with a failure of now.
REASON_S_MAX = 30.0


class PoolReasons(logging.Filter):
    """Keeps the reason for which PostgreSQL could last not be reached, in place of the pool's own lines in the log.

    The pool tries again by itself and tells those who wait only that they waited too long. Why each try failed it says
    to its log alone, many times over.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reason = ""
        self._told_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Let errors through; of the rest, keep what they say of a failure."""
        if record.levelno >= logging.ERROR:
            return True
        failures = [part for part in record.args or () if isinstance(part, BaseException)]
        if failures:
            self._reason = _one_line(failures[-1])
            self._told_s = time.monotonic()
        return False

    @property
    def latest(self) -> str:
        """The last reason; empty if there was none of late."""
        return self._reason if time.monotonic() - self._told_s < REASON_S_MAX else ""


_pool_reasons = PoolReasons()


def follow_pool() -> None:
    """Keep the pool's reasons from now on."""
    log = logging.getLogger("psycopg.pool")
    # It logs every connection that it gives out, too.
    log.setLevel(logging.WARNING)
    log.addFilter(_pool_reasons)


def reason_of(failure: BaseException) -> str:
    """What the store said, such as "disk I/O error" or "connection refused", as far as it said anything."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    if type(failure).__name__ == "PoolTimeout":
        return _pool_reasons.latest or _one_line(failure)
    return _one_line(failure)


def _one_line(failure: BaseException) -> str:
    return " ".join(str(failure).split()) or type(failure).__name__
