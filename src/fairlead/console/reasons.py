"""Reasons for which task queues wait, kept for some seconds: reading one calls every partition of a task queue."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fairlead.console.held_back import Held
    from fairlead.matching.messages.inspection import LoadedQueue

# Seconds after which a reason is read again.
FRESH_S: Final = 10.0
# Reasons that are read again for one look at a list, the oldest first; those that are not known yet come on top.
REFRESHED_MAX: Final = 20
# Partitions that are called for one look at a list.
PARTITIONS_MAX: Final = 400
# Maximum number of cached reasons.
KEPT_MAX: Final = 5_000

# Reads what holds a task queue back.
Read = Callable[["LoadedQueue"], Awaitable["Held"]]
QueueKey = tuple[str, str, int]


class _Known(NamedTuple):
    read_s: float
    # Figures of the task queue whose change makes the reason doubtful.
    signs: tuple[bool, ...]
    held: "Held"


class Reasons:
    """Cached reasons of the task queues on viewed pages; bounds their number and the cost of one page view."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[QueueKey, _Known] = {}

    async def of(self, queues: "Sequence[LoadedQueue]", read: Read) -> "dict[QueueKey, Held]":
        """The reason of each task queue; those that exceed the bound of one page view are absent."""
        now_s = self._clock()
        missing = [one for one in queues if not self._is_right(one)]
        stale = [one for one in queues if self._is_right(one) and now_s - self._known[_key(one)].read_s > FRESH_S]
        stale.sort(key=lambda one: self._known[_key(one)].read_s)
        room = PARTITIONS_MAX
        asked: list[LoadedQueue] = []
        for one in [*missing, *stale[:REFRESHED_MAX]]:
            # A task queue with more partitions than `PARTITIONS_MAX` is read alone.
            if one.partitions <= room or not asked:
                asked.append(one)
                room -= one.partitions

        async def ask(one: "LoadedQueue") -> None:
            self._known[_key(one)] = _Known(now_s, _signs(one), await read(one))

        if len(self._known) + len(asked) > KEPT_MAX:
            self._known.clear()
        await asyncio.gather(*map(ask, asked))
        return {_key(one): self._known[_key(one)].held for one in queues if self._is_right(one)}

    def _is_right(self, one: "LoadedQueue") -> bool:
        known = self._known.get(_key(one))
        return known is not None and known.signs == _signs(one)


def _key(one: "LoadedQueue") -> QueueKey:
    return one.namespace_id, one.name, one.type


def _signs(one: "LoadedQueue") -> tuple[bool, ...]:
    return one.backlog > 0, one.polls > 0, one.dispatches_per_s > 0, one.is_polled
