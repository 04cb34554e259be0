"""Gradual changes: each key changes at its own moment, so that not all partitions move at once."""

from dataclasses import dataclass
from math import isfinite
from typing import Generic, TypeVar

from fairlead.core.errors import FixRequest
from fairlead.core.hashing import HASH_MAX, hash64

T = TypeVar("T")


class InvalidChange(FixRequest):
    """A gradual change ends before it starts, or its start or end is not a finite number."""


@dataclass(frozen=True, slots=True)
class GradualChange(Generic[T]):
    """Every key has the old value until its own moment between start and end, and the new value from then on.

    The moment depends only on the key and the wall clock, so hosts agree without communication, except for clock skew.
    """

    old: T
    new: T
    start_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not isfinite(self.end_s - self.start_s):
            raise InvalidChange(f"gradual change from {self.start_s} s to {self.end_s} s: give two finite times")
        if self.end_s < self.start_s:
            raise InvalidChange(
                f"gradual change ends at {self.end_s} s, before it starts at {self.start_s} s: swap the two"
            )

    def moment(self, key: str) -> float:
        """Return when `key` changes, in seconds of the wall clock; its owner sets a timer for it."""
        moment_s = self.start_s + hash64(key) / HASH_MAX * (self.end_s - self.start_s)
        # The sum may round to just after the end, but all keys must have changed by the end.
        return min(moment_s, self.end_s)

    def value(self, key: str, now_s: float) -> T:
        """Return the value of `key` now."""
        return self.new if now_s >= self.moment(key) else self.old
