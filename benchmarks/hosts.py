"""CPU per workflow of one host and of three hosts on PostgreSQL, and the calls between the three.

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

# Runs the server with a counter around the calls to other hosts; it writes the counts when it gets SIGUSR1.
COUNTING = """
import json, signal, sys
from collections import Counter
from pathlib import Path
from fairlead.rpc.hosts import grpc_peer
counts, send = Counter(), grpc_peer.Peer.send
def counted(self, method_name, *arguments, **options):
    counts[method_name] += 1
    return send(self, method_name, *arguments, **options)
grpc_peer.Peer.send = counted
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

    def calls(self) -> Counter[str]:
        """Calls to other hosts so far, by method."""
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


@dataclass(frozen=True)
class Figures:
    """Workflows per second, CPU milliseconds per workflow of the hosts and of PostgreSQL, and calls between hosts."""

    per_s: float
    cpu_ms: float
    postgres_ms: float
    # Calls per workflow, by method.
    calls: dict[str, float]

    @property
    def calls_total(self) -> float:
        return sum(self.calls.values())


async def load(hosts: Hosts, postgres: ServerProcess) -> Figures:
    clients = [await connect(address) for address in hosts.addresses]
    turns = cycle(clients)
    await at_once(lambda: run_one(next(turns)), duration_s=WARM_UP_S)
    calls, cpu_s, postgres_s, began_s = hosts.calls(), hosts.cpu_s(), postgres.cpu_s(), time.perf_counter()
    workflows = await at_once(lambda: run_one(next(turns)), duration_s=LOAD_S)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(SETTLE_S)
    cpu_s, postgres_s = hosts.cpu_s() - cpu_s, postgres.cpu_s() - postgres_s
    made = hosts.calls() - calls
    return Figures(
        workflows / took_s,
        cpu_s / workflows * 1e3,
        postgres_s / workflows * 1e3,
        {name: number / workflows for name, number in made.items()},
    )


def measured(number: int, postgres: PostgresCluster, source: Path) -> Figures:
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        hosts = stack.enter_context(running(number, postgres.create_database(), folder, source))
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
    kinds: dict[str, tuple[int, Path]] = {"1 host": (1, here), f"{HOSTS} hosts": (HOSTS, here)}
    if options.against is not None:
        kinds[f"{HOSTS} hosts, {options.against}"] = (HOSTS, options.against.resolve())
    rounds: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    progress = Console(stderr=True)
    with private_cluster() as postgres:
        for number in range(options.rounds):
            for kind, (hosts, source) in kinds.items():
                progress.print(f"round {number + 1} of {options.rounds}: {kind}")
                rounds[kind].append(measured(hosts, postgres, source))
    found = {kind: best(figures) for kind, figures in rounds.items()}
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
        ),
        title=f"{CONCURRENCY} workflows at once, {os.cpu_count()} cores, load average {load_average}",
    )
    for kind, figures in found.items():
        ratio = figures.cpu_ms / alone.cpu_ms
        table.add_row(
            kind,
            f"{figures.per_s:,.1f}",
            f"{figures.cpu_ms:.2f}",
            f"{ratio:.2f}",
            f"{figures.postgres_ms:.2f}",
            f"{figures.calls_total:.1f}",
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
