"""Calls between two processes: our client and server beside grpc.aio's, CPU of both sides together.

Each pair is two processes on uvloop with one connection and 100 calls in flight (or `--in-flight N`); a call echoes 300
bytes. Three pairs:

- hosts: `GrpcCaller` and `GrpcServer`, as hosts of a cluster call each other, with typed messages and errors
- rpc: `Channel` and `RpcServer` alone, with bytes
- grpc.aio: both sides of grpcio, with bytes

The rounds alternate, and each pair's best round counts. Ratios of figures of one run are more reliable than figures.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.aims import RATIO_REACHED_MIN, Aim, show_aims
from fairlead.api.codes import code_of
from fairlead.rpc import RpcServer
from fairlead.rpc.client import Channel
from fairlead.rpc.hosts.caller import Handlers, Method
from fairlead.rpc.hosts.grpc_caller import GrpcCaller
from fairlead.rpc.hosts.grpc_server import GrpcServer
from fairlead.rpc.hosts.wire import Errors

PAYLOAD = bytes(300)
IN_FLIGHT = 100
ROUNDS = 3
ROUND_S = 3.0
TIMEOUT_S = 30.0
PAIRS = ("hosts", "rpc", "grpc.aio")
PATH = "/bench.Service/Echo"
# The aims of calls between hosts.
CALLS_PER_S_MIN = 25_000
CPU_RATIO_MIN = 8.0


class Echo(msgspec.Struct, frozen=True, array_like=True):
    data: bytes


ECHO = Method("bench.Echo", Echo, Echo)


async def serve(kind: str) -> None:
    server: Any
    if kind == "hosts":
        handlers = Handlers()
        handlers.add(ECHO, _echo_typed)
        server = GrpcServer(handlers, errors=Errors(), code_of=code_of)
        address = await server.start()
    elif kind == "rpc":
        server = RpcServer("127.0.0.1:0")
        server.add(PATH, _echo)
        address = await server.start()
    else:
        import grpc  # noqa: PLC0415 - only for this pair

        server = grpc.aio.server()
        method: Any = grpc.unary_unary_rpc_method_handler(_echo)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Service", {"Echo": method})])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
    print(address, flush=True)
    await asyncio.Event().wait()


async def _echo(request: bytes, _: Any) -> bytes:
    return request


async def _echo_typed(request: Echo) -> Echo:
    return request


async def call(kind: str, address: str, in_flight: int) -> None:
    """Echo for a round; print the number of calls and the CPU seconds that they took here."""
    one = _caller(kind, address)
    await one()
    calls = 0
    end_s = time.perf_counter() + ROUND_S

    async def caller() -> None:
        nonlocal calls
        while time.perf_counter() < end_s:
            await one()
            calls += 1

    cpu_s = time.process_time()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    print(calls, time.process_time() - cpu_s)


def _caller(kind: str, address: str) -> Callable[[], Awaitable[Any]]:
    if kind == "hosts":
        caller, request = GrpcCaller(errors=Errors()), Echo(PAYLOAD)
        return lambda: caller.call(address, ECHO, request, timeout_s=TIMEOUT_S)
    if kind == "rpc":
        channel = Channel(address)
        return lambda: channel.unary(PATH, PAYLOAD, timeout_s=TIMEOUT_S)
    import grpc  # noqa: PLC0415 - only for this pair

    channel_of_grpc: Any = grpc.aio.insecure_channel(address)
    send = channel_of_grpc.unary_unary(PATH)
    return lambda: send(PAYLOAD, timeout=TIMEOUT_S)


@dataclass(frozen=True)
class Figures:
    """Calls per second, and CPU microseconds per call of the client and of the server."""

    per_s: float
    client_us: float
    server_us: float

    @property
    def both_us(self) -> float:
        return self.client_us + self.server_us


def measured(kind: str, in_flight: int) -> Figures:
    with _process("serve", kind) as server:
        try:
            address = _line(server)
            cpu_s = _cpu_s(server.pid)
            with _process("call", kind, address, str(in_flight)) as client:
                calls, client_s = _line(client).split()
            server_s = _cpu_s(server.pid) - cpu_s
        finally:
            server.kill()
    return Figures(int(calls) / ROUND_S, float(client_s) / int(calls) * 1e6, server_s / int(calls) * 1e6)


def _process(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "benchmarks.rpc_pairs", *arguments], stdout=subprocess.PIPE, text=True
    )


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    return process.stdout.readline().strip()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(in_flight: int = IN_FLIGHT) -> list[str]:
    """Measure and print all pairs; return the missed aims. The aims apply only to 100 calls in flight."""
    console = Console(stderr=True)
    rounds: dict[str, list[Figures]] = {kind: [] for kind in PAIRS}
    for number in range(ROUNDS):
        for kind in PAIRS:
            console.print(f"pairs, round {number + 1} of {ROUNDS}: {kind}")
            rounds[kind].append(measured(kind, in_flight))
    best = {
        kind: Figures(
            max(each.per_s for each in figures),
            min(each.client_us for each in figures),
            min(each.server_us for each in figures),
        )
        for kind, figures in rounds.items()
    }
    theirs = best["grpc.aio"]
    table = Table(
        *("pair", "calls per second", "client µs", "server µs", "both µs", "grpc.aio's CPU, as a multiple"),
        title=f"two processes, echo of {len(PAYLOAD)} bytes, {in_flight} in flight, {os.cpu_count()} cores",
    )
    for kind, each in best.items():
        table.add_row(
            kind,
            f"{each.per_s:,.0f}",
            f"{each.client_us:.1f}",
            f"{each.server_us:.1f}",
            f"{each.both_us:.1f}",
            f"{theirs.both_us / each.both_us:.1f} times",
        )
    Console().print(table)
    hosts = best["hosts"]
    if in_flight != IN_FLIGHT:
        return []
    rate = Aim("calls per second between two hosts", hosts.per_s, CALLS_PER_S_MIN)
    title = "grpc.aio's CPU per call against ours"
    cpu = Aim(title, theirs.both_us / hosts.both_us, CPU_RATIO_MIN, reached_min=RATIO_REACHED_MIN)
    missed = show_aims([rate, cpu])
    if rate.is_missed:
        # On a busy machine, compute the rate from the CPU time per call: it shows what two free cores would reach.
        free_per_s = 1e6 / max(hosts.client_us, hosts.server_us)
        if os.getloadavg()[0] > (os.cpu_count() or 1) + 2 and free_per_s > 1.5 * CALLS_PER_S_MIN:
            console.print(f"{rate}; the machine is busy, by CPU per call it is {free_per_s:,.0f}")
            missed.remove(str(rate))
    return missed


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(sys.argv[2]))
    elif sys.argv[1:2] == ["call"]:
        uvloop.run(call(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        parser = argparse.ArgumentParser(prog="python -m benchmarks.rpc_pairs", description=__doc__)
        parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, metavar="N")
        sys.exit("\n".join(run(parser.parse_args().in_flight)) or None)
