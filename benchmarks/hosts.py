"""CPU per workflow of one host and of three hosts on PostgreSQL, the calls between the three, and their commits.

Three separate hosts, each with its own database, show what the smaller load of each host costs: together they get the
same load as the cluster, but make no calls to each other.

The hosts are started as a user starts them, with all roles each, on a private PostgreSQL server. The worker and the
clients are connected to every host. The CPU time of the hosts' processes and that of PostgreSQL are measured
separately. Each host counts the calls that it makes to other hosts.

`--against DIR` also measures three hosts that run the source in DIR/src, say of an earlier commit.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.aims import RATIO_REACHED_MIN, Aim, show_aims
from benchmarks.workflows_load import CONCURRENCY, at_once, connect, run_one
from benchmarks.workflows_servers import ServerProcess, await_port, free_port, killed
from tests.storage.postgres_cluster import PostgresCluster, private_cluster

HOSTS = 3
ROUNDS = 3
LOAD_S = 5.0
WARM_UP_S = 2.0
SETTLE_S = 1.0
RATIO_MAX = 1.25
SHOWN_MAX = 25

# Keys of the counted writes and their batches, beside the names of methods; see `GroupCommit`.
WRITES, BATCHES = "writes", "batches"
# Runs the server with counters around the calls to other hosts and the group commit; it writes the counts when it gets
# SIGUSR1.
COUNTING = """
import json, signal, sys
from collections import Counter
from pathlib import Path
from fairlead.rpc.hosts import grpc_peer
from fairlead.storage.postgres.group_commit import GroupCommit
counts, send = Counter(), grpc_peer.Peer.send
def counted(self, method_name, *arguments, **options):
    counts[method_name] += 1
    return send(self, method_name, *arguments, **options)
grpc_peer.Peer.send = counted
hold = GroupCommit._hold
def held(self, batch):
    counts["batches"] += 1
    counts["writes"] += len(batch)
    return hold(self, batch)
GroupCommit._hold = held
file = Path(sys.argv.pop(1))
def write(*_):
    part = file.with_suffix(".part")
    part.write_text(json.dumps(counts))
    part.rename(file)
signal.signal(signal.SIGUSR1, write)
from fairlead.cli.main import main
main()
"""


@dataclass(frozen=True)
class Hosts:
    """Running hosts."""

    addresses: list[str]
    processes: list[ServerProcess]
    count_files: list[Path]

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in self.processes)

    def counts(self) -> Counter[str]:
        """Calls to other hosts so far, by method; writes and their batches."""
        found: Counter[str] = Counter()
        for process, file in zip(self.processes, self.count_files, strict=True):
            file.unlink(missing_ok=True)
            os.kill(process.pid, 10)
            deadline_s = time.monotonic() + 10
            while not file.exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            found.update(json.loads(file.read_text()))
        return found


@contextlib.contextmanager
def running(number: int, dsn: str, folder: Path, source: Path) -> Iterator[Hosts]:
    """Run a number of hosts on one database until the block ends."""
    addresses, processes, files = [], [], []
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    with contextlib.ExitStack() as stack:
        for index in range(number):
            port, internal_port = free_port(), free_port()
            config = folder / f"host-{index}.yaml"
            config.write_text(
                f"frontend: {{listen: '127.0.0.1:{port}'}}\nlisten: 127.0.0.1:{internal_port}\n"
                f"store: {{postgres: {{dsn: '{dsn}'}}}}\nlog: {{level: error}}\nstop: {{handOver: 0s, grace: 1s}}\n"
            )
            counts = folder / f"host-{index}.json"
            log = stack.enter_context((folder / f"host-{index}.log").open("wb"))
            command = ["env", f"PYTHONPATH={environment['PYTHONPATH']}", sys.executable, "-c", COUNTING, str(counts)]
            process = stack.enter_context(killed([*command, "server", "start", "--config", str(config)], log))
            await_port(port, process, folder / f"host-{index}.log")
            addresses.append(f"127.0.0.1:{port}")
            processes.append(ServerProcess(addresses[-1], process.pid))
            files.append(counts)
        yield Hosts(addresses, processes, files)


def together(clusters: Sequence[Hosts]) -> Hosts:
    """The hosts of all clusters."""
    return Hosts(
        [address for cluster in clusters for address in cluster.addresses],
        [process for cluster in clusters for process in cluster.processes],
        [file for cluster in clusters for file in cluster.count_files],
    )


@dataclass(frozen=True)
class Kind:
    """A number of clusters with a database each, the number of hosts in each cluster, and their source tree."""

    hosts: int
    source: Path
    clusters: int = 1


@dataclass(frozen=True)
class Figures:
    """Workflows per second, CPU milliseconds per workflow of the hosts and of PostgreSQL, calls and writes."""

    per_s: float
    cpu_ms: float
    postgres_ms: float
    # Calls per workflow, by method.
    calls: dict[str, float]
    writes: float
    batches: float

    @property
    def calls_total(self) -> float:
        return sum(self.calls.values())


async def load(hosts: Hosts, postgres: ServerProcess) -> Figures:
    clients = [await connect(address) for address in hosts.addresses]
    turns = cycle(clients)
    await at_once(lambda: run_one(next(turns)), duration_s=WARM_UP_S)
    counts, cpu_s, postgres_s, began_s = hosts.counts(), hosts.cpu_s(), postgres.cpu_s(), time.perf_counter()
    workflows = await at_once(lambda: run_one(next(turns)), duration_s=LOAD_S)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(SETTLE_S)
    cpu_s, postgres_s = hosts.cpu_s() - cpu_s, postgres.cpu_s() - postgres_s
    counted = {name: number / workflows for name, number in (hosts.counts() - counts).items()}
    return Figures(
        workflows / took_s,
        cpu_s / workflows * 1e3,
        postgres_s / workflows * 1e3,
        {name: number for name, number in counted.items() if name not in {WRITES, BATCHES}},
        counted[WRITES],
        counted[BATCHES],
    )


def measured(kind: Kind, postgres: PostgresCluster) -> Figures:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        clusters = []
        for number in range(kind.clusters):
            (folder / str(number)).mkdir()
            database = postgres.create_database()
            clusters.append(stack.enter_context(running(kind.hosts, database, folder / str(number), kind.source)))
        hosts = together(clusters)
        for address in hosts.addresses:
            log = stack.enter_context((folder / "worker.log").open("ab"))
            stack.enter_context(killed([sys.executable, "-m", "benchmarks.workflows_load", address], log))
        return uvloop.run(load(hosts, ServerProcess("", postgres.pid)))


def best(rounds: Sequence[Figures]) -> Figures:
    return min(rounds, key=lambda figures: figures.cpu_ms)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another source tree, measured with three hosts")
    options = parser.parse_args()
    here = Path(__file__).parents[1]
    separate = f"{HOSTS} separate hosts"
    kinds = {"1 host": Kind(1, here), f"{HOSTS} hosts": Kind(HOSTS, here), separate: Kind(1, here, clusters=HOSTS)}
    if options.against is not None:
        kinds[f"{HOSTS} hosts, {options.against}"] = Kind(HOSTS, options.against.resolve())
    rounds: dict[str, list[Figures]] = {name: [] for name in kinds}
    progress = Console(stderr=True)
    with private_cluster() as postgres:
        for number in range(options.rounds):
            for name, kind in kinds.items():
                progress.print(f"round {number + 1} of {options.rounds}: {name}")
                rounds[name].append(measured(kind, postgres))
    found = {name: best(figures) for name, figures in rounds.items()}
    alone = found["1 host"]
    load_average = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    table = Table(
        *(
            "",
            "workflows per second",
            "CPU ms per workflow",
            "against 1 host",
            "PostgreSQL's",
            "calls between hosts per workflow",
            "writes",
            "batches",
        ),
        title=f"{CONCURRENCY} workflows at once, {os.cpu_count()} cores, load average {load_average}",
    )
    for name, figures in found.items():
        ratio = figures.cpu_ms / alone.cpu_ms
        table.add_row(
            name,
            f"{figures.per_s:,.1f}",
            f"{figures.cpu_ms:.2f}",
            f"{ratio:.2f}",
            f"{figures.postgres_ms:.2f}",
            f"{figures.calls_total:.1f}",
            f"{figures.writes:.1f}",
            f"{figures.batches:.1f}",
        )
    Console().print(table)
    methods = Table("method", "calls between hosts per workflow")
    spread = found[f"{HOSTS} hosts"]
    for name, calls in sorted(spread.calls.items(), key=lambda each: -each[1])[:SHOWN_MAX]:
        methods.add_row(name, f"{calls:.2f}")
    Console().print(methods)
    title = f"CPU per workflow, {HOSTS} hosts against 1"
    ratio = spread.cpu_ms / alone.cpu_ms
    missed = show_aims([Aim(title, ratio, RATIO_MAX, "less", reached_min=RATIO_REACHED_MIN)])
    if missed:
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
