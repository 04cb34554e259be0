"""Collects the reports of a task queue's partitions for its root."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress

from fairlead.aio.background import Background
from fairlead.core.errors import FairleadError
from fairlead.core.partitions import DrainReport
from fairlead.matching.messages import DescribeResponse, Versions
from fairlead.matching.root.config_push import Pushes

# Number of partitions that are asked at the same time.
ASKS_AT_ONCE_MAX = 64
# Timeout in seconds of the call to one partition.
ASK_S_MAX = 2.0
# Timeout in seconds of the calls to all partitions; later answers are not used.
ASKS_S_MAX = 10.0

# Describes a partition, with its drain report if the second argument is true.
Ask = Callable[[int, bool], Awaitable[DescribeResponse]]


class PartitionReports:
    """Asks the partitions of one task queue for reports, and pushes to partitions with an older configuration."""

    def __init__(self, ask: Ask, *, pushes: Pushes, background: Background) -> None:
        self._ask = ask
        self._pushes = pushes
        self._background = background

    async def of(self, numbers: Collection[int], *, drained_from: int) -> list[DescribeResponse]:
        """The answers that came in time. Partitions from `drained_from` on include a drain report."""
        answers: list[DescribeResponse] = []

        async def ask(number: int) -> None:
            # A partition that does not answer has no report this time; the scaler's decision takes that into account.
            with suppress(FairleadError, TimeoutError):
                async with asyncio.timeout(ASK_S_MAX):
                    answers.append(await self._ask(number, number >= drained_from))

        await self._background.each(sorted(numbers), ask, at_once_max=ASKS_AT_ONCE_MAX, wait_s_max=ASKS_S_MAX)
        for answer in answers:
            self._pushes.note(answer.partition, Versions(answer.config.version, answer.rules.version))
        return answers


def drain_reports(answers: Iterable[DescribeResponse]) -> list[DrainReport]:
    """The drain reports among the answers."""
    return [answer.drain for answer in answers if answer.drain is not None]
