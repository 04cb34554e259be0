"""Limits of a read buffer."""

from dataclasses import dataclass

from fairlead.core.errors import FixRequest


class InvalidLimits(FixRequest):
    """The limits of a buffer contradict each other."""


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Limits of a buffer's memory. Together with the writes in progress, they bound it for a backlog of any size.

    `batch_size`: number of loaded tasks, and of written tasks that wait for the end of a read. `reload_at`: number of
    loaded tasks at which more are read. `parked_max`: number of parked tasks that may be loaded in addition (see
    `next_read`). `evicted_acks_max`: number of acks of evicted tasks; beyond it, an evicted task is dispatched again.
    """

    batch_size: int = 1000
    reload_at: int = 100
    parked_max: int = 10_000
    evicted_acks_max: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.reload_at < self.batch_size or self.parked_max < 0 or self.evicted_acks_max < 0:
            raise InvalidLimits(f"{self}: choose 0 <= reload_at < batch_size, parked_max >= 0, evicted_acks_max >= 0")
