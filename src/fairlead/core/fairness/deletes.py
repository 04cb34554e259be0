from dataclasses import dataclass

from fairlead.core.errors import GiveUp
from fairlead.core.fairness.level import Level

ACKED_MIN = 100
INTERVAL_S = 15.0


class DeleteNotUnderWay(GiveUp):
    """The outcome was told of a delete that is not under way."""


@dataclass(frozen=True, slots=True, eq=False)
class Delete:
    """A delete to make: all stored tasks at or below the level `through`.

    It is saved as the ack level in the same transaction: an owner that comes after a crash must not begin below what
    has been deleted, or new keys would join far ahead of all others.
    """

    through: Level
    acks_passed: int


class DeleteSchedule:
    """Decides when the tasks at or below the ack level are deleted, and up to which level: never above it.

    One delete at a time; when enough tasks have been acked since the last one, or some have and time has passed. The
    first is due at once: an owner that crashed may have left dispatched tasks behind, and a partition is not drained
    while the store holds any. The store must refuse the delete of an owner that has lost its lease.
    """

    def __init__(self, *, acked_min: int = ACKED_MIN, interval_s: float = INTERVAL_S) -> None:
        self._acked_min = acked_min
        self._interval_s = interval_s
        # One less than none, so that the first delete does not wait for an ack.
        self._acks_deleted = -1
        self._last_s = float("-inf")
        self._has_failed = False
        self._pending: Delete | None = None

    def next_delete(self, *, ack_level: Level, acks_passed: int, now_s: float) -> Delete | None:
        """Say what to delete now, if anything; the outcome must be told."""
        waiting = acks_passed - self._acks_deleted
        has_enough = waiting >= self._acked_min and not self._has_failed
        has_waited = waiting > 0 and now_s - self._last_s >= self._interval_s
        if self._pending is not None or not (has_enough or has_waited):
            return None
        self._pending = Delete(ack_level, acks_passed)
        self._last_s = now_s
        return self._pending

    def delete_succeeded(self, delete: Delete) -> None:
        """All at or below the level is gone."""
        self._end(delete)
        self._acks_deleted = delete.acks_passed
        self._has_failed = False

    def delete_failed(self, delete: Delete) -> None:
        """Some may be left; they wait for the interval, so that a store in trouble is not asked at every ack."""
        self._end(delete)
        self._has_failed = True

    def _end(self, delete: Delete) -> None:
        if delete is not self._pending:
            raise DeleteNotUnderWay(f"the delete through {delete.through} is not under way: tell each outcome once")
        self._pending = None
