"""Our gRPC server beside grpc.aio's: CPU per call, calls per second, memory.

Each server runs on uvloop in its own process and echoes 300 bytes; the clients run in other processes, with 100 calls
in flight. The rounds alternate, and each server's best round counts: timings on a shared machine are noisy, and ratios
of figures from the same run are more reliable than the figures.

CPU is measured with C-core's client, which is too slow to keep either server busy. Calls per second are measured with
two processes that speak just enough HTTP/2 to keep either server busy all the time.

Then calls between two processes, both sides ours and both sides grpc.aio's: see benchmarks/rpc_pairs.py.
"""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import uvloop
from hpack import Encoder
from rich.console import Console
from rich.table import Table

from benchmarks import rpc_pairs
from fairlead.rpc import RpcServer
from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    window_update,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.message import framed

PAYLOAD = bytes(300)
IN_FLIGHT = 100
CHANNELS = 4
ROUNDS = 3
ROUND_S = 3.0
RAW_CLIENTS = 2
CPU_RATIO_TARGET = 3.0
SERVERS = ("fairlead.rpc", "grpc.aio")
ECHO, WAIT = "/bench.Service/Echo", "/bench.Service/Wait"
# Headers that Temporal's clients send.
METADATA = (("client-name", "temporal-python"), ("client-version", "1.35.0"), ("temporal-namespace", "default"))

CONNECTIONS = 500
STREAMS = 4_000


async def echo(request: bytes, _: Any) -> bytes:
    return request


async def wait(_: bytes, __: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


async def serve(kind: str) -> None:
    handlers = {ECHO: echo, WAIT: wait}
    server: Any
    if kind == "fairlead.rpc":
        server = RpcServer("127.0.0.1:0")
        for path, handler in handlers.items():
            server.add(path, handler)
        address = await server.start()
    else:
        server = grpc.aio.server()
        methods: Any = {
            path.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(handler) for path, handler in handlers.items()
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Service", methods)])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
    print(address, flush=True)
    await asyncio.Event().wait()


@dataclass(frozen=True)
class ServerProcess:
    address: str
    pid: int

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def server_process(kind: str) -> Iterator[ServerProcess]:
    with start("serve", kind) as process:
        try:
            yield ServerProcess(first_line(process), process.pid)
        finally:
            process.kill()


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "benchmarks.rpc", *arguments], stdout=subprocess.PIPE, text=True
    )


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    return process.stdout.readline().strip()


def measured(server: ServerProcess, client: str, *, clients: int) -> tuple[float, float]:
    """Calls per second, and the server's CPU microseconds per call, with a number of clients of a kind."""
    cpu_s = server.cpu_s()
    processes = [start(client, server.address) for _ in range(clients)]
    calls = 0
    for process in processes:
        with process:
            calls += int(first_line(process))
    return calls / ROUND_S, (server.cpu_s() - cpu_s) / calls * 1e6


async def c_core_client(address: str) -> int:
    """Echo with C-core's client for a round; return the number of calls."""
    channels: list[Any] = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(CHANNELS)
    ]
    echoes = [channel.unary_unary(ECHO) for channel in channels]
    await asyncio.gather(*(_call(call) for call in echoes))
    calls = 0
    end_s = time.perf_counter() + ROUND_S

    async def caller(number: int) -> None:
        nonlocal calls
        call = echoes[number % CHANNELS]
        while time.perf_counter() < end_s:
            await call(PAYLOAD, timeout=30, metadata=METADATA)
            calls += 1

    await asyncio.gather(*(caller(number) for number in range(IN_FLIGHT)))
    return calls


async def _call(call: Any) -> None:
    await call(PAYLOAD)


def call_headers(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "127.0.0.1"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", "30S"),
        *METADATA,
    ]


def raw_client(address: str) -> int:
    """Echo as fast as the server can for a round; return the number of calls."""
    host, _, port = address.rpartition(":")
    headers = call_headers(ECHO)
    encoder = Encoder()
    first, block = encoder.encode(headers), encoder.encode(headers)
    message = framed(PAYLOAD)
    done = 0
    rest = b""
    with socket.create_connection((host, int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + window_update(0, 2**30))

        def call(stream_id: int) -> bytes:
            head = frame(HEADERS, END_HEADERS, stream_id, first if stream_id == 1 else block)
            return head + frame(DATA, END_STREAM, stream_id, message)

        stream_id = 2 * (IN_FLIGHT // RAW_CLIENTS) - 1
        connection.sendall(b"".join(call(number) for number in range(1, stream_id + 1, 2)))
        end_s = time.perf_counter() + ROUND_S
        while time.perf_counter() < end_s:
            data = rest + connection.recv(256 * 1024)
            position, ended = 0, 0
            while len(data) - position >= 9:
                length, low, kind, flags, _ = FRAME_HEADER.unpack_from(data, position)
                position_next = position + 9 + (length << 8 | low)
                if position_next > len(data):
                    break
                position = position_next
                ended += kind == HEADERS and bool(flags & END_STREAM)
            rest = data[position:]
            done += ended
            if ended:
                out = []
                for _ in range(ended):
                    stream_id += 2
                    out.append(call(stream_id))
                # Window is given back in batches, as clients do.
                connection.sendall(b"".join(out) + window_update(0, ended * len(message)))
    return done


def memory(server: ServerProcess) -> tuple[float, float]:
    """Kilobytes per idle connection and per open stream."""
    host, _, port = server.address.rpartition(":")
    before_bytes = server.resident_bytes()
    connections = [socket.create_connection((host, int(port))) for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.sendall(PREFACE + frame(SETTINGS, 0, 0))
    time.sleep(1)
    connected_bytes = server.resident_bytes()
    block = b"".join(literal(name.encode(), value.encode()) for name, value in call_headers(WAIT))
    message = framed(PAYLOAD)
    for number in range(STREAMS):
        connection, stream_id = connections[number % CONNECTIONS], 2 * (number // CONNECTIONS) + 1
        connection.sendall(frame(HEADERS, END_HEADERS, stream_id, block) + frame(DATA, END_STREAM, stream_id, message))
    time.sleep(4)
    opened_bytes = server.resident_bytes()
    for connection in connections:
        connection.close()
    return (connected_bytes - before_bytes) / CONNECTIONS / 1e3, (opened_bytes - connected_bytes) / STREAMS / 1e3


def main() -> None:
    figures: dict[str, list[float]] = {}
    c_core: dict[str, list[tuple[float, float]]] = {kind: [] for kind in SERVERS}
    raw: dict[str, list[tuple[float, float]]] = {kind: [] for kind in SERVERS}
    console = Console(stderr=True)
    for number in range(ROUNDS):
        for kind in SERVERS:
            console.print(f"round {number + 1} of {ROUNDS}: {kind}")
            with server_process(kind) as server:
                c_core[kind].append(measured(server, "c-core", clients=1))
                raw[kind].append(measured(server, "raw", clients=RAW_CLIENTS))
    for kind in SERVERS:
        with server_process(kind) as server:
            connection_kb, stream_kb = memory(server)
        figures[kind] = [
            min(cpu_us for _, cpu_us in c_core[kind]),
            max(per_s for per_s, _ in c_core[kind]),
            min(cpu_us for _, cpu_us in raw[kind]),
            max(per_s for per_s, _ in raw[kind]),
            connection_kb,
            stream_kb,
        ]
    rows = (
        "server CPU µs per call, C-core's client",
        "calls per second, C-core's client (it is the bottleneck)",
        "server CPU µs per call, server busy",
        "calls per second, server busy",
        "KB per idle connection",
        "KB per open stream",
    )
    table = Table(
        "", *SERVERS, "ratio", title=f"echo of {len(PAYLOAD)} bytes, {IN_FLIGHT} in flight, {os.cpu_count()} cores"
    )
    ours, theirs = (figures[kind] for kind in SERVERS)
    for row, our, their in zip(rows, ours, theirs, strict=True):
        ratio = our / their if "per second" in row else their / our
        table.add_row(row, f"{our:,.1f}", f"{their:,.1f}", f"{ratio:.1f} times better")
    Console().print(table)
    missed = rpc_pairs.run()
    ratio = theirs[0] / ours[0]
    if ratio < CPU_RATIO_TARGET:
        missed.append(
            f"fairlead.rpc takes {ratio:.1f} times less CPU per call, less than the {CPU_RATIO_TARGET} aimed at"
        )
    if missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(sys.argv[2]))
    elif sys.argv[1:2] == ["c-core"]:
        print(uvloop.run(c_core_client(sys.argv[2])))
    elif sys.argv[1:2] == ["raw"]:
        print(raw_client(sys.argv[2]))
    else:
        main()
