"""Watermarks: the time up to which each cluster's journal was delivered. Clocks may differ by hours, so only times of
one clock are compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


class Seen(NamedTuple):
    """When a cluster journaled an event, by its own clock, and when the pipeline added the event to the lake (0 if
    unknown).
    """

    cluster: str
    time_us: int
    arrived_us: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """The watermarks of all streams; no rule compares times of two clocks.

    `own` is each cluster's watermark on its own clock. `others[holder, other]` is the watermark of `other` on the clock
    of `holder`; it is unknown if the two never journaled the same run. `now_us` is the time on the pipeline's clock,
    which also gives the times of arrival. The streams of clusters in `cut` continue beyond the time that is judged.
    """

    now_us: int
    own: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[tuple[str, str], int] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()

    def age_us(self, seen: Seen) -> int:
        """Age of a journaled event: the longer of its ages by its stream's watermark and by its arrival in the lake."""
        ages = [self.own.get(seen.cluster, seen.time_us) - seen.time_us]
        if seen.arrived_us and seen.cluster not in self.cut:
            ages.append(self.now_us - seen.arrived_us)
        return max(ages)

    def ages_us(self, names: Sequence[str], clusters: Longs, time_us: Longs, arrived_us: Longs) -> Longs:
        """`age_us` of many events at once; `clusters` holds indexes into `names`."""
        own = np.array([self.own.get(name, 0) for name in names], dtype=np.int64)[clusters]
        is_cut = np.array([name in self.cut for name in names], dtype=bool)[clusters]
        delivered = np.where(own > 0, own - time_us, 0)
        waited = np.where((arrived_us > 0) & ~is_cut, self.now_us - arrived_us, delivered)
        ages: Longs = np.maximum(delivered, waited)
        return ages

    def is_due_in(self, lacking: str, seen: Iterable[Seen], *, grace_us: int) -> bool:
        """Whether a cluster should have an event that others have.

        Either the watermark of `lacking` is later than the event by the grace period, on the clock of a cluster that
        has the event; or the event was in the lake for the grace period, in case the stream of `lacking` has stopped.
        """
        return any(self._has_passed(lacking, one, grace_us) or self._has_waited(lacking, one, grace_us) for one in seen)

    def _has_passed(self, lacking: str, seen: Seen, grace_us: int) -> bool:
        watermark_us = self.others.get((seen.cluster, lacking))
        return watermark_us is not None and watermark_us - seen.time_us >= grace_us

    def _has_waited(self, lacking: str, seen: Seen, grace_us: int) -> bool:
        return bool(seen.arrived_us) and lacking not in self.cut and self.now_us - seen.arrived_us >= grace_us


@dataclass(frozen=True, slots=True)
class OneClock(Clocks):
    """Clocks of clusters that share one clock, with all streams delivered up to `now_us`."""

    def age_us(self, seen: Seen) -> int:
        """Age of a journaled event."""
        return self.now_us - seen.time_us

    def ages_us(self, names: Sequence[str], clusters: Longs, time_us: Longs, arrived_us: Longs) -> Longs:  # noqa: ARG002
        """`age_us` of many events at once."""
        ages: Longs = self.now_us - time_us
        return ages

    def is_due_in(self, lacking: str, seen: Iterable[Seen], *, grace_us: int) -> bool:  # noqa: ARG002 - the same for all
        """Whether the grace period has passed since a cluster first journaled the event."""
        return any(self.now_us - one.time_us >= grace_us for one in seen)
