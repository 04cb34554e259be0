"""Callers that wait for changes of runs."""

import asyncio

from fairlead.history.shard.ownership import Ownership
from fairlead.storage.history import RunKey


class RunWatchers:
    """An event for each watched run of a shard. An event is set once, and then replaced."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._changes: dict[RunKey, asyncio.Event] = {}
        # Separate events for callers that wait only for the close, so that other changes don't wake them.
        self._closes: dict[RunKey, asyncio.Event] = {}

    def watch(self, key: RunKey, *, only_close: bool = False) -> asyncio.Event:
        """An event that is set at the next change of a run, or with `only_close` when the run closes.

        The event is also set when the shard is closed. The caller must call `unwatch` afterwards.
        """
        self._ownership.check()
        events = self._closes if only_close else self._changes
        event = events.get(key)
        if event is None:
            event = events[key] = asyncio.Event()
        return event

    def unwatch(self, key: RunKey, event: asyncio.Event) -> None:
        """Forget an event, unless another caller is waiting for it."""
        for events in (self._changes, self._closes):
            if events.get(key) is event and not event._waiters:  # noqa: SLF001
                del events[key]

    def notify(self, key: RunKey, *, is_closed: bool = True) -> None:
        """Wake the callers that wait for a change of a run; if `is_closed`, also callers that wait for its close."""
        for events in (self._changes, self._closes) if is_closed else (self._changes,):
            event = events.pop(key, None)
            if event is not None:
                event.set()

    def notify_all(self) -> None:
        """Wake all callers, because the shard closes."""
        for event in (*self._changes.values(), *self._closes.values()):
            event.set()
