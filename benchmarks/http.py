"""Measures the HTTP server's CPU time per call and its import, beside uvicorn alone and Starlette on uvicorn.

    python -m benchmarks.http
    pip install uvicorn starlette && python -m benchmarks.http    # with the two others

Each server is a process of its own that answers a small JSON body to a POST with a small JSON body; Starlette has 228
routes, as many as the HTTP API has bindings, and the request is for one in the middle. A client on one connection sends
one request after another. `the HTTP API` is a development server: a signal to a workflow, by HTTP and by gRPC.
"""
# ruff: noqa: PLC0415, S603 - each process imports only its own server; all commands are ours

import argparse
import asyncio
import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable

import grpc
from rich.console import Console
from rich.table import Table
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest

from benchmarks.startup import cpu_clock
from benchmarks.workflows_servers import free_port
from fairlead.http import Request, Response, bound_socket

CALLS = 3_000
ROUNDS = 3
BODY = b'{"input":["x"]}'
REPLY = b'{"a":1}'
PATH = "/api/v1/namespaces/default/workflows/w/signal/s"
# CPU seconds of the imports that all servers of this benchmark share; they are subtracted.
_BEGAN_S = time.process_time()
SIGNAL = "/temporal.api.workflowservice.v1.WorkflowService/SignalWorkflowExecution"


def serve_ours(port: int) -> None:
    import uvloop

    from fairlead.http.server import HttpServer

    async def handle(_: Request) -> Response:
        return Response(200, REPLY, "application/json")

    async def serve() -> None:
        await HttpServer(handle).start(bound_socket("127.0.0.1", port, key="port"))
        _ready()
        await asyncio.Event().wait()

    uvloop.run(serve())


def serve_uvicorn(port: int) -> None:
    import uvicorn

    async def app(_scope: object, receive: Callable, send: Callable) -> None:  # type: ignore[type-arg]
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(REPLY))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": REPLY})

    _run_uvicorn(uvicorn, app, port)


def serve_starlette(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request as StarletteRequest
    from starlette.responses import Response as StarletteResponse
    from starlette.routing import Route

    async def handle(request: StarletteRequest) -> StarletteResponse:
        await request.body()
        return StarletteResponse(REPLY, media_type="application/json")

    names = [f"other{number}" for number in range(114)] + ["workflows"] + [f"more{number}" for number in range(113)]
    paths = [f"/api/v1/namespaces/{{namespace}}/{name}/{{id}}/signal/{{signal}}" for name in names]
    _run_uvicorn(uvicorn, Starlette(routes=[Route(path, handle, methods=["POST"]) for path in paths]), port)


def _run_uvicorn(uvicorn: object, app: object, port: int) -> None:
    config = uvicorn.Config(  # type: ignore[attr-defined]
        app, port=port, log_level="critical", lifespan="off", access_log=False, loop="uvloop", http="httptools"
    )
    _ready()
    uvicorn.Server(config).run()  # type: ignore[attr-defined]


def _ready() -> None:
    print(time.process_time() - _BEGAN_S, flush=True)


SERVERS: dict[str, tuple[Callable[[int], None], tuple[str, ...]]] = {
    "fairlead.http": (serve_ours, ()),
    "uvicorn": (serve_uvicorn, ("uvicorn",)),
    "Starlette on uvicorn": (serve_starlette, ("uvicorn", "starlette")),
}


def calls_by_http(port: int, calls: int) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    request = (head + f"Content-Length: {len(BODY)}\r\n\r\n").encode() + BODY
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(calls):
            client.sendall(request)
            data = client.recv(65_536)
            if not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data.decode())
            # Read on: some servers write the head and the body separately.
            while not data.endswith(b"}"):
                data = client.recv(65_536)


def calls_by_grpc(port: int, calls: int) -> None:
    request = SignalWorkflowExecutionRequest(
        namespace="default", workflow_execution=WorkflowExecution(workflow_id="w"), signal_name="s"
    )
    request.input.payloads.add(metadata={"encoding": b"json/plain"}, data=b'"x"')
    data = request.SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(SIGNAL, bytes, bytes)
        for _ in range(calls):
            call(data)


def cpu_us(process_id: int, call: Callable[[int], None], calls: int) -> float:
    """CPU microseconds of the process per call: the lowest of several rounds."""
    call(calls // 10)
    found = []
    for _ in range(ROUNDS):
        began_s = time.clock_gettime(cpu_clock(process_id))
        call(calls)
        found.append((time.clock_gettime(cpu_clock(process_id)) - began_s) / calls * 1e6)
    return min(found)


def measure_server(name: str, calls: int) -> dict[str, float]:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.http", "--serve", name, "--port", str(port)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            ready_s = float(process.stdout.readline())
            _wait_for(port)
            return {
                "cpu_us_a_call": cpu_us(process.pid, lambda count: calls_by_http(port, count), calls),
                "cpu_s_to_load": ready_s,
            }
        finally:
            process.kill()


def measure_api(calls: int) -> dict[str, float]:
    port, http_port = free_port(), free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--headless"]
    with subprocess.Popen(
        [*command, "--port", str(port), "--http-port", str(http_port)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101
            while b"Ready" not in process.stdout.readline():
                pass
            start = f"http://127.0.0.1:{http_port}/api/v1/namespaces/default/workflows/w"
            body = json.dumps({"workflowType": {"name": "T"}, "taskQueue": {"name": "q"}}).encode()
            with urllib.request.urlopen(urllib.request.Request(start, body, method="POST")):
                pass
            by_http = cpu_us(process.pid, lambda count: calls_by_http(http_port, count), calls)
            by_grpc = cpu_us(process.pid, lambda count: calls_by_grpc(port, count), calls)
            return {"http_cpu_us_a_call": by_http, "grpc_cpu_us_a_call": by_grpc}
        finally:
            process.kill()


def _wait_for(port: int) -> None:
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                return
        except ConnectionRefusedError:
            time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve][0](options.port)
        return
    found = {
        name: measure_server(name, options.calls)
        for name, (_, needed) in SERVERS.items()
        if all(importlib.util.find_spec(package) for package in needed)
    }
    # A workflow has at most 10,000 signals.
    api = measure_api(min(options.calls, 1_000))
    if options.json:
        print(json.dumps({"servers": found, "api": api}, indent=2))
        return
    table = Table("server", "CPU per call", "ratio", "CPU to load it")
    ours = found["fairlead.http"]["cpu_us_a_call"]
    for name, figures in found.items():
        ratio = f"{figures['cpu_us_a_call'] / ours:.1f}"
        table.add_row(name, f"{figures['cpu_us_a_call']:.0f} µs", ratio, f"{figures['cpu_s_to_load'] * 1000:.0f} ms")
    console = Console()
    console.print(table)
    times = api["http_cpu_us_a_call"] / api["grpc_cpu_us_a_call"]
    console.print(
        f"the HTTP API: a signal takes {api['http_cpu_us_a_call']:.0f} µs by HTTP, "
        f"{api['grpc_cpu_us_a_call']:.0f} µs by gRPC: {times:.2f} times as much"
    )


if __name__ == "__main__":
    main()
