"""Starts workflows as fast as a server can: speaks just enough gRPC to cost a fraction of the server's CPU.

Run as a program, it prints one JSON object: the number of starts, the errors, the CPU seconds of this process, and
latencies. The bytes of a request are computed once; only the ids in it change.
"""

import argparse
import json
import os
import selectors
import socket
import ssl
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import temporalio.api.workflowservice.v1 as api
from google.protobuf.duration_pb2 import Duration
from temporalio.api.common.v1 import WorkflowType
from temporalio.api.taskqueue.v1 import TaskQueue

from fairlead.rpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    window_update,
)
from fairlead.rpc.header_block import literal
from fairlead.rpc.message import framed

PATH = "/temporal.api.workflowservice.v1.WorkflowService/StartWorkflowExecution"
# Trailers of a successful call, as the server encodes them; any other trailers mean an error.
OK_TRAILERS = literal(b"grpc-status", b"0")
ID_CHARACTERS = 24
RECEIVE_BYTES = 256 * 1024
# Seconds for open calls to end after the last call was sent.
DRAIN_S_MAX = 30.0
ERRORS_KEPT_MAX = 5

HEADERS_LIST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "127.0.0.1"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("grpc-timeout", "30S"),
    ("client-name", "temporal-python"),
    ("client-version", "1.35.0"),
    ("temporal-namespace", "default"),
)


def headers_block(more: Sequence[tuple[str, str]] = ()) -> bytes:
    """The headers of each call, encoded."""
    return b"".join(literal(name.encode(), value.encode()) for name, value in (*HEADERS_LIST, *more))


def request_template() -> bytes:
    """The bytes of a request, with `%s` in place of the workflow id and of the request id."""
    workflow_id, request_id = b"w" * ID_CHARACTERS, b"r" * ID_CHARACTERS
    request = api.StartWorkflowExecutionRequest(
        namespace="default",
        workflow_id=workflow_id.decode(),
        workflow_type=WorkflowType(name="Greeting"),
        task_queue=TaskQueue(name="nobody"),
        workflow_task_timeout=Duration(seconds=10),
        identity="bench",
        request_id=request_id.decode(),
    )
    encoded = request.SerializeToString().replace(b"%", b"%%")
    return encoded.replace(workflow_id, b"%(id)s").replace(request_id, b"%(id)s")


@dataclass
class Client:
    """One connection with a fixed number of open calls."""

    address: tuple[str, int]
    in_flight: int
    message: bytes
    prefix: bytes
    headers: bytes = field(default_factory=headers_block)
    # For TLS; None for a plain connection.
    context: ssl.SSLContext | None = None
    latencies_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    failed: int = 0
    acknowledged: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(self.address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.context is not None:
            self.socket = self.context.wrap_socket(self.socket, server_hostname=self.address[0])
        self._rest = b""
        self._stream_id = -1
        self._began: dict[int, tuple[float, bytes]] = {}
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0) + window_update(0, 2**30))
        self.socket.settimeout(DRAIN_S_MAX)

    @property
    def open_calls(self) -> int:
        return len(self._began)

    def begin(self, calls: int) -> None:
        """Send new calls."""
        out = []
        now_s = time.perf_counter()
        for _ in range(calls):
            self._stream_id += 2
            stream_id = self._stream_id
            own_id = b"%s%0*x" % (self.prefix, ID_CHARACTERS - len(self.prefix), stream_id)
            self._began[stream_id] = (now_s, own_id)
            out.append(frame(HEADERS, END_HEADERS, stream_id, self.headers))
            out.append(frame(DATA, END_STREAM, stream_id, framed(self.message % {b"id": own_id})))
        self.socket.sendall(b"".join(out))

    def receive(self) -> int:
        """Read the responses that are there; returns the number of calls that ended."""
        received = self.socket.recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        data = self._rest + received
        position, ended, returned_bytes = 0, 0, 0
        now_s = time.perf_counter()
        while len(data) - position >= 9:
            length, low, kind, flags, stream_id = FRAME_HEADER.unpack_from(data, position)
            begin = position + 9
            end = begin + (length << 8 | low)
            if end > len(data):
                break
            position = end
            if kind == DATA:
                returned_bytes += end - begin
            elif kind == PING and not flags:
                self.socket.sendall(frame(PING, 1, 0, data[begin:end]))
            elif (kind == HEADERS and flags & END_STREAM) or kind == RST_STREAM:
                ended += 1
                began_s, own_id = self._began.pop(stream_id)
                if data[begin:end] == OK_TRAILERS:
                    self.latencies_s.append(now_s - began_s)
                    self.acknowledged.append(own_id)
                else:
                    self.failed += 1
                    if len(self.errors) < ERRORS_KEPT_MAX:
                        self.errors.append(repr(data[begin:end]))
        self._rest = data[position:]
        if returned_bytes:
            # The window is given back in batches, as clients do.
            self.socket.sendall(window_update(0, returned_bytes))
        return ended


def run(address: str, *, connections: int, in_flight: int, warm_up: int, duration_s: float) -> dict[str, object]:
    """Keep `in_flight` calls open for `duration_s` after the first `warm_up` calls, which do not count."""
    host, _, port = address.rpartition(":")
    template = request_template()
    # A new prefix for each connection: no two runs start the same workflow.
    clients = [
        Client((host, int(port)), in_flight // connections, template, uuid.uuid4().hex[:14].encode())
        for _ in range(connections)
    ]
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.begin(client.in_flight)
    is_warm, begin_s, cpu_s = False, time.perf_counter(), time.process_time()
    while not is_warm or time.perf_counter() < begin_s + duration_s:
        if not is_warm and sum(len(client.latencies_s) for client in clients) >= warm_up:
            is_warm, begin_s, cpu_s = True, time.perf_counter(), time.process_time()
            print("warm", flush=True)
            for client in clients:
                client.latencies_s.clear()
        for key, _ in selector.select(timeout=0.1):
            ended = key.data.receive()
            if ended:
                key.data.begin(ended)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    latencies_s = sorted(latency_s for client in clients for latency_s in client.latencies_s)
    print("done", flush=True)
    for client in clients:
        while client.open_calls:
            client.receive()
        client.socket.close()
    count = len(latencies_s)
    return {
        "starts": count,
        "took_s": took_s,
        "cpu_s": cpu_s,
        "failed": sum(client.failed for client in clients),
        "errors": [error for client in clients for error in client.errors][:ERRORS_KEPT_MAX],
        "p50_ms": latencies_s[count // 2] * 1e3 if count else None,
        "p99_ms": latencies_s[count * 99 // 100] * 1e3 if count else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts_load", description=__doc__)
    parser.add_argument("address", help="the frontend's address, host:port")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=100, help="open calls of all connections together")
    parser.add_argument(
        "--warm-up", type=int, default=3_000, metavar="STARTS", help="starts before the measurement begins"
    )
    parser.add_argument("--duration", type=float, default=5.0, metavar="SECONDS")
    options = parser.parse_args()
    result = run(
        options.address,
        connections=options.connections,
        in_flight=options.in_flight,
        warm_up=options.warm_up,
        duration_s=options.duration,
    )
    print(json.dumps(result), flush=True)
    sys.exit(os.EX_OK if not result["failed"] else os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
