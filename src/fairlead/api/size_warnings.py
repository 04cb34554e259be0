"""Log lines about payloads, memos and histories that are near their limits, so that operators can act in time."""

from collections.abc import Callable
from math import inf

from fairlead.api.limits import LimitedSize
from fairlead.telemetry import get_log

# Seconds between two log lines about the same setting, so that a busy server does not fill its log.
INTERVAL_S = 60.0
EVENT = "size above limit"

_log = get_log("history.limits")


class SizeWarnings:
    """Logs sizes above their limits: at most one line per setting and interval, with the number of omitted sizes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        # By setting: the time of its last log line, and the number of sizes omitted since then.
        self._logged: dict[str, tuple[float, int]] = {}

    def check(
        self, kind: LimitedSize, size: int, *, warn: int, error: int, namespace: str, workflow_id: str, operation: str
    ) -> None:
        """Log the size if it is above `error`, at which the server rejects it, or above `warn`."""
        if size > error:
            setting, limit = f"{kind}.error", error
        elif size > warn:
            setting, limit = f"{kind}.warn", warn
        else:
            return
        now_s = self._clock()
        logged_s, left_out = self._logged.get(setting, (-inf, 0))
        # A clock that was set back starts a new interval.
        if 0 <= now_s - logged_s < INTERVAL_S:
            self._logged[setting] = (logged_s, left_out + 1)
            return
        self._logged[setting] = (now_s, 0)
        _log.warning(
            EVENT,
            setting=setting,
            namespace=namespace,
            workflow_id=workflow_id,
            operation=operation,
            size=size,
            limit=limit,
            not_logged=left_out,
        )
