"""The cost of TLS and authorization: the server's CPU time for one start of a workflow, beside a server without both.

One server process for each case, with a SQLite file; rounds of starts alternate between them, and the best round of
each counts: timings on a shared machine are noisy, and ratios of figures from the same run are more reliable. The load
generator sends bytes that it computed before: a client that is busier than the server would send its calls in smaller
groups, and a server takes more CPU for a call of a smaller group, with or without authorization.
"""

import argparse
import asyncio
import contextlib
import os
import ssl
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.aims import Aim, show_aims
from benchmarks.growth_stores import scheduled_s
from benchmarks.starts_load import Client, headers_block, request_template
from benchmarks.workflows_servers import COMMANDS, OURS, ServerProcess, await_port, free_port, killed
from fairlead.authorization import access_of
from fairlead.authorization.api_keys import ApiKeys, new_key, store_key
from fairlead.authorization.json_web_keys import KeySource
from fairlead.authorization.json_web_tokens import JwtClaimMapper
from fairlead.storage.memory.history import MemoryHistory
from fairlead.storage.sqlite import SqliteStore
from tests.authorization.tokens import Issuer, bearing, make_gate
from tests.security.certificates import Authority

ROUNDS = 5
STARTS = 1_000
GATE_CALLS = 5_000
IN_FLIGHT = 16
# Share of the CPU time of a start that TLS, and authorization, may cost.
SHARE_MAX = 0.15


@dataclass
class Case:
    """A server and the client's side of it."""

    name: str
    server: ServerProcess
    # For TLS; None for a plain connection.
    context: ssl.SSLContext | None
    headers: bytes
    best_us: float = 1e9


def config_of(folder: Path, port: int, *, tls: bool, authorized: bool, keys: str) -> str:
    lines = [
        f"frontend: {{listen: '127.0.0.1:{port}'}}",
        "listen: 127.0.0.1:0",
        "store: {sqlite: {file: server.db}}",
        "log: {level: error}",
        "global:",
    ]
    if authorized:
        lines.append(
            "  authorization: {authorizer: default, claimMapper: default, "
            f"jwtKeyProvider: {{keySourceURIs: ['{keys}']}}}}"
        )
    if tls:
        lines.append(
            f"  tls: {{frontend: {{server: {{certFile: '{folder}/server.pem', keyFile: '{folder}/server.key'}}}}}}"
        )
    return "\n".join(lines) + "\n"


async def made_key(file: Path) -> str:
    store = await SqliteStore.open(file)
    key, text = new_key("bench", namespace="default", role="writer", now_s=0.0)
    await store_key(store.history, key)
    await store.close()
    return text


@contextlib.contextmanager
def running(folder: Path, name: str, *, tls: bool, token: str, keys: str) -> Iterator[Case]:
    """Run one server; `token` is "", "key" or a token."""
    own = folder / name.replace(" ", "-")
    own.mkdir()
    port = free_port()
    (own / "fairlead.yaml").write_text(config_of(folder, port, tls=tls, authorized=bool(token), keys=keys))
    if token == "key":  # noqa: S105 - the word for it
        token = asyncio.run(made_key(own / "server.db"))
    command = [*COMMANDS[OURS], "server", "start", "--config", str(own / "fairlead.yaml")]
    with (own / "server.log").open("wb") as log, killed(command, log) as process:
        await_port(port, process, own / "server.log")
        context = None
        if tls:
            context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
            context.set_alpn_protocols(["h2"])
        headers = headers_block([("authorization", f"Bearer {token}")] if token else [])
        yield Case(name, ServerProcess(f"localhost:{port}", process.pid), context, headers)


def measure(case: Case, starts: int, in_flight: int) -> None:
    """One round: CPU microseconds of the server for a start."""
    host, _, port = case.server.address.rpartition(":")
    prefix = uuid.uuid4().hex[:14].encode()
    client = Client((host, int(port)), in_flight, request_template(), prefix, case.headers, case.context)
    _run(client, in_flight)
    before_s = scheduled_s(case.server.pid)
    _run(client, starts)
    case.best_us = min(case.best_us, (scheduled_s(case.server.pid) - before_s) / starts * 1e6)
    client.socket.close()
    if client.failed:
        sys.exit(f"{case.name}: {client.failed} starts failed: {client.errors}")


def _run(client: Client, starts: int) -> None:
    """Start workflows, `client.in_flight` at a time, until all have their responses."""
    client.begin(min(client.in_flight, starts))
    left = starts - client.open_calls
    while client.open_calls:
        client.begin(took := min(client.receive(), left))
        left -= took


async def gate_us(folder: Path, *, with_key: bool) -> float:
    """CPU microseconds of the gate alone for a call, with an API key or a JWT that was verified before."""
    store = MemoryHistory()
    key, text = new_key("bench", namespace="default", role="writer", now_s=0.0)
    await store_key(store, key)
    keys = ApiKeys(store)
    await keys.refresh()
    issuer = Issuer.make()
    source = KeySource([issuer.write(folder / "gate.json")], refresh_s=0)
    await source.open()
    gate = make_gate(mapper=JwtClaimMapper(source, permissions_claim="permissions"), api_keys=keys)
    peer = bearing(text if with_key else issuer.token("default:write"))
    access = access_of("temporal.api.workflowservice.v1.WorkflowService", "StartWorkflowExecution")
    await gate.admit(peer, access, "default")
    best_s = 1e9
    for _ in range(ROUNDS):
        before_s = time.process_time()
        for _ in range(GATE_CALLS):
            await gate.admit(peer, access, "default")
        best_s = min(best_s, time.process_time() - before_s)
    await source.close()
    return best_s / GATE_CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--starts", type=int, default=STARTS)
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help="open starts at the same time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        Authority(folder).issue("localhost", file="server")
        issuer = Issuer.make()
        keys = issuer.write(folder / "jwks.json")
        token = issuer.token("default:write")
        cases = [
            stack.enter_context(running(folder, case, tls=tls, token=used, keys=keys))
            for case, tls, used in (
                ("neither", False, ""),
                ("API key", False, "key"),
                ("JWT", False, token),
                ("TLS", True, ""),
                ("TLS and API key", True, "key"),
            )
        ]
        for _ in range(given.rounds):
            for case in cases:
                measure(case, given.starts, given.in_flight)
    with tempfile.TemporaryDirectory() as name:
        alone = [asyncio.run(gate_us(Path(name), with_key=with_key)) for with_key in (True, False)]
    table = Table(
        "", "CPU µs per start", "more than neither", title=f"{os.cpu_count()} cores, Python {sys.version.split()[0]}"
    )
    base = cases[0].best_us
    for case in cases:
        table.add_row(case.name, f"{case.best_us:.0f}", f"{case.best_us / base - 1:+.1%}")
    Console().print(table)
    Console().print(f"the gate alone: {alone[0]:.1f} µs per call with an API key, {alone[1]:.1f} with a JWT")
    # The aim is a factor, since a share near 0 has no ratio to its aim.
    aims = [
        Aim(
            f"CPU of a start with {case.name}, times that with neither",
            case.best_us / base,
            1 + SHARE_MAX,
            "less",
            reached_min=1.0,
        )
        for case in cases[1:]
    ]
    if missed := show_aims(aims):
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main()
