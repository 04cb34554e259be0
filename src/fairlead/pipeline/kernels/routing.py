"""Partition owners and moves for millions of partitions: `core.routing`, with the walk around the ring precomputed.

The ring is the core's own. For each of its points, the hosts that follow clockwise are computed in advance, so that
finding an owner takes one binary search and one table lookup, for whole arrays of hashes at a time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairlead.core.errors import FixRequest
from fairlead.core.hashing import HASH_BITS
from fairlead.core.routing import HashRing, NoHosts, check_batch_size

Hashes: TypeAlias = NDArray[np.uint64]
Indexes: TypeAlias = NDArray[np.int64]
Owners: TypeAlias = NDArray[np.int32]

# Maximum number of entries in a table of followers: 1,000 hosts with 100 points each and batches of 64.
FOLLOWERS_MAX = 6_400_000
# Maximum number of counters (task queues times hosts) that are held at a time.
CELLS_MAX = 2_000_000
_TABLES_KEPT = 64


class RingTooLarge(FixRequest):
    """The ring table for this number of hosts and this batch size would not fit in memory."""


@dataclass(frozen=True, slots=True)
class RingTable:
    """The owners of the whole circle: `followers[point, n]` is the n-th distinct host clockwise of a point."""

    hosts: tuple[str, ...]
    points: Hashes
    followers: Owners

    def owners(self, hashes: Hashes, host_index: Indexes | int = 0) -> Owners:
        """Return the host of each hash as an index into `hosts`; `host_index` is taken modulo the number of hosts."""
        places = np.searchsorted(self.points, hashes) % len(self.points)
        found: Owners = self.followers[places, np.asarray(host_index) % len(self.hosts)]
        return found


@lru_cache(maxsize=_TABLES_KEPT)
def ring_table(hosts: tuple[str, ...], batch_size: int) -> RingTable:
    """Return the ring table for one batch size; for 0 (basic routing) it has only the owner of each point."""
    ring = HashRing(hosts)
    if not ring.hosts:
        raise NoHosts("no host owns any partition: the ring is empty; name at least one")
    width = min(max(1, check_batch_size(batch_size)), len(ring.hosts))
    if len(ring.points) * width > FOLLOWERS_MAX:
        raise RingTooLarge(
            f"{len(ring.hosts)} hosts with batch size {batch_size} are too many: choose fewer hosts or smaller batches"
        )
    numbers = {host: number for number, host in enumerate(ring.hosts)}
    owners = np.array([numbers[host] for host in ring.owners], np.int32)
    return RingTable(ring.hosts, np.array(ring.points, np.uint64), _followers(owners, width))


def _followers(owners: Owners, width: int) -> Owners:
    table = np.empty((len(owners), width), np.int32)
    table[:, 0] = owners
    cursor = np.arange(len(owners))
    for column in range(1, width):
        pending = np.arange(len(owners))
        while pending.size:
            cursor[pending] += 1
            candidates = owners[cursor[pending] % len(owners)]
            is_known = (table[pending, :column] == candidates[:, None]).any(axis=1)
            table[pending[~is_known], column] = candidates[~is_known]
            pending = pending[is_known]
    return table


@dataclass(frozen=True, slots=True)
class TaskQueues:
    """Task queues with the hashes of the keys of their partitions and of their batches of partitions.

    Batch *k* of a task queue has the same key for every batch size, so that one array serves all sizes.
    """

    partitions: Indexes
    qps: NDArray[np.float64]
    basic: Hashes
    batches: Hashes
    batch_counts: Indexes

    def cut(self, hosts: int) -> Iterable["TaskQueues"]:
        """Yield pieces that are small enough to be counted per host."""
        size = max(1, CELLS_MAX // max(1, hosts))
        basic_ends = np.concatenate([[0], np.cumsum(self.partitions)])
        batch_ends = np.concatenate([[0], np.cumsum(self.batch_counts)])
        for first in range(0, len(self.partitions), size):
            end = min(len(self.partitions), first + size)
            yield TaskQueues(
                partitions=self.partitions[first:end],
                qps=self.qps[first:end],
                basic=self.basic[basic_ends[first] : basic_ends[end]],
                batches=self.batches[batch_ends[first] : batch_ends[end]],
                batch_counts=self.batch_counts[first:end],
            )

    def numbers(self) -> tuple[Indexes, Indexes]:
        """Return, for each partition, the index of its task queue and the partition number."""
        lists = np.repeat(np.arange(len(self.partitions)), self.partitions)
        firsts = np.cumsum(self.partitions) - self.partitions
        return lists, np.arange(len(lists)) - firsts[lists]

    def place(self, hosts: tuple[str, ...], batch_size: int) -> Owners:
        """Return the owner of each partition, as `Router.route` does."""
        table = ring_table(hosts, batch_size)
        if batch_size == 0:
            return table.owners(self.basic)
        lists, numbers = self.numbers()
        firsts = np.cumsum(self.batch_counts) - self.batch_counts
        batch, index = np.divmod(numbers, batch_size)
        return table.owners(self.batches[firsts[lists] + batch], index)

    def moments(self) -> NDArray[np.float64]:
        """Return the share of a gradual change after which each partition switches, like `GradualChange.moment`."""
        return self.basic / 2.0**HASH_BITS


@dataclass(frozen=True, slots=True)
class Together:
    """Spread of each task queue: the most partitions on one host, that host, and the number of hosts in use."""

    most: Indexes
    host: Indexes
    hosts: Indexes


def together(lists: Indexes, owners: Owners, *, task_lists: int, hosts: int) -> Together:
    """Count the partitions of every task queue on every host."""
    counts = np.bincount(lists * hosts + owners, minlength=task_lists * hosts).reshape(task_lists, hosts)
    return Together(most=counts.max(axis=1), host=counts.argmax(axis=1), hosts=np.count_nonzero(counts, axis=1))


def loads(owners: Owners, qps: NDArray[np.float64], *, hosts: int) -> tuple[Indexes, NDArray[np.float64]]:
    """Return the number of partitions and the tasks per second of each host."""
    rates = np.bincount(owners, weights=qps, minlength=hosts)
    return np.bincount(owners, minlength=hosts).astype(np.int64), rates.astype(np.float64)


def is_moved(
    before: Owners, after: Owners, *, hosts_before: Sequence[str], hosts_after: Sequence[str]
) -> NDArray[np.bool_]:
    """Return which partitions have another owner; the two rings number their hosts differently."""
    numbers = {host: number for number, host in enumerate(hosts_after)}
    # -1: a host that left owns no partition.
    renumbered = np.array([numbers.get(host, -1) for host in hosts_before], np.int32)
    moved: NDArray[np.bool_] = renumbered[before] != after
    return moved
