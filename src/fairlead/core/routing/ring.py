"""The circle on which hosts stand, and which of them a key belongs to."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.hashing import hash64

POINTS_PER_HOST = 100
# Ten thousand hosts with a hundred points each: more would take seconds to build at every change of membership.
RING_POINTS_MAX = 1_000_000


class InvalidRing(FixRequest):
    """A ring is asked for what it can't have: a host without a name, no points, or too many of them."""


class NoHosts(RetryLater):
    """The ring is empty, so that no key has an owner."""


@dataclass(frozen=True, slots=True, init=False)
class HashRing:
    """Every key belongs to the first host clockwise of its hash; the same hosts give the same answers everywhere.

    `points` are the sorted positions on the circle and `owners` the host of each, for those who look up in bulk.
    """

    hosts: tuple[str, ...]
    points_per_host: int
    points: tuple[int, ...] = field(compare=False, repr=False)
    owners: tuple[str, ...] = field(compare=False, repr=False)

    def __init__(self, hosts: Iterable[str], points_per_host: int = POINTS_PER_HOST) -> None:
        members = tuple(sorted(set(hosts)))
        if "" in members:
            raise InvalidRing("a host has an empty name: give every host of the ring its address")
        if points_per_host < 1 or len(members) * points_per_host > RING_POINTS_MAX:
            raise InvalidRing(
                f"{len(members)} hosts with {points_per_host} points each: "
                f"give each host at least 1 point, and the ring at most {RING_POINTS_MAX} in all"
            )
        # Where two points fall on one place, the pairs sort by name: the ring never depends on the order of the hosts.
        circle = sorted((hash64(f"{host}#{index}"), host) for host in members for index in range(points_per_host))
        object.__setattr__(self, "hosts", members)
        object.__setattr__(self, "points_per_host", points_per_host)
        object.__setattr__(self, "points", tuple(point for point, _ in circle))
        object.__setattr__(self, "owners", tuple(owner for _, owner in circle))

    def with_host(self, host: str) -> Self:
        """The ring after `host` joined; the same ring if it was there."""
        return type(self)((*self.hosts, host), self.points_per_host)

    def without_host(self, host: str) -> Self:
        """The ring after `host` left; the same ring if it was not there."""
        return type(self)((member for member in self.hosts if member != host), self.points_per_host)

    def lookup(self, key: str) -> str:
        """The host that owns `key`."""
        owners = self.owners
        if not owners:
            raise self._no_hosts(key)
        return owners[bisect_left(self.points, hash64(key)) % len(owners)]

    def lookup_n(self, key: str, n: int) -> tuple[str, ...]:
        """The first `n` distinct hosts clockwise of `key`, its owner first; all hosts where there are fewer."""
        if n < 1:
            raise InvalidRing(f"{n} hosts asked for key {key!r}: ask for at least 1")
        owners = self.owners
        if not owners:
            raise self._no_hosts(key)
        wanted = min(n, len(self.hosts))
        position = bisect_left(self.points, hash64(key))
        found: dict[str, None] = {}
        while len(found) < wanted:
            found[owners[position % len(owners)]] = None
            position += 1
        return tuple(found)

    def _no_hosts(self, key: str) -> NoHosts:
        return NoHosts(f"no host owns key {key!r}: the ring is empty; retry when a host has joined")
