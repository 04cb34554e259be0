"""How the partitions of a task list come to know the configuration that its root has put into force."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from fairlead.core.partitions import PartitionConfig
from fairlead.matching.background import Background

# Tells a partition the configuration, and returns the version that it goes by from then on.
Push = Callable[[int, PartitionConfig], Awaitable[int]]

PUSHES_AT_ONCE_MAX = 64
PUSH_S_MAX = 2.0
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0
# A partition that has acknowledged is told again at every so many-th look. Its acknowledgement may have come from an
# owner that was none any more, while the owner had loaded an older row.
LOOKS_BETWEEN_REMINDERS = 6


def retry_pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time, up to a bound."""
    # The exponent has a bound of its own, so that a long outage makes no number too large for a float.
    return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(failures - 1, 30))


class Pushes:
    """Tells every partition but the root the newest configuration, again and again until it is acknowledged.

    What is sent is always the newest at that moment, so an older one never follows a newer. At most one push to a
    partition is under way at a time, and `PUSHES_AT_ONCE_MAX` in all. A partition that is no longer read is told so,
    and forgotten when it has acknowledged that.
    """

    def __init__(
        self, push: Push, config: PartitionConfig, *, background: Background, log: FilteringBoundLogger
    ) -> None:
        self._push = push
        self._config = config
        self._background = background
        self._log = log
        self._acknowledged: dict[int, int] = {}
        # Those that are to be told, with the failures so far. Each is due, or waits for its retry, or is being told.
        self._failures: dict[int, int] = {}
        self._due: deque[int] = deque()
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._looks = 0

    @property
    def acknowledged(self) -> dict[int, int]:
        """By partition: the version that it was last known to go by."""
        return dict(self._acknowledged)

    @property
    def is_quiet(self) -> bool:
        """There is nobody to tell, now or later."""
        return self._config.read == 1 and not self._failures

    def tell(self, config: PartitionConfig) -> None:
        """Put a newer configuration in the place of the last, and tell it to all whom either concerns."""
        concerned = range(1, max(self._config.read, config.read))
        self._config = config
        # Of those that left before, some may not have heard of it yet: they are told this one when they are due again.
        for number in concerned:
            self._want(number)
        self._employ()

    def look_again(self) -> None:
        """Tell all that are not known to have acknowledged, and remind some of those that have."""
        self._looks += 1
        turn = self._looks % LOOKS_BETWEEN_REMINDERS
        for number in range(1, self._config.read):
            if number % LOOKS_BETWEEN_REMINDERS == turn or self._is_behind(number):
                self._want(number)
        self._employ()

    def note(self, number: int, version: int) -> None:
        """A partition has said which version it goes by: tell it the newest if that is an older one."""
        if not 0 < number < self._config.read:
            return
        self._acknowledged[number] = version
        if self._is_behind(number):
            self._want(number)
            self._employ()

    async def tried(self) -> None:
        """Wait until each that was due has been told, or could not be."""
        while self._workers:
            await asyncio.wait(set(self._workers))

    def end(self) -> None:
        """Tell nobody any more; the owner of the background ends what is under way."""
        for timer in self._retries.values():
            timer.cancel()

    def _is_behind(self, number: int) -> bool:
        return self._acknowledged.get(number, -1) < self._config.version

    def _want(self, number: int) -> None:
        if number in self._retries:
            self._retries.pop(number).cancel()
        elif number in self._failures:
            # Due already, or under way: then it is told the newest afterwards, if that was another one.
            return
        else:
            self._failures[number] = 0
        self._due.append(number)

    def _employ(self) -> None:
        """Have as many workers as can be of use; they go when nothing is due."""
        if self._background.is_ended:
            return
        for _ in range(min(len(self._due), PUSHES_AT_ONCE_MAX - len(self._workers))):
            worker = self._background.begin(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._due and not self._background.is_ended:
            number, config = self._due.popleft(), self._config
            try:
                async with asyncio.timeout(PUSH_S_MAX):
                    version = await self._push(number, config)
            except Exception as error:  # noqa: BLE001 - whatever it was, a partition that is not told stays behind
                version = -1
                if self._failures[number] == 0:
                    # The first of a row: the others say no more.
                    self._log.info("partition_config_push_failed", partition=number, error=repr(error))
            if not self._background.is_ended:
                self._settle(number, config, version)

    def _settle(self, number: int, sent: PartitionConfig, version: int) -> None:
        """A push has ended: `version` is what the partition goes by, or -1."""
        if version >= self._config.version:
            del self._failures[number]
            if number < self._config.read:
                self._acknowledged[number] = version
            else:
                self._acknowledged.pop(number, None)
        elif version >= sent.version:
            # A newer one has come meanwhile.
            self._acknowledged[number] = version
            self._due.append(number)
        else:
            self._failures[number] += 1
            pause_s = retry_pause_s(self._failures[number])
            self._retries[number] = asyncio.get_running_loop().call_later(pause_s, self._retry, number)

    def _retry(self, number: int) -> None:
        self._want(number)
        self._employ()
