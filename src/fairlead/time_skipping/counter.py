"""The lock counter of Temporal's TestService: time is skipped only while it is 0."""

from fairlead.api.errors import FailedPrecondition


class NotLocked(FailedPrecondition):
    """Time skipping is unlocked already, so it can't be unlocked again; nothing was changed."""


class Unlock:
    """An unlock that was not undone yet.

    `is_lock` is true if it released a client's lock, and false if it suspends the hold of a running activity.
    """

    __slots__ = ("is_lock",)

    def __init__(self, *, is_lock: bool) -> None:
        self.is_lock = is_lock


class LockCounter:
    """Counts locks, holds of running activities, and unlocks by activities.

    A running activity holds time like a lock. If a test sleeps inside an activity, no lock is left to remove, so the
    unlock suspends the activity's own hold until the next lock or the activity's end.
    """

    def __init__(self, locks: int = 1) -> None:
        self.locks = locks
        self._activities = 0
        # Unlocks that suspend an activity's hold, oldest first.
        self._suspending: list[Unlock] = []
        # The unlocks among them that LockTimeSkipping has to end; they stay here after the activity has ended.
        self._unpaired: list[Unlock] = []

    @property
    def holds(self) -> int:
        """The number of locks and of holds of running activities."""
        return self.locks + self._activities - len(self._suspending)

    def set_activities(self, running: int) -> None:
        """Set the number of running activities; drop the unlocks of activities that have ended."""
        self._activities = running
        del self._suspending[: max(0, len(self._suspending) - running)]

    def lock(self) -> None:
        """Add a lock, or end the last unlock inside an activity."""
        if self._unpaired:
            self.end(self._unpaired.pop())
        else:
            self.locks += 1

    def unlock(self) -> None:
        """Remove one lock until the next `lock`."""
        unlock = self.begin()
        if not unlock.is_lock:
            self._unpaired.append(unlock)

    def begin(self) -> Unlock:
        """Remove one lock, or suspend the hold of a running activity, until `end`."""
        if self.locks:
            self.locks -= 1
            return Unlock(is_lock=True)
        if len(self._suspending) >= self._activities:
            raise NotLocked(
                "time skipping is unlocked already: the lock counter is 0 and can't be negative; "
                "call LockTimeSkipping before UnlockTimeSkipping, and wait for one workflow result at a time"
            )
        unlock = Unlock(is_lock=False)
        self._suspending.append(unlock)
        return unlock

    def end(self, unlock: Unlock) -> None:
        """Undo `begin`."""
        if unlock.is_lock:
            self.locks += 1
        elif unlock in self._suspending:
            self._suspending.remove(unlock)
