"""Pushes the configuration and the rules in force from the root to the other partitions of a task queue."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from structlog.typing import FilteringBoundLogger

from fairlead.aio.background import Background
from fairlead.aio.backoff import Backoff
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import DispatchRules, Versions

# Sends a partition the configuration and the rules, and returns the versions that it uses afterwards.
Push = Callable[[int, PartitionConfig, DispatchRules], Awaitable[Versions]]
# Called with the version of a configuration that is newer than the root's own.
OnNewer = Callable[[int], None]

_NOTHING = Versions(-1, -1)

PUSHES_AT_ONCE_MAX = 64
PUSH_S_MAX = 2.0
RETRY_S_MIN, RETRY_S_MAX = 0.05, 5.0
# Number of repairs after which a partition is pushed to again although it has acknowledged: it may have acknowledged to
# a previous root, while the present root has loaded an older row.
REFRESHES_BETWEEN_REMINDERS = 6


class Pushes:
    """Sends every partition but the root the newest configuration and rules until each has acknowledged both.

    Each push sends the newest versions, so a partition never gets an older version after a newer version. At most one
    push runs for each partition, and `PUSHES_AT_ONCE_MAX` in all. A partition that is no longer read also gets the new
    configuration, and is forgotten when it has acknowledged it.
    """

    def __init__(
        self,
        push: Push,
        config: PartitionConfig,
        rules: DispatchRules,
        *,
        background: Background,
        log: FilteringBoundLogger,
        on_newer: OnNewer,
        jitter: Callable[[], float],
    ) -> None:
        self._push = push
        self._config = config
        self._rules = rules
        self._on_newer = on_newer
        self._background = background
        self._log = log
        self._jitter = jitter
        self._acknowledged: dict[int, Versions] = {}
        # Partitions to push to. Each is due, waits for its retry, or is being pushed to; its backoff is None until a
        # push has failed.
        self._wanted: dict[int, Backoff | None] = {}
        self._due: deque[int] = deque()
        self._retries: dict[int, asyncio.TimerHandle] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._refreshes = 0

    @property
    def acknowledged(self) -> dict[int, int]:
        """The last known version of the configuration in use, by partition."""
        return {number: versions.config for number, versions in self._acknowledged.items()}

    @property
    def is_quiet(self) -> bool:
        """Whether there is no other partition, and no push is due or waits for a retry."""
        return self._config.read == 1 and not self._wanted

    def notify(self, config: PartitionConfig, rules: DispatchRules) -> None:
        """Push a newer configuration or newer rules to the partitions of the previous and of the new configuration."""
        concerned = range(1, max(self._config.read, config.read))
        self._config, self._rules = config, rules
        # Partitions that left earlier without acknowledging it get this configuration with their next push.
        for number in concerned:
            self._want(number)
        self._employ()

    def remind(self) -> None:
        """Push to all partitions that have not acknowledged, and to some partitions that have."""
        self._refreshes += 1
        turn = self._refreshes % REFRESHES_BETWEEN_REMINDERS
        for number in range(1, self._config.read):
            if number % REFRESHES_BETWEEN_REMINDERS == turn or self._is_behind(number):
                self._want(number)
        self._employ()

    def note(self, number: int, versions: Versions) -> None:
        """Record the versions that a partition reported; push the newest ones if they are older."""
        if not number:
            return
        if number < self._config.read:
            self._acknowledged[number] = versions
        if versions.config > self._config.version:
            self._on_newer(versions.config)
        if not self._is_current(versions):
            self._want(number)
            self._employ()

    async def tried(self) -> None:
        """Wait until each due push has succeeded or failed."""
        while self._workers:
            await asyncio.wait(set(self._workers))

    def end(self) -> None:
        """Cancel the retries; the owner of `background` cancels the running pushes."""
        for timer in self._retries.values():
            timer.cancel()

    def _is_behind(self, number: int) -> bool:
        return not self._is_current(self._acknowledged.get(number, _NOTHING))

    def _is_current(self, versions: Versions) -> bool:
        return versions.config >= self._config.version and versions.rules >= self._rules.version

    def _want(self, number: int) -> None:
        if number in self._retries:
            self._retries.pop(number).cancel()
        elif number in self._wanted:
            # A due push sends the newest version; after a running push, the newer version is pushed next.
            return
        else:
            self._wanted[number] = None
        self._due.append(number)

    def _employ(self) -> None:
        """Start workers for the pushes that are due, up to the limit; a worker ends when no push is due."""
        if self._background.is_ended:
            return
        for _ in range(min(len(self._due), PUSHES_AT_ONCE_MAX - len(self._workers))):
            worker = self._background.begin(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        while self._due and not self._background.is_ended:
            number, sent = self._due.popleft(), (self._config, self._rules)
            try:
                async with asyncio.timeout(PUSH_S_MAX):
                    versions = await self._push(number, *sent)
            except Exception as error:  # noqa: BLE001 - after any error the push must be retried
                versions = _NOTHING
                if self._wanted[number] is None:
                    # Log only the first of several failures in a row.
                    self._log.info("partition_config_push_failed", partition=number, error=repr(error))
            if not self._background.is_ended:
                self._settle(number, Versions(sent[0].version, sent[1].version), versions)

    def _settle(self, number: int, sent: Versions, versions: Versions) -> None:
        """Handle the end of a push; `versions` are the versions that the partition uses, or -1 if the push failed."""
        if versions.config > self._config.version:
            self._on_newer(versions.config)
        if self._is_current(versions):
            del self._wanted[number]
            if number < self._config.read:
                self._acknowledged[number] = versions
            else:
                self._acknowledged.pop(number, None)
        elif versions.config >= sent.config and versions.rules >= sent.rules:
            # Newer versions came during the push: push the newer versions next.
            self._acknowledged[number] = versions
            self._due.append(number)
        else:
            backoff = self._wanted[number] or Backoff(RETRY_S_MIN, RETRY_S_MAX, random=self._jitter)
            self._wanted[number] = backoff
            self._retries[number] = asyncio.get_running_loop().call_later(backoff.next_s(), self._retry, number)

    def _retry(self, number: int) -> None:
        self._want(number)
        self._employ()
