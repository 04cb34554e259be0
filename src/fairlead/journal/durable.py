"""Queue for records that must not be lost: `write` waits for room, and returns when the records are on disk."""

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
# Number of queued items at which the writer starts at once, without waiting for its interval.
HURRIED_ITEMS_MIN = 500


class CannotRecord(GiveUp):
    """No journal record can be made of an item."""


@dataclass(slots=True, eq=False)
class _Batch(Generic[Item]):
    items: Sequence[Item]
    size_bytes: int
    safe: "asyncio.Future[None]"


class DurableQueue(Generic[Item]):
    """Queue from the event loop to the writer's thread, where `make` turns each item into a record."""

    is_lossy = False

    def __init__(self, make: Callable[[Item], msgspec.Struct], *, bytes_max: int = QUEUE_BYTES_MAX) -> None:
        # Called when the queue holds enough for a frame.
        self.on_frame: Callable[[], None] = lambda: None
        self._make = make
        self._bytes_max = bytes_max
        # The event loop appends and the writer's thread pops, at the same time.
        self._batches: deque[_Batch[Item]] = deque()
        # Used by the event loop only: number and bytes of the items that are not on disk yet.
        self._items = 0
        self._bytes = 0
        self._room = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def write(self, items: Sequence[Item], size_bytes: int) -> None:
        """Write items; they are on disk when this returns. Waits while too many bytes are queued.

        Raises `CannotRecord` if no record can be made of one of the items; then none of them is written.
        """
        self._loop = loop = asyncio.get_running_loop()
        # A batch larger than the whole queue is written alone.
        while self._bytes and self._bytes + size_bytes > self._bytes_max:
            self._room.clear()
            await self._room.wait()
        batch = _Batch(items, size_bytes, loop.create_future())
        self._items += len(items)
        self._bytes += size_bytes
        self._batches.append(batch)
        if self._items >= HURRIED_ITEMS_MIN:
            self.on_frame()
        # If the caller is canceled here, the batch is still written.
        await batch.safe

    def take(self, records_max: int, *, records_min: int) -> Taken:  # noqa: ARG002 - a caller waits for each record
        """Return the next records, in the writer's thread: whole batches, at least one."""
        taken: list[_Batch[Item]] = []
        lines: list[bytes] = []
        items = size_bytes = 0
        while self._batches and (not taken or (items < records_max and size_bytes < FRAME_BYTES_MAX)):
            batch = self._batches.popleft()
            try:
                lines.append(encode_records([self._make(item) for item in batch.items]))
            except Exception as failure:  # noqa: BLE001 - pass any error to the waiting caller
                self._notify([batch], failure)
                continue
            taken.append(batch)
            items += len(batch.items)
            size_bytes += batch.size_bytes
        return Taken(b"".join(lines), items, lambda: self._notify(taken))

    def _notify(self, batches: Sequence[_Batch[Item]], failure: Exception | None = None) -> None:
        if self._loop is not None:
            # A closed loop: the process ended without waiting for the journal, so no caller waits for this batch.
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
                refusal = CannotRecord(f"can't make {len(batch.items)} records for the journal: {failure!r}")
                refusal.__cause__ = failure
                batch.safe.set_exception(refusal)
        self._room.set()
