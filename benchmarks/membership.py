"""The cost of members of a cluster: a heartbeat on PostgreSQL, and a change of the ring, by the number of hosts.

The model in docs/scale.md uses these unit costs. A heartbeat is a commit that also returns all members; its cost is CPU
time of PostgreSQL and of the host. A change of the ring is computed by every host, in its event loop.
"""

import argparse
import asyncio
import time

from rich.console import Console
from rich.table import Table

from benchmarks.growth_stores import POSTGRES, Place, new_place, scheduled_s
from benchmarks.workflows_servers import family
from fairlead.core.routing import HashRing
from fairlead.server.stores import open_store
from fairlead.storage.tasks import Member

HOSTS = (1, 10, 100, 1_000)
BEATS, BEATS_QUICK = 500, 100
ALIVE_S = 3_600.0


async def heartbeat_us(place: Place, hosts: int, beats: int) -> tuple[float, float]:
    """CPU microseconds of one heartbeat: of PostgreSQL, and of the host."""
    assert place.postgres is not None  # noqa: S101 - it is a place on PostgreSQL
    store = await open_store(place.config)
    try:
        now_s = time.time()
        names = [f"10.0.{number >> 8}.{number & 255}:7235" for number in range(hosts)]
        for name in names:
            await store.heartbeat(Member(name, now_s + ALIVE_S), now_s=now_s)
        pids = family(place.postgres.pid())
        server_s, own_s = sum(map(scheduled_s, pids)), time.process_time()
        for number in range(beats):
            found = await store.heartbeat(Member(names[number % hosts], now_s + ALIVE_S + number), now_s=now_s)
            if len(found) != hosts:
                raise AssertionError(f"{len(found)} members, not {hosts}")
        return (sum(map(scheduled_s, pids)) - server_s) / beats * 1e6, (time.process_time() - own_s) / beats * 1e6
    finally:
        await store.close()


def ring_ms(hosts: int) -> tuple[float, float]:
    """CPU milliseconds to compute a whole ring, and to change it by one host."""
    names = [f"10.0.{number >> 8}.{number & 255}:7235" for number in range(hosts + 1)]
    began_s = time.process_time()
    ring = HashRing(names[1:])
    anew_s = time.process_time() - began_s
    began_s = time.process_time()
    ring.with_host(names[0])
    return anew_s * 1e3, (time.process_time() - began_s) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.membership", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer heartbeats")
    options = parser.parse_args()
    table = Table(
        "hosts",
        "PostgreSQL, us per heartbeat",
        "host, us per heartbeat",
        "ring anew, ms",
        "ring with one host more, ms",
    )
    with new_place(POSTGRES) as place:
        for hosts in HOSTS:
            database_us, host_us = asyncio.run(heartbeat_us(place, hosts, BEATS_QUICK if options.quick else BEATS))
            table.add_row(f"{hosts:,}", *(f"{figure:,.1f}" for figure in (database_us, host_us, *ring_ms(hosts))))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
