"""The cost of TLS and authorization: the server's CPU time for one start of a workflow, beside a server without both.

One server process for each case, with a SQLite file; rounds of starts alternate between them, and the best round of
each counts: timings on a shared machine are noisy, and ratios of figures from the same run are more reliable.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from rich.console import Console
from rich.table import Table
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest

from benchmarks.aims import Aim, show_aims
from benchmarks.growth_stores import scheduled_s
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
START = "/temporal.api.workflowservice.v1.WorkflowService/StartWorkflowExecution"


@dataclass
class Case:
    """A server and the client's side of it."""

    name: str
    server: ServerProcess
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]
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
        credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes()) if tls else None
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        yield Case(name, ServerProcess(f"localhost:{port}", process.pid), credentials, metadata)


def request() -> bytes:
    return StartWorkflowExecutionRequest(
        namespace="default",
        workflow_id=str(uuid.uuid4()),
        workflow_type=WorkflowType(name="T"),
        task_queue=TaskQueue(name="bench"),
        request_id=str(uuid.uuid4()),
        identity="bench",
        workflow_run_timeout=Duration(seconds=3600),
    ).SerializeToString()


async def measure(case: Case, starts: int) -> None:
    """One round: CPU microseconds of the server for a start."""
    channel = (
        grpc.aio.insecure_channel(case.server.address)
        if case.credentials is None
        else grpc.aio.secure_channel(case.server.address, case.credentials)
    )
    async with channel:
        send: Any = channel.unary_unary(START, None, None)
        await asyncio.gather(*(send(request(), metadata=case.metadata) for _ in range(IN_FLIGHT)))
        left = starts

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await send(request(), metadata=case.metadata)

        before_s = scheduled_s(case.server.pid)
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        case.best_us = min(case.best_us, (scheduled_s(case.server.pid) - before_s) / starts * 1e6)


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
                asyncio.run(measure(case, given.starts))
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
