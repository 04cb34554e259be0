"""Decides when a partition tries again to start a task that a limit on running activities has refused.

A refused key is parked: its tasks are not offered to polls, and tasks of other keys are not delayed. Each notification
of a free slot allows the key one try. Without a notification, the key tries once after `RETRY_S`; after a success it
continues, one task at a time, until it is refused again. The table of slots decides which task starts: a wrong guess
here costs a refused try, or a wait of `RETRY_S`.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass

# Seconds after which a parked key tries without a notification of a free slot.
RETRY_S = 1.0
# Number of parked keys that are remembered; a forgotten key tries at once.
KEYS_MAX = 2_000
# Number of unused tries that a key may have.
TRIES_MAX = 1_000


@dataclass(slots=True)
class _Parked:
    retry_s: float
    tries: int = 0
    # Whether the last try was made without a notification. If it succeeds, the key may try again at once.
    explores: bool = False


class ParkedKeys:
    """The parked keys of one partition."""

    def __init__(self) -> None:
        self._parked: OrderedDict[str, _Parked] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, key: str) -> bool:
        return key in self._parked

    def ready_s(self, key: str, now_s: float) -> float:
        """Return when a task of the key may be tried next: `now_s` or later."""
        parked = self._parked.get(key)
        if parked is None or parked.tries:
            return now_s
        return max(now_s, parked.retry_s)

    def take(self, key: str, now_s: float) -> None:
        """Count a try."""
        parked = self._parked.get(key)
        if parked is None:
            return
        if parked.tries:
            parked.tries -= 1
        else:
            parked.explores = True
            parked.retry_s = now_s + RETRY_S

    def give_back(self, key: str) -> None:
        """Give a try back: its task was not started, for another reason than the limit."""
        parked = self._parked.get(key)
        if parked is not None:
            parked.tries = min(parked.tries + 1, TRIES_MAX)

    def refused(self, key: str, now_s: float) -> None:
        """Park a key: its limit is reached."""
        parked = self._parked.pop(key, None) or _Parked(0.0)
        parked.tries, parked.explores, parked.retry_s = 0, False, now_s + RETRY_S
        self._parked[key] = parked
        if len(self._parked) > KEYS_MAX:
            self._parked.popitem(last=False)

    def started(self, key: str) -> None:
        """Record that a try has succeeded."""
        parked = self._parked.get(key)
        if parked is not None and parked.explores:
            parked.tries = max(parked.tries, 1)

    def freed(self, key: str) -> None:
        """Record that a slot of the key has become free."""
        self.give_back(key)

    def next_s(self) -> float:
        """When the first parked key tries again without a notification; infinity if none is parked."""
        return min((parked.retry_s for parked in self._parked.values()), default=math.inf)
