"""Live views: one sampler for all viewers of the same view, parameters and rights, sent as server-sent events."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from fairlead.core.errors import RetryLater
from fairlead.telemetry import get_log

# Minimum seconds between two samples of a view, and the maximum share of a core that sampling a view takes: the more a
# sample costs, the longer the next one waits.
INTERVAL_S_MIN: Final = 2.0
INTERVAL_S_MAX: Final = 30.0
CORE_SHARE_MAX: Final = 0.007
# Open streams of all viewers, and distinct views that are sampled.
STREAMS_MAX: Final = 300
SAMPLERS_MAX: Final = 60
# Seconds after which a silent stream sends a comment, so that a gone browser is noticed.
PING_S: Final = 15.0

Sample = Callable[[], Awaitable[bytes]]

_log = get_log("console")


class TooManyStreams(RetryLater):
    """The console has as many live viewers as it allows."""


def event(name: str, text: str) -> bytes:
    """A server-sent event."""
    lines = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: {name}\n{lines}\n".encode(errors="replace")


class _Sampler:
    """Samples one view while it has viewers; `latest` is the event of the last sample that differed."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self.viewers = 0
        self.latest = b""
        self.changed = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        # CPU seconds of the last two samples. Only the lower one is used: the higher one may include work that was not
        # the sample's.
        costs_s: deque[float] = deque([0.0], maxlen=2)
        while True:
            began_s = time.thread_time()
            try:
                sampled = await self._sample()
            except Exception as failure:  # noqa: BLE001 - viewers see it, and the next sample may succeed
                _log.error("live view failed", exc_info=failure)
                sampled = event("problem", "The view could not be read: see the server's log.")
            if sampled != self.latest:
                self.latest = sampled
                self.changed.set()
                self.changed = asyncio.Event()
            costs_s.append(time.thread_time() - began_s)
            await asyncio.sleep(min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, min(costs_s) / CORE_SHARE_MAX)))


class LiveViews:
    """The samplers of all live views, by key, and the streams of their viewers."""

    def __init__(self, *, streams_max: int = STREAMS_MAX, samplers_max: int = SAMPLERS_MAX) -> None:
        self._streams_max = streams_max
        self._samplers_max = samplers_max
        self._samplers: dict[tuple[str, ...], _Sampler] = {}
        self._streams = 0
        self._ended = asyncio.Event()

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams

    @property
    def samplers(self) -> int:
        """Number of distinct views that are sampled."""
        return len(self._samplers)

    def open(self, key: tuple[str, ...], sample: Sample) -> AsyncIterator[bytes]:
        """A stream of the events that `sample` makes; viewers with the same key share one sampler.

        Raises `TooManyStreams` above the limits.
        """
        if self._streams >= self._streams_max or (
            key not in self._samplers and len(self._samplers) >= self._samplers_max
        ):
            raise TooManyStreams("too many live viewers: close some pages, or reload by hand")
        return self._stream(key, sample)

    def end(self) -> None:
        """End all streams and samplers, when the server stops."""
        self._ended.set()
        for sampler in self._samplers.values():
            sampler.task.cancel()
            sampler.changed.set()
        self._samplers.clear()

    async def _stream(self, key: tuple[str, ...], sample: Sample) -> AsyncIterator[bytes]:
        if self._ended.is_set():
            return
        sampler = self._samplers.get(key)
        if sampler is None:
            sampler = self._samplers[key] = _Sampler(sample)
        sampler.viewers += 1
        self._streams += 1
        sent = b""
        try:
            # A browser that lost its connection tries again after this many milliseconds.
            yield b"retry: 5000\n\n"
            while not self._ended.is_set():
                if sampler.latest != sent:
                    sent = sampler.latest
                    yield sent
                    continue
                try:
                    async with asyncio.timeout(PING_S):
                        await sampler.changed.wait()
                except TimeoutError:
                    yield b": ping\n\n"
        finally:
            self._streams -= 1
            sampler.viewers -= 1
            if not sampler.viewers:
                sampler.task.cancel()
                if self._samplers.get(key) is sampler:
                    del self._samplers[key]
