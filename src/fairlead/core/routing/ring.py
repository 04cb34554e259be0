"""The consistent-hash ring of hosts, which finds the owner of a key."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Self

from fairlead.core.errors import FixRequest, RetryLater
from fairlead.core.hashing import HASH_MAX, hash64

POINTS_PER_HOST = 100
# Number of points of a ring: 10,000 hosts with 100 points each. Building a larger ring would take seconds at each
# change of membership.
RING_POINTS_MAX = 1_000_000
# If more than one host in this number joins or leaves, the whole ring is computed again, which is faster then.
REBUILT_SHARE = 20


class InvalidRing(FixRequest):
    """An argument of a ring is invalid: an empty host name, no points, too many points, or a lookup of no hosts."""


class NoHosts(RetryLater):
    """The ring is empty: no key has an owner."""


@dataclass(frozen=True, slots=True, init=False)
class HashRing:
    """Every key belongs to the first host clockwise of its hash; rings of the same hosts give the same owners.

    `points` are the sorted positions on the circle and `owners` the host of each, for bulk lookups.
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
        # Points at the same position are sorted by host, so the ring does not depend on the order of the hosts.
        circle = sorted(_points_of(members, points_per_host))
        self._set(members, points_per_host, [point for point, _ in circle], [owner for _, owner in circle])

    def _set(self, hosts: tuple[str, ...], points_per_host: int, points: Iterable[int], owners: Iterable[str]) -> None:
        object.__setattr__(self, "hosts", hosts)
        object.__setattr__(self, "points_per_host", points_per_host)
        object.__setattr__(self, "points", tuple(points))
        object.__setattr__(self, "owners", tuple(owners))

    def with_hosts(self, hosts: Iterable[str]) -> Self:
        """Return the ring of exactly these hosts; if few hosts differ, computes only their points."""
        members = tuple(sorted(set(hosts)))
        if members == self.hosts:
            return self
        joined, gone = set(members).difference(self.hosts), set(self.hosts).difference(members)
        is_too_large = len(members) * self.points_per_host > RING_POINTS_MAX
        if (len(joined) + len(gone)) * REBUILT_SHARE > len(members) or "" in joined or is_too_large:
            return type(self)(members, self.points_per_host)
        points, owners = list(self.points), list(self.owners)
        for point, host in _points_of(gone, self.points_per_host):
            position = bisect_left(points, point)
            while owners[position] != host:
                position += 1
            del points[position], owners[position]
        for point, host in _points_of(joined, self.points_per_host):
            position = bisect_left(points, point)
            while position < len(points) and points[position] == point and owners[position] < host:
                position += 1
            points.insert(position, point)
            owners.insert(position, host)
        ring = object.__new__(type(self))
        ring._set(members, self.points_per_host, points, owners)
        return ring

    def with_host(self, host: str) -> Self:
        """Return the ring with `host`; the same ring if `host` is in it."""
        return self.with_hosts((*self.hosts, host))

    def without_host(self, host: str) -> Self:
        """Return the ring without `host`; the same ring if `host` is not in it."""
        return self.with_hosts(member for member in self.hosts if member != host)

    def shares(self) -> dict[str, float]:
        """Return each host's share of all keys: the arcs that end at its points."""
        arcs = dict.fromkeys(self.hosts, 0)
        # The first arc begins at the last point, and crosses zero.
        before = self.points[-1] - (HASH_MAX + 1) if self.points else 0
        for point, owner in zip(self.points, self.owners, strict=True):
            arcs[owner] += point - before
            before = point
        return {host: arc / (HASH_MAX + 1) for host, arc in arcs.items()}

    def lookup(self, key: str) -> str:
        """Return the host that owns `key`."""
        owners = self.owners
        if not owners:
            raise self._no_hosts(key)
        return owners[bisect_left(self.points, hash64(key)) % len(owners)]

    def lookup_n(self, key: str, n: int) -> tuple[str, ...]:
        """Return the first `n` distinct hosts clockwise of `key`, its owner first; all hosts if there are fewer."""
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


def _points_of(hosts: Iterable[str], points_per_host: int) -> Iterator[tuple[int, str]]:
    return ((hash64(f"{host}#{index}"), host) for host in hosts for index in range(points_per_host))
