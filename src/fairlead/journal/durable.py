"""Records that may not be lost: whoever leaves them here is told when they are on the disk, and waits for room."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from fairlead.journal.records import encode_records
from fairlead.journal.writer import Taken

Item = TypeVar("Item")

QUEUE_BYTES_MAX = 32 << 20
FRAME_BYTES_MAX = 8 << 20
# So many wait for no interval.
HURRIED_ITEMS_MIN = 500


@dataclass(slots=True, eq=False)
class _Batch(Generic[Item]):
    items: Sequence[Item]
    size_bytes: int
    safe: "asyncio.Future[None]"


class DurableQueue(Generic[Item]):
    """Items on their way from the event loop to the writer's thread, where `make` makes a record of each."""

    is_lossy = False

    def __init__(self, make: Callable[[Item], msgspec.Struct], *, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        # Called when there is enough for a frame.
        self.on_frame: Callable[[], None] = lambda: None
        self._make = make
        self._bytes_max = bytes_max
        # Both of its ends may be used by different threads at once.
        self._batches: deque[_Batch[Item]] = deque()
        # Of the event loop: what was taken and is not safe yet.
        self._items = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def write(self, items: Sequence[Item], size_bytes: int) -> None:
        """Have items written; they are on the disk when this returns. Waits while too much is on its way."""
        self._loop = loop = asyncio.get_running_loop()
        # One that is larger than all that may be on its way goes alone.
        while self._bytes and self._bytes + size_bytes > self._bytes_max:
            self._room.clear()
            await self._room.wait()
        batch = _Batch(items, size_bytes, loop.create_future())
        self._items += len(items)
        self._bytes += size_bytes
        self._batches.append(batch)
        if self._items >= HURRIED_ITEMS_MIN:
            self.on_frame()
        # Who waits may go away: what was begun is written all the same.
        await batch.safe

    def take(self, records_max: int) -> Taken:
        """The next records, in the writer's thread: whole batches, at least one."""
        taken: list[_Batch[Item]] = []
        items = size_bytes = 0
        while self._batches and (not taken or (items < records_max and size_bytes < FRAME_BYTES_MAX)):
            batch = self._batches.popleft()
            taken.append(batch)
            items += len(batch.items)
            size_bytes += batch.size_bytes
        make = self._make
        lines = encode_records([make(item) for batch in taken for item in batch.items])
        return Taken(lines, items, lambda: self._tell(taken))

    def _tell(self, batches: Sequence[_Batch[Item]]) -> None:
        if self._loop is not None:
            # Closed where the process ends without waiting: nobody is left to be told.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._are_safe, batches)

    def _are_safe(self, batches: Sequence[_Batch[Item]]) -> None:
        for batch in batches:
            self._items -= len(batch.items)
            self._bytes -= batch.size_bytes
            if not batch.safe.done():
                batch.safe.set_result(None)
        self._room.set()
