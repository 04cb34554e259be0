"""Calls of a bystander while a peer attacks the server: `python -m benchmarks.abuse`.

Each attack runs in a process of its own and connects again whenever the server cuts it off. Meanwhile a bystander calls
GetSystemInfo, one call after another. Prints the bystander's median and 99th percentile in milliseconds, for Fairlead
and beside it for `temporal server start-dev`, the calls that the server refused, and its memory at its peak. Exits with
1 if an attack makes Fairlead's 99th percentile longer than 100 ms, or makes it refuse the bystander; on a busy machine,
only the comparison of the two servers counts.

The last attacks have no counterpart beside them: they are on a server with authorization and a secret of its hosts, on
the host's own port, on the HTTP port, and with calls that are refused.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.workflows_servers import (
    COMMANDS,
    OURS,
    REFERENCE,
    ServerProcess,
    await_port,
    free_port,
    killed,
    server_process,
)
from fairlead.rpc.client import Channel, NotSent, RemoteStatus
from fairlead.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTING,
    SETTING_INITIAL_WINDOW,
    SETTINGS,
    UINT32,
    frame,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.message import framed

SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
SIMPLE = SERVICE + "GetSystemInfo"
P99_MS_MAX = 100.0
PAUSE_S = 0.002
WARM_UP_CALLS = 50
BOMB_BYTES = 4_400_000
# Bytes of one write of an attack, and seconds after which an attack gives up on a server that does not read.
WRITE_BYTES = 65_536
WRITE_S_MAX = 2.0


def block(path: str, *extra: tuple[str, str]) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test"), ("te", "trailers")]
    fields += [("content-type", "application/grpc"), *extra]
    return b"".join(literal(name.encode(), value.encode()) for name, value in fields)


def headers(number: int, head: bytes, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, 2 * number + 1, head)


def settings_of_many_streams() -> Iterator[bytes]:
    """4,000 open streams, and SETTINGS with 2,700 entries that change all their windows."""
    yield b"".join(headers(number, block(SIMPLE)) for number in range(4_000))
    entries = b"".join(SETTING.pack(SETTING_INITIAL_WINDOW, 65_535 + number % 2) for number in range(2_700))
    for _ in range(50):
        yield frame(SETTINGS, 0, 0, entries)


def short_settings_of_many_streams() -> Iterator[bytes]:
    yield b"".join(headers(number, block(SIMPLE)) for number in range(4_000))
    for number in range(2_000):
        yield frame(SETTINGS, 0, 0, SETTING.pack(SETTING_INITIAL_WINDOW, 65_535 + number % 2))


def tiny_data() -> Iterator[bytes]:
    yield headers(0, block(SIMPLE)) + frame(DATA, 0, 1, b"\x00" + UINT32.pack(1_000_000))
    yield frame(DATA, 0, 1, b"x") * 60_000


def unknown_methods() -> Iterator[bytes]:
    for number in range(100_000):
        yield headers(number, block("/no.Service/Method"), END_HEADERS | END_STREAM)


def compressed_bombs() -> Iterator[bytes]:
    """Requests of 4.4 kB that grow to 4.4 MB."""
    bomb = gzip.compress(bytes(BOMB_BYTES))
    message = b"\x01" + UINT32.pack(len(bomb)) + bomb
    head = block(SERVICE + "StartWorkflowExecution", ("grpc-encoding", "gzip"))
    for number in range(180):
        yield headers(number, head) + frame(DATA, END_STREAM, 2 * number + 1, message)


def rapid_resets() -> Iterator[bytes]:
    head = block(SIMPLE)
    for number in range(10_000):
        yield headers(number, head) + frame(RST_STREAM, 0, 2 * number + 1, UINT32.pack(8))


def pings() -> Iterator[bytes]:
    for _ in range(100):
        yield frame(PING, 0, 0, bytes(8)) * 1_000


def open_calls_and_leave() -> Iterator[bytes]:
    """4,000 calls without their requests, then the connection ends."""
    yield b"".join(headers(number, block(SIMPLE)) for number in range(4_000))


def calls_at_once() -> Iterator[bytes]:
    head = block(SIMPLE)
    for number in range(20_000):
        yield headers(number, head) + frame(DATA, END_STREAM, 2 * number + 1, framed(b""))


def large_headers() -> Iterator[bytes]:
    """Calls with 240 short header fields, in two frames each."""
    head = block(SIMPLE) + b"".join(literal(b"a%d" % number, b"") for number in range(240))
    for number in range(2_000):
        yield headers(number, head[:1_000], 0) + frame(CONTINUATION, END_HEADERS, 2 * number + 1, head[1_000:])


def refused_calls(path: str) -> Iterator[bytes]:
    """20,000 calls without a credential."""
    head = block(path)
    for number in range(20_000):
        yield headers(number, head) + frame(DATA, END_STREAM, 2 * number + 1, framed(bytes(100)))


def resets_of(path: str) -> Iterator[bytes]:
    head = block(path)
    for number in range(10_000):
        yield headers(number, head) + frame(RST_STREAM, 0, 2 * number + 1, UINT32.pack(8))


def half_sent_bodies() -> Iterator[bytes]:
    """256 requests of four megabytes each; only the first 48 kB of each are sent."""
    head = block(HOST_METHOD)
    for number in range(256):
        yield headers(number, head) + frame(DATA, 0, 2 * number + 1, b"\x00" + UINT32.pack(4_000_000))
        yield frame(DATA, 0, 2 * number + 1, bytes(16_000)) * 3


def http_requests() -> Iterator[bytes]:
    """20,000 requests without a credential, sent without waiting for the responses."""
    yield b"GET /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000


def http_half_sent() -> Iterator[bytes]:
    """A request of a megabyte; only 64 kB of it are sent."""
    yield b"POST /api/v1/namespaces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    yield b"Content-Length: 1000000\r\n\r\n" + bytes(65_536)


@dataclass(frozen=True)
class LockedAttack:
    """An attack on one port of a server with authorization, by some connections at once."""

    port: str
    parts: Callable[[], Iterator[bytes]]
    connections: int = 1


HOST_METHOD = "/fairlead/matching.Poll"
LOCKED_ATTACKS = {
    "refused calls": LockedAttack("sdk", partial(refused_calls, SERVICE + "StartWorkflowExecution")),
    "host: refused calls": LockedAttack("host", partial(refused_calls, HOST_METHOD)),
    "host: rapid resets": LockedAttack("host", partial(resets_of, HOST_METHOD)),
    "host: half-sent bodies": LockedAttack("host", half_sent_bodies, connections=20),
    "HTTP: refused requests": LockedAttack("http", http_requests),
    "HTTP: half-sent bodies": LockedAttack("http", http_half_sent, connections=100),
}

ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "SETTINGS of 2,700 entries": settings_of_many_streams,
    "2,000 short SETTINGS": short_settings_of_many_streams,
    "60,000 tiny DATA frames": tiny_data,
    "100,000 unknown methods": unknown_methods,
    "gzip bombs": compressed_bombs,
    "rapid resets": rapid_resets,
    "pings": pings,
    "4,000 open calls, then gone": open_calls_and_leave,
    "20,000 calls at once": calls_at_once,
    "large headers": large_headers,
}


def attack(name: str, address: str, seconds: float) -> None:
    """Attack until the time is over, with a new connection whenever one ends."""
    host, _, port = address.rpartition(":")
    locked = LOCKED_ATTACKS.get(name)
    frames = b"".join(ATTACKS[name]() if locked is None else locked.parts())
    if locked is None or locked.port != "http":
        frames = PREFACE + frame(SETTINGS, 0, 0) + frames
    until_s = time.monotonic() + seconds
    others = [
        threading.Thread(target=_attack, args=((host, int(port)), frames, until_s))
        for _ in range(0 if locked is None else locked.connections - 1)
    ]
    for other in others:
        other.start()
    _attack((host, int(port)), frames, until_s)
    for other in others:
        other.join()


def _attack(target: tuple[str, int], frames: bytes, until_s: float) -> None:
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError), socket.create_connection(target, timeout=WRITE_S_MAX) as peer:
            threading.Thread(target=_read_all, args=(peer,), daemon=True).start()
            for at in range(0, len(frames), WRITE_BYTES):
                peer.sendall(frames[at : at + WRITE_BYTES])
                if time.monotonic() > until_s:
                    return
            time.sleep(0.05)


def _read_all(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while peer.recv(2**20):
            pass


class Figures(NamedTuple):
    """The bystander's median and 99th percentile in milliseconds, the calls that the server refused to answer, of how
    many, and the server's peak memory in MB.
    """

    p50_ms: float
    p99_ms: float
    refused: int
    calls: int
    peak_mb: float

    def __str__(self) -> str:
        refused = f", {self.refused} of {self.calls} refused" if self.refused else ""
        return f"{self.p50_ms:.1f} / {self.p99_ms:.1f}{refused}, {self.peak_mb:.0f} MB"


async def bystander(address: str, until_s: float) -> tuple[list[float], int]:
    """Call one method, one call after another; return the time of each in milliseconds, and the number of calls that
    the server refused.
    """
    took_ms: list[float] = []
    refused = 0
    async with Channel(address) as channel:
        while time.monotonic() < until_s:
            began_s = time.perf_counter()
            try:
                await channel.unary(SIMPLE, b"", timeout_s=10)
            except (NotSent, RemoteStatus):
                refused += 1
            took_ms.append((time.perf_counter() - began_s) * 1_000)
            await asyncio.sleep(PAUSE_S)
    return took_ms, refused


async def measure(server: ServerProcess, name: str | None, seconds: float, *, target: str = "") -> Figures:
    """Measure a bystander during an attack on `target`, which is the address for SDKs if it is empty."""
    target = target or server.address
    command = (sys.executable, "-m", "benchmarks.abuse", "--attack", str(name), target, str(seconds))
    attacking = None if name is None else await asyncio.create_subprocess_exec(*command)
    peak_mb = server.resident_mb()

    async def watch() -> None:
        nonlocal peak_mb
        while True:
            peak_mb = max(peak_mb, server.resident_mb())
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    # The attack's process takes a moment to start.
    await asyncio.sleep(0.5 if attacking else 0)
    took_ms, refused = await bystander(server.address, time.monotonic() + seconds)
    watching.cancel()
    if attacking is not None:
        await attacking.wait()
    p99_ms = statistics.quantiles(took_ms, n=100)[-1]
    return Figures(statistics.median(took_ms), p99_ms, refused, len(took_ms), peak_mb)


def run(kind: str, seconds: float) -> dict[str, Figures]:
    """Measure every attack on one server, each with a new process of the server."""
    found = {}
    for name in (None, *ATTACKS):
        with tempfile.TemporaryDirectory() as folder, server_process(kind, Path(folder)) as server:
            asyncio.run(bystander(server.address, time.monotonic() + 0.5))
            found[name or "no attack"] = asyncio.run(measure(server, name, seconds))
    return found


@contextlib.contextmanager
def locked_server(folder: Path) -> Iterator[tuple[ServerProcess, dict[str, str]]]:
    """Run a server with authorization and a secret; yields it, and the addresses of its ports."""
    ports = {name: free_port() for name in ("sdk", "host", "http")}
    addresses = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    (folder / "secret").write_text(secrets.token_hex(32))
    config = {
        "frontend": {"listen": addresses["sdk"], "http": {"listen": addresses["http"]}},
        "listen": addresses["host"],
        "store": {"sqlite": {"file": "server.db"}},
        "internode": {"secretFile": "secret"},
        "global": {"authorization": {"authorizer": "default"}},
        "log": {"level": "error"},
    }
    (folder / "server.yaml").write_text(json.dumps(config))
    command = [*COMMANDS[OURS], "server", "start", "--config", str(folder / "server.yaml")]
    with (folder / "server.log").open("wb") as log, killed(command, log) as process:
        for port in ports.values():
            await_port(port, process, folder / "server.log")
        yield ServerProcess(addresses["sdk"], process.pid), addresses


def run_locked(seconds: float) -> dict[str, Figures]:
    """Measure the attacks on a server with authorization, each with a new process of it."""
    found = {}
    for name, one in LOCKED_ATTACKS.items():
        with tempfile.TemporaryDirectory() as folder, locked_server(Path(folder)) as (server, addresses):
            asyncio.run(bystander(server.address, time.monotonic() + 0.5))
            found[name] = asyncio.run(measure(server, name, seconds, target=addresses[one.port]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.abuse", description=__doc__)
    parser.add_argument("--attack", nargs=3, metavar=("NAME", "ADDRESS", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="run each attack for 1 s, and only against Fairlead")
    arguments = parser.parse_args()
    if arguments.attack:
        name, address, seconds = arguments.attack
        attack(name, address, float(seconds))
        return
    seconds = 1.0 if arguments.quick else 4.0
    kinds = [OURS] if arguments.quick or not Path(COMMANDS[REFERENCE][0]).exists() else [OURS, REFERENCE]
    found = {kind: run(kind, seconds) for kind in kinds}
    found[OURS] |= run_locked(seconds)
    table = Table(title=f"a bystander's call, {seconds:g} s per attack: median / 99th percentile in ms, peak MB")
    table.add_column("attack")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for name in found[OURS]:
        cells = [str(found[kind].get(name, "")) for kind in kinds]
        table.add_row(name, *cells)
    Console().print(table)
    if refused := [name for name, figures in found[OURS].items() if figures.refused]:
        sys.exit(f"calls of the bystander were refused: {', '.join(refused)}")
    slow = {name: figures.p99_ms for name, figures in found[OURS].items() if figures.p99_ms > P99_MS_MAX}
    if slow:
        worst = ", ".join(f"{name} {p99:.0f} ms" for name, p99 in slow.items())
        sys.exit(f"above {P99_MS_MAX:g} ms at the 99th percentile: {worst}")


if __name__ == "__main__":
    main()
