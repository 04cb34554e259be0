"""Durable appends and commits of the PostgreSQL store, beside bare PostgreSQL on the same disk in the same run.

All commits are fsynced. PostgreSQL is a private server, which is stopped at the end. A shared disk is noisy, so each
figure is the best of several rounds; the ratios are more reliable than the figures.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.starts import PostgresProcess
from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.core.partitions import TaskType
from fairlead.storage.commit import Absent, BatchWrite, Commit, CurrentWrite, RunWrite, TaskWrite
from fairlead.storage.postgres import PostgresStore
from fairlead.storage.tasks import Levels, QueueId, StoredTask
from fairlead.storage.visibility import VisibilityRow
from tests.storage.postgres_cluster import private_cluster

ROUNDS = 3
ROUND_S = 2.0
KEYS = 100
PAYLOAD = bytes(200)
SHARDS = 512


@dataclass(frozen=True)
class Figure:
    """Writes per second; and per write: CPU milliseconds of this process and of PostgreSQL, transactions, fsyncs."""

    per_s: float
    own_cpu_ms: float
    postgres_cpu_ms: float
    transactions: float
    syncs: float


def measured(postgres: PostgresProcess, writes: Callable[[float], int]) -> Figure:
    """The best round of some writes; `writes` gets the time at which to stop."""
    found = []
    for _ in range(ROUNDS):
        counts, postgres_cpu_s, own_cpu_s = postgres.counts(), postgres.cpu_s(), time.process_time()
        began_s = time.perf_counter()
        done = max(1, writes(began_s + ROUND_S))
        took_s = time.perf_counter() - began_s
        counts_after = postgres.counts()
        found.append(
            Figure(
                done / took_s,
                (time.process_time() - own_cpu_s) / done * 1e3,
                (postgres.cpu_s() - postgres_cpu_s) / done * 1e3,
                (counts_after[0] - counts[0]) / done,
                (counts_after[1] - counts[1]) / done,
            )
        )
    return max(found, key=lambda figure: figure.per_s)


def bare(postgres: PostgresProcess) -> Figure:
    """Baseline: one row per transaction, one connection, a prepared statement."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE bare (id bigint PRIMARY KEY, payload bytea NOT NULL)")
        ids = itertools.count(1)

        def writes(until_s: float) -> int:
            done = 0
            while time.perf_counter() < until_s:
                connection.execute("INSERT INTO bare VALUES (%s, %s)", (next(ids), PAYLOAD), prepare=True)
                done += 1
            return done

        return measured(postgres, writes)


def with_store(
    postgres: PostgresProcess,
    prepare: Callable[[PostgresStore], Awaitable[Callable[[int], Awaitable[None]]]],
    *,
    in_flight: int,
) -> Figure:
    """Writes of a store by a number of concurrent callers; each waits until its write is committed."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        store = runner.run(PostgresStore.open(postgres.dsn))
        write = runner.run(_awaited(prepare(store)))
        numbers = itertools.count(1)

        async def caller(until_s: float) -> int:
            done = 0
            while time.perf_counter() < until_s:
                await write(next(numbers))
                done += 1
            return done

        async def callers(until_s: float) -> int:
            return sum(await asyncio.gather(*(caller(until_s) for _ in range(in_flight))))

        figure = measured(postgres, lambda until_s: runner.run(callers(until_s)))
        runner.run(store.close())
    return figure


async def appends(store: PostgresStore, *, queues: int) -> Callable[[int], Awaitable[None]]:
    """One task per append."""
    names = [QueueId("namespace", f"orders-{queues}-{number}", TaskType.ACTIVITY) for number in range(queues)]
    leases = [(name, (await store.take_lease(name)).range_id) for name in names]

    async def append(number: int) -> None:
        queue, range_id = leases[number % queues]
        level = Level(number // KEYS, number)
        task = StoredTask(level, f"tenant-{number % KEYS}", 1.0, PAYLOAD)
        await store.append(queue, range_id, 3, [task], Levels(LEVEL_ZERO, level))

    return append


async def commits(store: PostgresStore) -> Callable[[int], Awaitable[None]]:
    """Commits like those of a workflow's start, to many shards."""
    history = store.history
    leases = [(await history.take_shard(shard)).range_id for shard in range(SHARDS)]
    prefix = os.urandom(4).hex()

    async def commit(number: int) -> None:
        shard = number % SHARDS
        workflow_id, run_id = f"order-{prefix}-{number}", f"{prefix}-0000-7000-8000-{number:012}"
        namespace_id = "11111111-1111-1111-1111-111111111111"
        await history.commit(
            shard,
            leases[shard],
            Commit(
                runs=[RunWrite(namespace_id, workflow_id, run_id, bytes(400), None, 3, 1, 0)],
                batches=[BatchWrite(run_id, run_id, 1, 2, 0, number, bytes(300))],
                current=[CurrentWrite(namespace_id, workflow_id, run_id, run_id, 1, 0, Absent())],
                tasks=[TaskWrite(queue, 0, number, bytes(100)) for queue in ("transfer", "timer")],
                visibility=[VisibilityRow(namespace_id, run_id, workflow_id, "Order", 1, number, number, "orders")],
            ),
        )

    return commit


async def _awaited(
    prepared: Awaitable[Callable[[int], Awaitable[None]]],
) -> Callable[[int], Awaitable[None]]:
    return await prepared


def main() -> None:
    measurements: list[tuple[str, Callable[[PostgresProcess], Figure]]] = [
        ("bare PostgreSQL, one row per transaction", bare),
        *(
            (
                f"append, {in_flight:,} in flight, {queues} queue(s)",
                lambda postgres, in_flight=in_flight, queues=queues: with_store(
                    postgres, lambda store: appends(store, queues=queues), in_flight=in_flight
                ),
            )
            for in_flight, queues in ((1, 1), (1000, 1), (1000, 100))
        ),
        *(
            (
                f"commit of a start, {in_flight:,} in flight, {SHARDS} shards",
                lambda postgres, in_flight=in_flight: with_store(postgres, commits, in_flight=in_flight),
            )
            for in_flight in (1, 100, 1000)
        ),
    ]
    table = Table("what", "per second", "x bare", "own CPU ms", "PostgreSQL CPU ms", "transactions", "fsyncs")
    base: Figure | None = None
    with private_cluster() as cluster, Console(stderr=True).status("measuring ...") as status:
        for what, measure in measurements:
            status.update(f"measuring: {what}")
            figure = measure(PostgresProcess(cluster, cluster.create_database()))
            base = base or figure
            table.add_row(
                what,
                f"{figure.per_s:,.0f}",
                f"{figure.per_s / base.per_s:.1f}",
                f"{figure.own_cpu_ms:.3f}",
                f"{figure.postgres_cpu_ms:.3f}",
                f"{figure.transactions:.3f}",
                f"{figure.syncs:.3f}",
            )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
