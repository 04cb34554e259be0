from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.fairness.buffer import ReadBuffer
from fairlead.core.fairness.buffer_limits import BufferLimits
from fairlead.core.fairness.buffer_operations import Task, Write
from fairlead.core.fairness.level import Level
from fairlead.core.fairness.passes import KEYS_MAX, PassCounter
from fairlead.core.fairness.weights import WeightOverrides


class InvalidWrite(FixRequest):
    """A write has no tasks, or not one id for each task."""


class IdNotAbove(GiveUp):
    """A task id is not above all earlier task ids, so the task's level might not be above the ack level."""


class Share(NamedTuple):
    """The fairness key and the weight of a new task."""

    key: str
    weight: float


class StoredKey(NamedTuple):
    """The stored tasks of one fairness key: their lowest and highest pass, and the weight of the highest task."""

    key: str
    first_pass: int
    last_pass: int
    weight: float


class FairBacklog(ReadBuffer[Task]):
    """The backlog of one priority of one partition: chooses the levels of new tasks, and the order of dispatch.

    A new owner builds it from the levels stored with the lease and from the keys of *all* stored tasks above
    `ack_level`. These tasks give the last pass of each key and the pass that dispatch had reached, which may be far
    above the saved ack level. An owner of many keys gives that pass as `first_pass`, and the keys to `restore`, some at
    a time, before the first write.
    """

    __slots__ = ("_counter", "_last_id", "_overrides")

    def __init__(
        self,
        *,
        ack_level: Level,
        max_level: Level,
        stored: Iterable[StoredKey],
        overrides: WeightOverrides,
        limits: BufferLimits | None = None,
        keys_max: int = KEYS_MAX,
        first_pass: int | None = None,
    ) -> None:
        super().__init__(ack_level=ack_level, max_level=max_level, limits=limits)
        stored = list(stored)
        self._last_id = max(ack_level.task_id, max_level.task_id)
        self._overrides = overrides
        if first_pass is None:
            first_pass = min((key.first_pass for key in stored), default=ack_level.pass_number)
        self._counter = PassCounter(base=first_pass, keys_max=keys_max)
        self.restore(stored)

    @property
    def counter(self) -> PassCounter:
        """The last pass of each key. Read only."""
        return self._counter

    def restore(self, stored: Iterable[StoredKey]) -> None:
        """Set the last passes of keys with stored tasks."""
        restore, stride_of = self._counter.restore, self._overrides.stride_of
        for key, _, last_pass, weight in stored:
            restore(key, last_pass=last_pass, stride=stride_of(key, weight))

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """Yield each key whose last pass is at least the served pass, the distance of the two, and the stride.

        The key's last task may have been dispatched already: only the store knows whether tasks are left.
        """
        return self._counter.waiting(self.served_pass)

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Use other weight overrides, beginning with the next write."""
        self._overrides = overrides

    def begin_write(self, shares: Sequence[Share], *, ids: Sequence[int]) -> Write:
        """Choose the levels of new tasks and pin the ack level below them, in one step.

        `ids` must rise, and be above every earlier id of this partition. If this raises an error, nothing has changed.
        """
        if not shares or len(shares) != len(ids):
            raise InvalidWrite(f"{len(shares)} tasks with {len(ids)} ids: a write has at least one, and an id for each")
        for lower, upper in pairwise([self._last_id, *ids]):
            if upper <= lower:
                raise IdNotAbove(f"task id {upper} is not above {lower}, which was used before it")
        charged = [(share.key, self._overrides.stride_of(share.key, share.weight)) for share in shares]
        base = self.served_pass
        next_pass = self._counter.next_pass
        levels = [
            Level(next_pass(key, stride=stride, base=base), task_id)
            for (key, stride), task_id in zip(charged, ids, strict=True)
        ]
        self._last_id = ids[-1]
        return self.pin(levels, charged)

    def write_failed(self, write: Write) -> None:
        """End a write that has stored nothing and never will, and undo the passes that its keys got."""
        super().write_failed(write)
        # In reverse order: only the last pass of a key can be given back.
        for level, (key, stride) in zip(reversed(write.levels), reversed(write.charged), strict=True):
            self._counter.give_back(key, pass_number=level.pass_number, stride=stride)
