"""Starts per second, and the CPU of each part for a start: server, PostgreSQL and load generator.

A server is started as a user starts it, on a new SQLite file or on a private PostgreSQL with fsync. The load generator
(`benchmarks.starts_load`) keeps 100 calls of StartWorkflowExecution open. No worker polls, so every start ends with a
task in matching's backlog. All parts share the machine's cores: CPU per start shows what more cores would allow.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.aims import RATIO_REACHED_MIN, Aim, show_aims
from benchmarks.workflows_servers import OURS, ServerProcess, await_port, free_port, killed, server_process
from tests.storage.postgres_cluster import PostgresCluster, private_cluster

# Starts per second on SQLite, on PostgreSQL with one process, and CPU milliseconds of PostgreSQL per start: the aims.
SQLITE_STARTS_PER_S_TARGET = 3_000
STARTS_PER_S_TARGET = 1_500
POSTGRES_CPU_MS_TARGET = 0.8
# Starts per second of two processes, as a multiple of one.
PROCESSES_RATIO_TARGET = 1.6
# CPU per start of two processes, as a multiple of one, with which two cores would do that.
PROCESSES_CPU_RATIO_MAX = 1.25
SETTLE_S = 1.0


@dataclass(frozen=True)
class Figures:
    """Figures of one run; CPU in milliseconds per start."""

    starts_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_ms: float
    postgres_cpu_ms: float
    load_cpu_ms: float
    # Transactions and fsyncs of PostgreSQL's log, per start.
    transactions: float
    syncs: float
    failed: int


@dataclass(frozen=True)
class PostgresProcess:
    """The private server of PostgreSQL: its CPU time, transactions and fsyncs so far."""

    cluster: PostgresCluster
    dsn: str

    def pid(self) -> int:
        return int((self.cluster.folder / "data" / "postmaster.pid").read_text().split()[0])

    def cpu_s(self) -> float:
        return ServerProcess("", self.pid()).cpu_s()

    def counts(self) -> tuple[int, int]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(
                "SELECT xact_commit, (SELECT wal_sync FROM pg_stat_wal) FROM pg_stat_database"
                " WHERE datname = current_database()"
            ).fetchone()
        return row or (0, 0)


@contextlib.contextmanager
def on_postgres(folder: Path, processes: int, extra: list[str]) -> Iterator[tuple[ServerProcess, PostgresProcess]]:
    """Run a server on a private PostgreSQL."""
    with private_cluster() as cluster:
        dsn = cluster.create_database()
        port = free_port()
        (folder / "server.yaml").write_text(
            f"listen: 127.0.0.1:0\nfrontend: {{listen: '127.0.0.1:{port}'}}\n"
            "store: {postgres: {dsnEnv: FAIRLEAD_DSN}}\nlog: {level: error}\nstop: {handOver: 0s, grace: 1s}\n"
            "namespaces: [{name: default}]\n"
        )
        os.environ["FAIRLEAD_DSN"] = dsn
        command = [sys.executable, "-m", "fairlead", "server", "start", "--config", str(folder / "server.yaml"), *extra]
        if processes > 1:
            command += ["--processes", str(processes)]
        with (folder / "server.log").open("wb") as log, killed(command, log) as process:
            await_port(port, process, folder / "server.log")
            # The port is open before all processes are ready.
            while "Fairlead is ready" not in (folder / "server.log").read_text():
                if process.poll() is not None:
                    sys.exit(f"the server did not start: {(folder / 'server.log').read_text()}")
                time.sleep(0.1)
            yield ServerProcess(f"127.0.0.1:{port}", process.pid), PostgresProcess(cluster, dsn)


@contextlib.contextmanager
def on_sqlite(folder: Path) -> Iterator[tuple[ServerProcess, None]]:
    with server_process(OURS, folder) as server:
        yield server, None


def measure(server: ServerProcess, postgres: PostgresProcess | None, options: argparse.Namespace) -> Figures:
    """One run of the load generator."""
    command = [sys.executable, "-m", "benchmarks.starts_load", server.address]
    command += ["--connections", str(options.connections), "--in-flight", str(options.in_flight)]
    command += ["--duration", str(options.duration), "--warm-up", str(options.warm_up)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:  # noqa: S603 - our own arguments
        assert load.stdout is not None  # noqa: S101 - it was asked for
        load.stdout.readline()
        server_cpu_s = server.cpu_s()
        postgres_cpu_s = postgres.cpu_s() if postgres else 0.0
        counts = postgres.counts() if postgres else (0, 0)
        load.stdout.readline()
        server_cpu_s = server.cpu_s() - server_cpu_s
        postgres_cpu_s = postgres.cpu_s() - postgres_cpu_s if postgres else 0.0
        counts_after = postgres.counts() if postgres else (0, 0)
        result = json.loads(load.stdout.readline())
    if result["errors"]:
        Console(stderr=True).print(f"{result['failed']} failed: {result['errors']}")
    starts = max(1, result["starts"])
    return Figures(
        starts_per_s=result["starts"] / result["took_s"],
        p50_ms=result["p50_ms"] or 0.0,
        p99_ms=result["p99_ms"] or 0.0,
        server_cpu_ms=server_cpu_s / starts * 1e3,
        postgres_cpu_ms=postgres_cpu_s / starts * 1e3,
        load_cpu_ms=result["cpu_s"] / starts * 1e3,
        transactions=(counts_after[0] - counts[0]) / starts,
        syncs=(counts_after[1] - counts[1]) / starts,
        failed=result["failed"],
    )


def run(kind: str, options: argparse.Namespace) -> Figures:
    """Measure one kind of server, `sqlite` or the number of processes on PostgreSQL, from an empty store."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as name:
        folder = Path(name)
        serving = on_sqlite(folder) if kind == "sqlite" else on_postgres(folder, int(kind), options.extra)
        with serving as (server, postgres):
            time.sleep(SETTLE_S)
            return measure(server, postgres, options)


def aims(best: dict[str, Figures]) -> list[Aim]:
    """The aims of the kinds that were measured."""
    found = []
    sqlite, one, two = best.get("sqlite"), best.get("1"), best.get("2")
    if sqlite:
        found.append(Aim("starts per second, SQLite", sqlite.starts_per_s, SQLITE_STARTS_PER_S_TARGET))
    if one:
        found.append(Aim("starts per second, PostgreSQL", one.starts_per_s, STARTS_PER_S_TARGET))
        found.append(Aim("PostgreSQL's CPU ms per start", one.postgres_cpu_ms, POSTGRES_CPU_MS_TARGET, "less"))
    if one and two:
        ratio = two.starts_per_s / one.starts_per_s
        title = "starts of 2 processes against 1"
        found.append(Aim(title, ratio, PROCESSES_RATIO_TARGET, reached_min=RATIO_REACHED_MIN))
        ratio = two.server_cpu_ms / one.server_cpu_ms
        title = "server CPU per start, 2 processes against 1"
        found.append(Aim(title, ratio, PROCESSES_CPU_RATIO_MAX, "less", reached_min=RATIO_REACHED_MIN))
    return found


def show(kinds: list[str], best: dict[str, Figures]) -> None:
    """Print the table."""
    titles = {"sqlite": "SQLite", **{kind: f"PostgreSQL, {kind} process(es)" for kind in kinds if kind != "sqlite"}}
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table("", *(titles[kind] for kind in kinds), title=f"{os.cpu_count()} cores, load average {load}")
    for title, name, digits in (
        ("starts per second", "starts_per_s", 0),
        ("latency ms, p50", "p50_ms", 1),
        ("latency ms, p99", "p99_ms", 1),
        ("server CPU ms per start", "server_cpu_ms", 3),
        ("PostgreSQL CPU ms per start", "postgres_cpu_ms", 3),
        ("load generator CPU ms per start", "load_cpu_ms", 3),
        ("transactions per start", "transactions", 3),
        ("fsyncs per start", "syncs", 3),
        ("failed", "failed", 0),
    ):
        table.add_row(title, *(f"{getattr(best[kind], name):,.{digits}f}" for kind in kinds))
    Console(width=130).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", default=["sqlite", "1", "2"], help="sqlite, or the number of processes on PostgreSQL: 1, 2"
    )
    parser.add_argument("--rounds", type=int, default=3, help="the best round of each kind counts")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=3_000, metavar="STARTS", help="starts that do not count")
    parser.add_argument("--duration", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument("--extra", nargs="*", default=[], help="more arguments for the server on PostgreSQL")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args()
    rounds: dict[str, list[Figures]] = {kind: [] for kind in options.kinds}
    for number in range(options.rounds):
        for kind in options.kinds:
            Console(stderr=True).print(f"round {number + 1} of {options.rounds}: {kind}")
            rounds[kind].append(run(kind, options))
    best = {kind: max(figures, key=lambda one: one.starts_per_s) for kind, figures in rounds.items()}
    if options.json:
        print(json.dumps({kind: [vars(one) for one in figures] for kind, figures in rounds.items()}, indent=2))
        return
    show(options.kinds, best)
    missed = show_aims(aims(best))
    if missed:
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
