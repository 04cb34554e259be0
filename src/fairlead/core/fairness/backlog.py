from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from fairlead.core.errors import FixRequest, GiveUp
from fairlead.core.fairness.buffer import BufferLimits, ReadBuffer, Task, Write
from fairlead.core.fairness.level import Level
from fairlead.core.fairness.passes import KEYS_MAX, PassCounter
from fairlead.core.fairness.weights import WeightOverrides


class InvalidWrite(FixRequest):
    """A write has no tasks, or not an id for each of them."""


class IdNotAbove(GiveUp):
    """A task id was not above all that were given before it, so its level might not be above the ack level."""


class Share(NamedTuple):
    """What a task says about its fair share: its fairness key and the weight that it gives to that key."""

    key: str
    weight: float


class StoredKey(NamedTuple):
    """What the stored tasks of one key say: their lowest and highest pass, and the weight of the highest."""

    key: str
    first_pass: int
    last_pass: int
    weight: float


class FairBacklog(ReadBuffer[Task]):
    """The backlog of one priority of one partition: levels for what is written, order for what is dispatched.

    A new owner makes it from the lease's metadata and from the keys of *all* stored tasks above `ack_level`. These
    tell where each key stands, and how far the service had come: the saved ack level may be far behind that.
    """

    def __init__(
        self,
        *,
        ack_level: Level,
        max_level: Level,
        stored: Iterable[StoredKey],
        overrides: WeightOverrides,
        limits: BufferLimits | None = None,
        keys_max: int = KEYS_MAX,
    ) -> None:
        super().__init__(ack_level=ack_level, max_level=max_level, limits=limits)
        stored = list(stored)
        self._last_id = max(ack_level.task_id, max_level.task_id)
        self._overrides = overrides
        base = min((key.first_pass for key in stored), default=ack_level.pass_number)
        self._counter = PassCounter(base=base, keys_max=keys_max)
        for key in stored:
            self._counter.restore(key.key, last_pass=key.last_pass, stride=overrides.stride_of(key.key, key.weight))

    @property
    def counter(self) -> PassCounter:
        """Where each key stands. To be read, not changed."""
        return self._counter

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """For each key with a task ahead of what is served now: how many passes its last one is ahead, and its stride.

        A key may have been served up to its very last task: whether anything is left, the store knows.
        """
        return self._counter.waiting(self.served_pass)

    def override_weights(self, overrides: WeightOverrides) -> None:
        """Count with these overrides from the next write on."""
        self._overrides = overrides

    def begin_write(self, shares: Sequence[Share], *, ids: Sequence[int]) -> Write:
        """Choose the levels of new tasks and hold the ack level below them, in one step.

        `ids` rise, and are above every id that was ever given in this partition. Where it is refused, nothing has
        changed.
        """
        if not shares or len(shares) != len(ids):
            raise InvalidWrite(f"{len(shares)} tasks with {len(ids)} ids: a write has at least one, and an id for each")
        for lower, upper in pairwise([self._last_id, *ids]):
            if upper <= lower:
                raise IdNotAbove(f"task id {upper} is not above {lower}, which was given before it")
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
        """Nothing was written, and nothing will be: the keys are not charged for it."""
        super().write_failed(write)
        # The last first: of several tasks of a key, only its last pass can be given back.
        for level, (key, stride) in zip(reversed(write.levels), reversed(write.charged), strict=True):
            self._counter.give_back(key, pass_number=level.pass_number, stride=stride)
