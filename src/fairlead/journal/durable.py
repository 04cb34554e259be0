"""Records that may not be lost: whoever leaves them here is told when they are on the disk, and waits for room."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from fairlead.core.errors import GiveUp
from fairlead.journal.records import encode_records
from fairlead.journal.writer import Taken

Item = TypeVar("Item")

QUEUE_BYTES_MAX = 32 << 20
FRAME_BYTES_MAX = 8 << 20
# So many wait for no interval.
HURRIED_ITEMS_MIN = 500


class CannotRecord(GiveUp):
    """Of something that should be in the journal no record can be made."""


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
        """Have items written; they are on the disk when this returns. Waits while too much is on its way.

        Raises `CannotRecord`, and none of these items is written, where no record can be made of one of them.
        """
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

    def take(self, records_max: int, *, records_min: int) -> Taken:  # noqa: ARG002 - somebody waits for each of them
        """The next records, in the writer's thread: whole batches, at least one."""
        taken: list[_Batch[Item]] = []
        lines: list[bytes] = []
        items = size_bytes = 0
        while self._batches and (not taken or (items < records_max and size_bytes < FRAME_BYTES_MAX)):
            batch = self._batches.popleft()
            try:
                lines.append(encode_records([self._make(item) for item in batch.items]))
            except Exception as failure:  # noqa: BLE001 - whatever it is, who waits must hear of it
                self._tell([batch], failure)
                continue
            taken.append(batch)
            items += len(batch.items)
            size_bytes += batch.size_bytes
        return Taken(b"".join(lines), items, lambda: self._tell(taken))

    def _tell(self, batches: Sequence[_Batch[Item]], failure: Exception | None = None) -> None:
        if self._loop is not None:
            # Closed where the process ends without waiting: nobody is left to be told.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._are_done, batches, failure)

    def _are_done(self, batches: Sequence[_Batch[Item]], failure: Exception | None) -> None:
        for batch in batches:
            self._items -= len(batch.items)
            self._bytes -= batch.size_bytes
            if batch.safe.done():
                continue
            if failure is None:
                batch.safe.set_result(None)
            else:
                refusal = CannotRecord(f"{len(batch.items)} records can't be made for the journal: {failure!r}")
                refusal.__cause__ = failure
                batch.safe.set_exception(refusal)
        self._room.set()
