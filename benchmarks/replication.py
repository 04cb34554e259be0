"""Cost of a second cluster for the first, and whether it keeps up: three servers on loopback, each with a SQLite file.

One server is alone. The other two share a global namespace: one, the writer, is active, the other, the follower,
replicates. The load (workflows with one activity, a worker of the Python SDK) goes to the lone server and to the pair
in turn, so that other load on the machine disturbs both alike.

All servers share the same cores, so the follower's work lowers the writer's workflows per second as well. The cost for
the writer itself is its CPU time per workflow, measured at the same pace for both, below their capacity: a busier
server needs less CPU per workflow.

Then the follower is stopped while the writer continues, and started again: its speed of catching up is its capacity.
"""

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import grpc
import uvloop
from google.protobuf.duration_pb2 import Duration
from rich.console import Console
from rich.table import Table
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from benchmarks.workflows import SETTLE_S, measured
from benchmarks.workflows_load import NAMESPACE, SIGNALED, RawClient, at_once, connect, run_one
from benchmarks.workflows_servers import ServerProcess, await_port, free_port, killed
from fairlead.cli.dev_server import parse_namespaces
from fairlead.server import Server
from fairlead.settings.static.config import Address, ClusterConfig, RemoteClusterConfig, SqliteConfig, StaticConfig

GLOBAL_NAMESPACE = "shared"
ALONE, PAIR = "alone", "pair"
COST_MAX = 0.25
# Events of a workflow with one activity.
EVENTS_A_WORKFLOW = 11
# Share of the pair's capacity at which CPU time is measured.
PACE = 0.6
WARM_UP_S = 2.0
SAMPLE_S = 0.25
KEEPS_UP_S = 2.0
CAUGHT_UP_S_MAX = 300.0
READ_S_MAX = 60.0
NAMES = ("a", "b")


@dataclass(frozen=True)
class Size:
    """Durations of the parts, and the number of signals that the follower has to catch up."""

    rounds: int
    load_s: float
    backlog: int


FULL = Size(rounds=7, load_s=3.0, backlog=20_000)
QUICK = Size(rounds=3, load_s=2.0, backlog=6_000)


@dataclass(frozen=True)
class Ports:
    """Ports of a server: for SDKs and other clusters, and for its metrics."""

    frontend: int
    metrics: int


@dataclass
class Load:
    """A server under load: workflows per second, and CPU milliseconds per workflow at a given pace, for each round."""

    server: ServerProcess
    client: Client
    per_s: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    async def once(self, load_s: float) -> None:
        """Run as many workflows as the server can."""
        per_s, _ = await measured(self.server, lambda: run_one(self.client), duration_s=load_s)
        self.per_s.append(per_s)

    async def paced(self, load_s: float, per_s: float) -> int:
        """Run workflows at a given pace; return their number."""
        count = round(load_s * per_s)
        cpu_s, began_s = self.server.cpu_s(), time.perf_counter()

        async def one(number: int) -> None:
            await asyncio.sleep(max(0.0, began_s + number / per_s - time.perf_counter()))
            await run_one(self.client)

        await asyncio.gather(*map(one, range(count)))
        await asyncio.sleep(SETTLE_S)
        self.cpu_ms.append((self.server.cpu_s() - cpu_s) / count * 1e3)
        return count


class Follower:
    """Metrics of the follower."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def samples(self) -> dict[str, float]:
        """Samples of the replication metrics, by name and labels."""

        def read() -> str:
            with urllib.request.urlopen(self._url, timeout=READ_S_MAX) as page:  # noqa: S310 - it is our own
                text: str = page.read().decode()
                return text

        lines = (await asyncio.to_thread(read)).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line.startswith("replication_"))
        return {name: float(value) for name, _, value in pairs}

    async def behind(self) -> float:
        """Number of tasks that the follower has not applied."""
        return sum(value for name, value in (await self.samples()).items() if name.startswith("replication_tasks_lag"))

    async def until_even(self, seconds_max: float) -> float:
        """Seconds until the follower has applied everything."""
        began_s = time.perf_counter()
        quiet = 0
        while quiet < 2:
            if time.perf_counter() - began_s > seconds_max:
                return math.inf
            quiet = quiet + 1 if not await self.behind() else 0
            if quiet < 2:
                await asyncio.sleep(0.05)
        return time.perf_counter() - began_s


def buckets_of(samples: dict[str, float]) -> dict[float, float]:
    """Number of tasks within each latency bound, all streams together."""
    found: dict[float, float] = {}
    for name, value in samples.items():
        if name.startswith("replication_latency_bucket"):
            bound = float(name.partition('le="')[2].partition('"')[0])
            found[bound] = found.get(bound, 0.0) + value
    return found


def quantile(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """Quantile of the latencies between two samples, interpolated linearly within a bucket."""
    counts = [(bound, after[bound] - before.get(bound, 0.0)) for bound in sorted(after)]
    wanted = share * counts[-1][1]
    low, passed = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            return bound if math.isinf(bound) else low + (bound - low) * (wanted - passed) / max(1.0, count - passed)
        low, passed = bound, count
    return math.inf


# Servers


def start(stack: ExitStack, folder: Path, name: str, ports: Ports, others: dict[str, Ports]) -> ServerProcess:
    folder.mkdir(exist_ok=True)
    log = stack.enter_context((folder / "log").open("ab"))
    reported = json.dumps({other: ports.frontend for other, ports in others.items()})
    command = [sys.executable, "-m", "benchmarks.replication", "serve", name, str(ports.frontend), str(ports.metrics)]
    process = stack.enter_context(killed([*command, str(folder), reported], log))
    await_port(ports.frontend, process, folder / "log")
    return ServerProcess(f"127.0.0.1:{ports.frontend}", process.pid)


def start_worker(stack: ExitStack, folder: Path, server: ServerProcess, namespace: str) -> None:
    log = stack.enter_context((folder / "worker.log").open("ab"))
    stack.enter_context(killed([sys.executable, "-m", "benchmarks.workflows_load", server.address, namespace], log))


async def serve(name: str, port: str, metrics_port: str, folder: str, others: str) -> None:
    """Run a server as `fairlead server start-dev` does; with `others`, as one of several clusters."""
    remotes: dict[str, int] = json.loads(others)
    addresses = {**remotes, name: int(port)}
    versions = {each: number for number, each in enumerate(sorted(addresses), 1)}
    cluster = ClusterConfig(
        name,
        versions[name],
        10,
        {each: RemoteClusterConfig(versions[each], f"127.0.0.1:{remotes[each]}") for each in remotes},
    )
    config = StaticConfig(
        frontend_listen=Address("127.0.0.1", int(port)),
        listen=Address("127.0.0.1", 0),
        metrics_listen=Address("127.0.0.1", int(metrics_port)),
        store=SqliteConfig(Path(folder) / "server.db"),
        namespaces=parse_namespaces((), ()),
        cluster=cluster if remotes else None,
    )
    server = Server(config)
    await server.start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, stopped.set)
    await stopped.wait()
    await server.stop()


async def share_namespace(client: Client, other: Client) -> None:
    """Register the global namespace in one cluster, and wait until the other has it."""
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(
            namespace=GLOBAL_NAMESPACE,
            workflow_execution_retention_period=Duration(seconds=86_400),
            is_global_namespace=True,
            active_cluster_name=NAMES[0],
            clusters=[ClusterReplicationConfig(cluster_name=name) for name in NAMES],
        )
    )
    await connect(other.service_client.config.target_host, GLOBAL_NAMESPACE)


# Measurements


async def measure(folder: Path, size: Size) -> dict[str, float]:
    with ExitStack() as stack:
        ports = {name: Ports(free_port(), free_port()) for name in (ALONE, *NAMES)}
        alone = start(stack, folder / ALONE, ALONE, ports[ALONE], {})
        writer = start(stack, folder / "a", "a", ports["a"], {"b": ports["b"]})
        following = stack.enter_context(ExitStack())
        second = start(following, folder / "b", "b", ports["b"], {"a": ports["a"]})
        await share_namespace(await connect(writer.address), await connect(second.address))
        loads = {
            ALONE: Load(alone, await connect(alone.address)),
            PAIR: Load(writer, await connect(writer.address, GLOBAL_NAMESPACE)),
        }
        start_worker(stack, folder, alone, NAMESPACE)
        start_worker(stack, folder, writer, GLOBAL_NAMESPACE)
        for load in loads.values():
            await at_once(lambda load=load: run_one(load.client), duration_s=WARM_UP_S)  # type: ignore[misc]
        follower = Follower(ports["b"].metrics)
        await follower.until_even(CAUGHT_UP_S_MAX)
        figures = await _by_turns(loads, second, follower, size)
        following.close()
        figures |= await _caught_up(stack, folder, ports, writer, size)
        return figures


async def _by_turns(loads: dict[str, Load], second: ServerProcess, follower: Follower, size: Size) -> dict[str, float]:
    before = buckets_of(await follower.samples())
    even_after_s: list[float] = []
    for number in range(size.rounds):
        for kind in (ALONE, PAIR) if number % 2 else (PAIR, ALONE):
            await loads[kind].once(size.load_s)
            if kind == PAIR:
                even_after_s.append(await follower.until_even(CAUGHT_UP_S_MAX))
    after = buckets_of(await follower.samples())
    rates = {kind: median(load.per_s) for kind, load in loads.items()}
    pairs = zip(loads[PAIR].per_s, loads[ALONE].per_s, strict=True)
    return {
        "alone_per_s": rates[ALONE],
        "pair_per_s": rates[PAIR],
        "alone_events_per_s": rates[ALONE] * EVENTS_A_WORKFLOW,
        "pair_events_per_s": rates[PAIR] * EVENTS_A_WORKFLOW,
        "throughput_cost": 1 - median([pair / alone for pair, alone in pairs]),
        "lag_ms_p50": quantile(before, after, 0.5) * 1e3,
        "lag_ms_p99": quantile(before, after, 0.99) * 1e3,
        "even_after_s": max(even_after_s),
        **await _by_pace(loads, second, follower, size, per_s=PACE * rates[PAIR]),
    }


async def _by_pace(
    loads: dict[str, Load], second: ServerProcess, follower: Follower, size: Size, *, per_s: float
) -> dict[str, float]:
    before = buckets_of(await follower.samples())
    follower_cpu_s, workflows = 0.0, 0
    for number in range(size.rounds):
        for kind in (ALONE, PAIR) if number % 2 else (PAIR, ALONE):
            cpu_s = second.cpu_s()
            count = await loads[kind].paced(size.load_s, per_s)
            if kind == PAIR:
                follower_cpu_s += second.cpu_s() - cpu_s
                workflows += count
    after = buckets_of(await follower.samples())
    costs = zip(loads[PAIR].cpu_ms, loads[ALONE].cpu_ms, strict=True)
    return {
        "paced_per_s": per_s,
        "alone_cpu_ms": median(loads[ALONE].cpu_ms),
        "pair_cpu_ms": median(loads[PAIR].cpu_ms),
        # On its own cores, a server's throughput falls as the CPU time per workflow rises.
        "own_throughput_cost": 1 - median([alone / pair for pair, alone in costs]),
        "follower_cpu_ms": follower_cpu_s / workflows * 1e3,
        "paced_lag_ms_p50": quantile(before, after, 0.5) * 1e3,
        "paced_lag_ms_p99": quantile(before, after, 0.99) * 1e3,
    }


async def _caught_up(
    stack: ExitStack, folder: Path, ports: dict[str, Ports], writer: ServerProcess, size: Size
) -> dict[str, float]:
    """Let the writer run without the follower; then measure how fast the follower catches up, and both CPU times."""
    client = await RawClient.connected(writer.address, GLOBAL_NAMESPACE)
    names = [f"signaled-{number}" for number in range(SIGNALED)]
    await asyncio.gather(*(client.start(name) for name in names))
    turns = iter(range(size.backlog))

    async def signal() -> None:
        name = names[next(turns) % SIGNALED]
        while True:
            try:
                await client.signal(name)
            except grpc.aio.AioRpcError as refused:
                # On a busy machine, a server may miss its heartbeats for a while.
                if refused.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    await at_once(signal, duration_s=CAUGHT_UP_S_MAX, calls_max=size.backlog)
    await client.close()
    second = start(stack, folder / "b", "b", ports["b"], {"a": ports["a"]})
    follower = Follower(ports["b"].metrics)
    began_s, writer_cpu_s = time.perf_counter(), writer.cpu_s()
    while not await _sees_stream(follower):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.02)
    await follower.until_even(CAUGHT_UP_S_MAX)
    took_s = time.perf_counter() - began_s
    return {
        "caught_up_events_per_s": size.backlog / took_s,
        "caught_up_cpu_us": second.cpu_s() / size.backlog * 1e6,
        "sent_cpu_us": (writer.cpu_s() - writer_cpu_s) / size.backlog * 1e6,
    }


async def _sees_stream(follower: Follower) -> bool:
    samples = await follower.samples()
    return any(name.startswith("replication_latency_count") and value for name, value in samples.items())


ROWS = (
    ("alone_per_s", "workflows per second, a cluster alone"),
    ("pair_per_s", "workflows per second, with a cluster that follows, on the same cores"),
    ("throughput_cost", "share of throughput lost, with the follower's work on the same cores"),
    ("alone_events_per_s", "events per second, alone"),
    ("pair_events_per_s", "events per second written, and applied by the follower"),
    ("paced_per_s", "workflows per second of both when CPU time is measured"),
    ("alone_cpu_ms", "CPU ms per workflow, alone"),
    ("pair_cpu_ms", "CPU ms per workflow of the writing server, with a follower"),
    ("own_throughput_cost", "share of throughput lost by the writing server, by its own CPU time"),
    ("follower_cpu_ms", "CPU ms per workflow of the follower"),
    ("paced_lag_ms_p50", "ms from the write until the follower has applied it, at that pace, p50"),
    ("paced_lag_ms_p99", "ms from the write until the follower has applied it, at that pace, p99"),
    ("lag_ms_p50", "ms from the write until the follower has applied it, at full load, p50"),
    ("lag_ms_p99", "ms from the write until the follower has applied it, at full load, p99"),
    ("even_after_s", "maximum seconds after a round until the follower has applied all"),
    ("caught_up_events_per_s", "events per second when catching up, start of the server included"),
    ("caught_up_cpu_us", "CPU us per event of the follower when catching up"),
    ("sent_cpu_us", "CPU us per event of the sender when catching up"),
)


def show(figures: dict[str, float], size: Size) -> None:
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    title = f"medians of {size.rounds} rounds, {os.cpu_count()} cores, load average {load}"
    table = Table("", "", title=title)
    for name, words in ROWS:
        table.add_row(words, f"{figures[name]:,.2f}")
    Console().print(table)


def missed(figures: dict[str, float]) -> list[str]:
    """Missed targets."""
    found = []
    cost = figures["own_throughput_cost"]
    if cost > COST_MAX:
        found.append(f"a follower costs the writing server {cost:.0%} of its throughput, at most {COST_MAX:.0%}")
    if figures["even_after_s"] > KEEPS_UP_S:
        found.append(f"the follower did not keep up: {figures['even_after_s']:.1f} s after a round, it lacked events")
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replication", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds: a minute")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the table")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
        figures = uvloop.run(measure(Path(folder), size))
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg(), "figures": figures}, indent=2))
    else:
        show(figures, size)
    if problems := missed(figures):
        sys.exit("; ".join(problems))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(*sys.argv[2:]))
    else:
        main(sys.argv[1:])
