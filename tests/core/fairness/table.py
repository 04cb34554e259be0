"""A model of the store under a backlog: one table of tasks, and one row with the lease and the metadata."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fairlead.core.fairness import LEVEL_ZERO, Level, StoredKey


class LeaseLost(Exception):
    """Another owner has taken the lease: the operation changed nothing."""


class Lease(NamedTuple):
    range_id: int
    ack_level: Level
    max_level: Level


@dataclass
class Table:
    """Every write and delete is conditional on the range id."""

    range_id: int = 0
    ack_level: Level = LEVEL_ZERO
    max_level: Level = LEVEL_ZERO
    rows: dict[Level, str] = field(default_factory=dict)

    def take_lease(self) -> Lease:
        self.range_id += 1
        return Lease(self.range_id, self.ack_level, self.max_level)

    def renew_lease(self, range_id: int) -> Lease:
        self._check(range_id)
        return self.take_lease()

    def insert(self, range_id: int, tasks: list[tuple[Level, str]]) -> None:
        self._check(range_id)
        for level, key in tasks:
            assert level not in self.rows, f"{level} was written twice"
            self.rows[level] = key

    def read(self, after: Level, limit: int) -> list[tuple[Level, str]]:
        return sorted((level, key) for level, key in self.rows.items() if level > after)[:limit]

    def stored_keys(self, after: Level) -> list[StoredKey]:
        passes: dict[str, list[int]] = {}
        for level, key in self.rows.items():
            if level > after:
                passes.setdefault(key, []).append(level.pass_number)
        return [StoredKey(key, min(numbers), max(numbers), weight=1.0) for key, numbers in passes.items()]

    def delete_through(self, range_id: int, level: Level) -> list[Level]:
        self._check(range_id)
        self.ack_level = max(self.ack_level, level)
        gone = [stored for stored in self.rows if stored <= level]
        for stored in gone:
            del self.rows[stored]
        return gone

    def save(self, range_id: int, *, ack_level: Level, max_level: Level) -> None:
        self._check(range_id)
        self.ack_level, self.max_level = ack_level, max_level

    def _check(self, range_id: int) -> None:
        if range_id != self.range_id:
            raise LeaseLost(f"range id {range_id}, but the lease is {self.range_id}")
