from collections.abc import Sequence
from typing import Generic, NamedTuple

from fairlead.core.errors import GiveUp
from fairlead.core.fairness.buffer import BufferLimits, ReadBuffer, Task, Write
from fairlead.core.fairness.deletes import DeleteSchedule
from fairlead.core.fairness.level import Level
from fairlead.core.fairness.passes import KEYS_MAX, PassCounter
from fairlead.core.fairness.weights import WeightOverrides


class IdNotAbove(GiveUp):
    """A task id was not above all that were given before it, so its level might not be above the ack level."""


class Share(NamedTuple):
    """What a task says about its fair share: its fairness key and the weight that it gives to that key."""

    key: str
    weight: float


class FairBacklog(Generic[Task]):
    """The backlog of one priority of one partition: levels for what is written, order for what is dispatched."""

    def __init__(
        self,
        *,
        ack_level: Level,
        max_level: Level,
        limits: BufferLimits | None = None,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self.buffer: ReadBuffer[Task] = ReadBuffer(ack_level=ack_level, max_level=max_level, limits=limits)
        self.counter = PassCounter(keys_max=keys_max)
        self.deletes = DeleteSchedule()
        self._last_id = max(ack_level.task_id, max_level.task_id)

    def begin_write(self, shares: Sequence[Share], *, ids: Sequence[int], overrides: WeightOverrides) -> Write:
        """Choose the levels of new tasks (not none) and hold the ack level below them, in one step.

        `ids` rise, and are above every id that was ever given in this partition.
        """
        if ids[0] <= self._last_id:
            raise IdNotAbove(f"task id {ids[0]} is not above {self._last_id}, which was given before it")
        base = self.buffer.base_pass
        next_pass = self.counter.next_pass
        levels = [
            Level(next_pass(share.key, stride=overrides.stride_of(share.key, share.weight), base=base), task_id)
            for share, task_id in zip(shares, ids, strict=True)
        ]
        self._last_id = ids[-1]
        return self.buffer.begin_write(levels)

    def next_delete(self, now_s: float) -> Level | None:
        """Say up to which level to delete now, if at all; `deletes` must be told the outcome."""
        return self.deletes.next_delete(
            ack_level=self.buffer.ack_level, acks_passed=self.buffer.acks_passed, now_s=now_s
        )
