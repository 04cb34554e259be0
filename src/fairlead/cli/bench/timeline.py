"""A run over time: what happened in each of at most a few hundred equal stretches of it."""

from dataclasses import dataclass, field

from fairlead.cli.bench.waits import Waits

BINS_MAX = 240
BIN_S = 0.25
# Two digits are enough for a picture, in an eighth of the space.
DIGITS = 2


@dataclass(slots=True)
class Bin:
    """What happened in one stretch; `waits` are those of the tasks received in it."""

    adds: int = 0
    receives: int = 0
    waits: Waits = field(default_factory=lambda: Waits(DIGITS))

    def merge(self, other: "Bin") -> None:
        """Add what happened in `other`."""
        self.adds += other.adds
        self.receives += other.receives
        self.waits.merge(other.waits)


class Timeline:
    """Stretches that become twice as long whenever there are too many of them."""

    def __init__(self) -> None:
        self.bin_s = BIN_S
        self.bins: list[Bin] = []

    def at(self, time_s: float) -> Bin:
        """The stretch that this moment, in seconds since the start, belongs to; what was before it is its first."""
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
