"""The presence of the worker of a sticky task queue."""

from collections.abc import Callable


class StickyWorker:
    """Tracks the polls of one worker.

    A waiting poll, or a recent poll that ended with a response, shows that the worker is there. The end of a cancelled
    poll shows nothing, so a dead worker counts as gone some time after its last poll began.
    """

    __slots__ = ("_clock", "_polls", "_seen_s", "has_left")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._polls = 0
        self._seen_s = float("-inf")
        self.has_left = False

    def begin_poll(self) -> None:
        """Record the begin of a poll: the worker is there, or has returned."""
        self._polls += 1
        self._seen_s = self._clock()
        self.has_left = False

    def end_poll(self, *, is_answered: bool) -> None:
        """Record the end of a poll."""
        self._polls -= 1
        if is_answered:
            self._seen_s = self._clock()

    def leave(self) -> None:
        """Record that the worker shuts down."""
        self.has_left = True

    def is_there(self, *, within_s: float) -> bool:
        """Whether tasks may wait for the worker: it polls now, or polled in the last `within_s` seconds."""
        return not self.has_left and (self._polls > 0 or self._clock() - self._seen_s <= within_s)
