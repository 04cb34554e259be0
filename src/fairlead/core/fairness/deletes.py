from dataclasses import dataclass

from fairlead.core.errors import GiveUp
from fairlead.core.fairness.level import Level

ACKED_MIN = 100
INTERVAL_S = 15.0


class DeleteNotUnderWay(GiveUp):
    """A delete whose outcome was reported is not in progress."""


@dataclass(frozen=True, slots=True, eq=False)
class Delete:
    """A delete to carry out: all stored tasks at or below the level `through`.

    The same transaction saves `through` as the ack level: an owner that loads the queue after a crash must not begin
    below the deleted tasks, or new keys would join far ahead of all others.
    """

    through: Level
    acks_passed: int


class DeleteSchedule:
    """Decides when the tasks at or below the ack level are deleted, and up to which level: never above the ack level.

    One delete runs at a time. A delete is due when enough tasks were acked since the last one, or when at least one
    task was acked and the interval has passed. The first delete is due at once: an owner that crashed may have left
    dispatched tasks behind, and a partition is not drained while the store holds a task. The store must reject the
    delete of an owner that has lost its lease.
    """

    __slots__ = ("_acked_min", "_acks_deleted", "_has_failed", "_interval_s", "_last_s", "_pending")

    def __init__(self, *, acked_min: int = ACKED_MIN, interval_s: float = INTERVAL_S) -> None:
        self._acked_min = acked_min
        self._interval_s = interval_s
        # -1, so that the first delete does not wait for an ack.
        self._acks_deleted = -1
        self._last_s = float("-inf")
        self._has_failed = False
        self._pending: Delete | None = None

    def next_delete(self, *, ack_level: Level, acks_passed: int, now_s: float) -> Delete | None:
        """Return the delete to carry out now, or None; the caller must report its outcome."""
        waiting = acks_passed - self._acks_deleted
        has_enough = waiting >= self._acked_min and not self._has_failed
        has_waited = waiting > 0 and now_s - self._last_s >= self._interval_s
        if self._pending is not None or not (has_enough or has_waited):
            return None
        self._pending = Delete(ack_level, acks_passed)
        self._last_s = now_s
        return self._pending

    def has_waiting(self, acks_passed: int) -> bool:
        """Whether tasks were acked since the last delete that succeeded."""
        return acks_passed > self._acks_deleted

    def delete_succeeded(self, delete: Delete) -> None:
        """Report that all tasks at or below the level were deleted."""
        self._end(delete)
        self._acks_deleted = delete.acks_passed
        self._has_failed = False

    def delete_failed(self, delete: Delete) -> None:
        """Report that the delete failed; the next delete waits for the interval, to spare a store that has problems."""
        self._end(delete)
        self._has_failed = True

    def _end(self, delete: Delete) -> None:
        if delete is not self._pending:
            raise DeleteNotUnderWay(f"the delete through {delete.through} is not in progress: report each outcome once")
        self._pending = None
