"""Extracts the reason of a store's failure from the chain of causes or from the log of psycopg's pool."""

import logging
import sqlite3
import time

# PostgreSQL's codes for a damaged table and a damaged index.
_DAMAGE_CODES = frozenset(("XX001", "XX002"))
# Maximum age in seconds of the pool's last error that is given as the reason of a failure.
REASON_S_MAX = 30.0


class PoolReasons(logging.Filter):
    """Log filter that keeps the pool's last connection error and drops the pool's own log lines.

    The pool retries by itself and its callers get only a timeout: the reason of the failed attempts is only in its log,
    many times.
    """

    def __init__(self) -> None:
        super().__init__()
        self._reason = ""
        self._reported_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Let errors pass. Drop other records, but keep the exception that they contain."""
        if record.levelno >= logging.ERROR:
            return True
        failures = [part for part in record.args or () if isinstance(part, BaseException)]
        if failures:
            self._reason = _one_line(failures[-1])
            self._reported_s = time.monotonic()
        return False

    @property
    def latest(self) -> str:
        """The last reason; empty if it is older than `REASON_S_MAX`."""
        return self._reason if time.monotonic() - self._reported_s < REASON_S_MAX else ""


_pool_reasons = PoolReasons()


def follow_pool() -> None:
    """Install the log filter."""
    log = logging.getLogger("psycopg.pool")
    # Set a level: the pool would log every connection that it hands out.
    log.setLevel(logging.WARNING)
    log.addFilter(_pool_reasons)


def reason_of(failure: BaseException) -> str:
    """The store's own message, such as "disk I/O error" or "connection refused"."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    if type(failure).__name__ == "PoolTimeout":
        return _pool_reasons.latest or _one_line(failure)
    return _one_line(failure)


def damage_of(failure: BaseException) -> BaseException | None:
    """The error in the chain of causes which shows that stored data is damaged; None if there is no such error."""
    cause: BaseException | None = failure
    # Compare the class exactly: SQLite's subclasses mean a full disk or an unreadable file, not a damaged one.
    while cause is not None and type(cause) is not sqlite3.DatabaseError:
        if getattr(cause, "sqlstate", None) in _DAMAGE_CODES:
            break
        cause = cause.__cause__
    return cause


def _one_line(failure: BaseException) -> str:
    return " ".join(str(failure).split()) or type(failure).__name__
