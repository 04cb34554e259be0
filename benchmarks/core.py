"""Hot functions of `core`: calls per second on one CPU core, and growth of a call's cost with the size.

Timings on a shared machine are noisy, so each figure is the best of several rounds, and each is also printed as a
ratio to a plain Python baseline (a function that looks up and stores one entry of a dictionary) of the same run.
"""

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import cycle

from rich.console import Console
from rich.table import Table

from fairlead.core.balancing import LoadBalancer, Strategy
from fairlead.core.fairness import LEVEL_ZERO, FairBacklog, Level, PassCounter, Share, WeightOverrides
from fairlead.core.partitions.names import Partition, TaskQueueId, TaskType
from fairlead.core.routing import HashRing, Router
from fairlead.core.versions import VersionHistory, lowest_common_ancestor

ROUNDS = 5
ROUND_S = 0.15
TASK_QUEUE = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)

# Makes a given number of calls; a benchmark returns such a function for a size.
Calls = Callable[[int], None]


@dataclass(frozen=True)
class Benchmark:
    """One function, measured at a small and at a large size; `target_per_s` applies to both sizes."""

    call: str
    unit: str
    sizes: tuple[int, int]
    prepare: Callable[[int], Calls]
    target_per_s: int | None = None
    # Whether the cost may grow at most logarithmically; twice that is allowed, because of caches and noise.
    is_logarithmic: bool = True


def baseline(_: int) -> Calls:
    entries: dict[str, int] = {str(number): number for number in range(1000)}
    keys = cycle(list(entries))

    def step(key: str) -> int:
        value = entries.get(key, 0) + 1
        entries[key] = value
        return value

    def run(calls: int) -> None:
        for _ in range(calls):
            step(next(keys))

    return run


def passes(keys: int) -> Calls:
    counter = PassCounter()
    names = [f"tenant-{number}" for number in range(keys)]
    turn = cycle(names)
    state = {"base": 0, "left": keys}

    def run(calls: int) -> None:
        next_pass = counter.next_pass
        for _ in range(calls):
            next_pass(next(turn), stride=1000, base=state["base"])
            state["left"] -= 1
            if not state["left"]:
                # Begin a new round: every key has had a task dispatched.
                state["left"] = keys
                state["base"] += 1000

    return run


class HeapStore:
    """A backlog in which every key has two tasks, with a minimal store for the tasks that are not in its buffer."""

    def __init__(self, keys: int) -> None:
        self.backlog = FairBacklog[str](
            ack_level=LEVEL_ZERO, max_level=LEVEL_ZERO, stored=(), overrides=WeightOverrides()
        )
        self.rest: list[tuple[Level, str]] = []
        self.next_id = 1
        self.shares = [Share(f"tenant-{number}", 1.0) for number in range(keys)]
        random.Random(1).shuffle(self.shares)
        self.batches = [self.shares[start : start + 100] for start in range(0, keys, 100)]
        for batch in self.batches * 2:
            self.write(batch)

    def write(self, shares: list[Share]) -> None:
        ids = range(self.next_id, self.next_id + len(shares))
        self.next_id += len(shares)
        write = self.backlog.begin_write(shares, ids=ids)
        merge = self.backlog.write_succeeded(write, [share.key for share in shares])
        loaded = {level for level, _ in merge.loaded}
        for level, share in zip(write.levels, shares, strict=True):
            if level not in loaded:
                heappush(self.rest, (level, share.key))
        for level in merge.evicted:
            heappush(self.rest, (level, ""))

    def dispatch(self) -> None:
        backlog = self.backlog
        if (read := backlog.next_read()) is not None:
            backlog.read_succeeded(read, [heappop(self.rest) for _ in range(min(read.limit, len(self.rest)))])
        if backlog.loaded:
            backlog.ack(backlog.loaded[0])


def merges(keys: int) -> Calls:
    """One task through a backlog with two tasks per key: its level, the merge, its share of a read, and its ack."""
    store = HeapStore(keys)
    turn = cycle(store.shares)

    def run(calls: int) -> None:
        for _ in range(calls):
            store.write([next(turn)])
            store.dispatch()

    return run


def merges_in_batches(keys: int) -> Calls:
    """Like `merges`, but with a hundred tasks per write, as in a group commit."""
    store = HeapStore(keys)
    turn = cycle(store.batches)

    def run(calls: int) -> None:
        for _ in range(0, calls, 100):
            store.write(next(turn))
            for _ in range(100):
                store.dispatch()

    return run


def picks(strategy: Strategy) -> Callable[[int], Calls]:
    def prepare(partitions: int) -> Calls:
        chance = random.Random(1)
        balancer = LoadBalancer(random=chance.random)
        balancer.pick_read(TASK_QUEUE, partitions=partitions, strategy=strategy, now_s=0.0)
        for partition in range(partitions):
            balancer.report(
                TASK_QUEUE, partition, backlog=50.0 + partition * 100, arrival_per_s=10, wait_s=0.01, now_s=0
            )

        def run(calls: int) -> None:
            for _ in range(calls):
                balancer.pick_read(TASK_QUEUE, partitions=partitions, strategy=strategy, now_s=1.0).release()

        return run

    return prepare


def reports(partitions: int) -> Calls:
    balancer = LoadBalancer(random=random.Random(1).random)
    balancer.pick_read(TASK_QUEUE, partitions=partitions, strategy=Strategy.WEIGHTED, now_s=0.0)
    turn = cycle(range(partitions))

    def run(calls: int) -> None:
        for _ in range(calls):
            balancer.report(TASK_QUEUE, next(turn), backlog=150, arrival_per_s=10, wait_s=0.01, now_s=1.0)

    return run


def lookups(hosts: int) -> Calls:
    ring = HashRing(f"10.0.{number // 256}.{number % 256}:7235" for number in range(hosts))
    keys = cycle([f"namespace:list-{number}:2" for number in range(5000)])

    def run(calls: int) -> None:
        for _ in range(calls):
            ring.lookup(next(keys))

    return run


def routes(hosts: int) -> Calls:
    ring = HashRing(f"10.0.{number // 256}.{number % 256}:7235" for number in range(hosts))
    router = Router(ring, batch_size=8)
    partitions = cycle([Partition(TASK_QUEUE, number) for number in range(64)])

    def run(calls: int) -> None:
        for _ in range(calls):
            router.route(next(partitions), now_s=0.0)

    return run


def ancestors(items: int) -> Calls:
    """Two histories that differ only in the last item, as after a failover."""
    shared = [(10 * number, number) for number in range(1, items)]
    one = VersionHistory.from_pairs([*shared, (10 * items, items)])
    other = VersionHistory.from_pairs([*shared, (10 * items, items + 1)])

    def run(calls: int) -> None:
        for _ in range(calls):
            lowest_common_ancestor(one, other)

    return run


BENCHMARKS = [
    Benchmark("baseline: one dictionary entry", "entries", (1, 1), baseline),
    Benchmark("pass assignment", "keys", (1_000, 100_000), passes, target_per_s=300_000),
    Benchmark("pass assignment, past the bound", "keys", (200_000, 800_000), passes),
    Benchmark("backlog: one task through it, one task per write", "keys", (1_000, 100_000), merges),
    Benchmark("backlog: one task through it, 100 tasks per write", "keys", (1_000, 100_000), merges_in_batches),
    Benchmark("pick: random", "partitions", (4, 400), picks(Strategy.RANDOM), target_per_s=200_000),
    Benchmark("pick: round robin", "partitions", (4, 400), picks(Strategy.ROUND_ROBIN), target_per_s=200_000),
    Benchmark("pick: weighted", "partitions", (4, 400), picks(Strategy.WEIGHTED), target_per_s=200_000),
    Benchmark(
        "pick: fewest polls, release",
        "partitions",
        (4, 400),
        picks(Strategy.FEWEST_OUTSTANDING_POLLS),
        target_per_s=200_000,
    ),
    Benchmark("report to weighted", "partitions", (4, 400), reports),
    Benchmark("ring lookup", "hosts", (4, 400), lookups, target_per_s=200_000),
    Benchmark("route, spread in batches of 8", "hosts", (16, 400), routes),
    # The cost is linear in the number of failovers of a run, which is small.
    Benchmark("lowest common ancestor", "items", (10, 1_000), ancestors, is_logarithmic=False),
]


def calls_per_s(run: Calls) -> float:
    """Calls per second in the best of several rounds, which other load disturbs least."""
    calls = 1000
    while _seconds(run, calls) < ROUND_S / 10:
        calls *= 4
    calls *= 10
    return max(calls / _seconds(run, calls) for _ in range(ROUNDS))


def _seconds(run: Calls, calls: int) -> float:
    """Time the calls without the garbage collector, as `timeit` does: its passes depend on the size only."""
    gc.collect()
    gc.disable()
    started_s = time.perf_counter()
    run(calls)
    took_s = time.perf_counter() - started_s
    gc.enable()
    return took_s


def growth_allowed(sizes: tuple[int, int]) -> float:
    """The allowed growth: twice the logarithmic growth from the small to the large size."""
    small, large = sizes
    return 2 * math.log(large) / math.log(max(2, small))


def measure() -> Iterator[tuple[Benchmark, float, float]]:
    for benchmark in BENCHMARKS:
        small, large = (calls_per_s(benchmark.prepare(size)) for size in benchmark.sizes)
        yield benchmark, small, large


def main() -> int:
    console = Console()
    if not console.is_terminal:
        console.width = 130
    table = Table("call", "size", "calls per second", "target", "x baseline", "cost growth", "allowed")
    misses = []
    baseline_per_s = 1.0
    with console.status("measuring ...") as status:
        for benchmark, small, large in measure():
            status.update(f"measured: {benchmark.call}")
            if benchmark.prepare is baseline:
                baseline_per_s = small
            growth, allowed = small / large, growth_allowed(benchmark.sizes)
            is_grown = benchmark.sizes[0] != benchmark.sizes[1]
            for size, rate in zip(benchmark.sizes[: 1 + is_grown], (small, large), strict=False):
                is_last = is_grown and size == benchmark.sizes[1]
                table.add_row(
                    benchmark.call,
                    f"{size:,} {benchmark.unit}",
                    f"{rate:,.0f}",
                    f"{benchmark.target_per_s:,}" if benchmark.target_per_s else "",
                    f"{rate / baseline_per_s:.2f}",
                    f"{growth:.2f}" if is_last else "",
                    f"{allowed:.2f}" if is_last and benchmark.is_logarithmic else "",
                )
                if benchmark.target_per_s and rate < benchmark.target_per_s:
                    misses.append(f"{benchmark.call} with {size:,} {benchmark.unit}: {rate:,.0f} per second")
            if is_grown and benchmark.is_logarithmic and growth > allowed:
                misses.append(f"{benchmark.call}: the cost of one call grew {growth:.2f} times")
    console.print(table)
    console.print("x baseline: times the cost of looking up and storing one dictionary entry, in the same run.")
    console.print("cost growth: of one call, from the small size to the large; allowed: twice the logarithmic growth.")
    for miss in misses:
        console.print(f"[red]missed[/red] {miss}")
    if not misses:
        console.print("[green]every target was reached[/green]")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
