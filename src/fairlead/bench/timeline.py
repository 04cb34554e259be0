"""A run over time, in at most a few hundred bins of equal length."""

from dataclasses import dataclass, field

from fairlead.bench.waits import Waits

BINS_MAX = 240
BIN_S = 0.25
# Significant digits of the percentiles: two are enough for a picture, and take an eighth of the memory of three.
DIGITS = 2


@dataclass(slots=True)
class Bin:
    """Counts of one bin; `waits` are the waits of the tasks received in it."""

    adds: int = 0
    receives: int = 0
    waits: Waits = field(default_factory=lambda: Waits(DIGITS))

    def merge(self, other: "Bin") -> None:
        """Add the counts of `other`."""
        self.adds += other.adds
        self.receives += other.receives
        self.waits.merge(other.waits)


class Timeline:
    """Bins whose length doubles whenever there are too many."""

    def __init__(self) -> None:
        self.bin_s = BIN_S
        self.bins: list[Bin] = []

    def at(self, time_s: float) -> Bin:
        """Return the bin of this time, in seconds since the start; earlier times count in the first bin."""
        while (index := max(0, int(time_s / self.bin_s))) >= BINS_MAX:
            self._halve()
        while len(self.bins) <= index:
            self.bins.append(Bin())
        return self.bins[index]

    def _halve(self) -> None:
        for first, second in zip(self.bins[::2], self.bins[1::2], strict=False):
            first.merge(second)
        self.bins = self.bins[::2]
        self.bin_s *= 2
