"""Whether the worker that a sticky task list belongs to is there."""

from collections.abc import Callable


class StickyWorker:
    """Follows the polls of one worker.

    A poll that waits, or was answered of late, shows that it is there. One that was broken off shows nothing: so a
    worker that has died counts as gone as soon as its last poll began long enough ago.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._polls = 0
        self._seen_s = float("-inf")
        self.has_left = False

    def begin_poll(self) -> None:
        """It polls, and has not left, or has come again."""
        self._polls += 1
        self._seen_s = self._clock()
        self.has_left = False

    def end_poll(self, *, is_answered: bool) -> None:
        """A poll waits no longer."""
        self._polls -= 1
        if is_answered:
            self._seen_s = self._clock()

    def leave(self) -> None:
        """It has said that it goes."""
        self.has_left = True

    def is_there(self, *, within_s: float) -> bool:
        """Whether a task may wait for it: it polls, or did within this time."""
        return not self.has_left and (self._polls > 0 or self._clock() - self._seen_s <= within_s)
