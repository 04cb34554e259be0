"""Servers as a user starts them, on a free loopback port with data in a folder; stopped when the block ends."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import grpc

START_S_MAX = 60.0
STOP_S_MAX = 15.0
LOG_SHOWN_MAX = 3000
SEARCH_ATTRIBUTES = {
    "CustomKeywordField": "Keyword",
    "CustomTextField": "Text",
    "CustomIntField": "Int",
    "CustomDoubleField": "Double",
    "CustomBoolField": "Bool",
    "CustomDatetimeField": "Datetime",
    "CustomKeywordListField": "KeywordList",
}
DATABASE = "server.db"
KINDS = {
    "reference": (str(Path(sys.executable).with_name("temporal")),),
    "fairlead": (sys.executable, "-m", "fairlead"),
}
# The comparison is not about disk speed, so the reference writes without fsync.
EXTRA = {"reference": ("--sqlite-pragma", "synchronous=OFF", "--sqlite-pragma", "journal_mode=MEMORY"), "fairlead": ()}


class ServerFailed(Exception):
    """A server ended or does not respond."""


@contextlib.contextmanager
def serving(kind: str, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server of a kind and yield its address; `kind` may also be the address of a running server.

    `settings` maps dynamic settings to values in JSON.
    """
    if kind not in KINDS:
        yield kind
        return
    port = _free_port()
    arguments = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    arguments += ["--db-filename", str(folder / DATABASE), "--log-level", "error", *EXTRA[kind]]
    for name, value_type in SEARCH_ATTRIBUTES.items():
        arguments += ["--search-attribute", f"{name}={value_type}"]
    for name, value in (settings or {}).items():
        arguments += ["--dynamic-config-value", f"{name}={value}"]
    log_file = folder / "server.log"
    with log_file.open("wb") as log:
        server = subprocess.Popen([*KINDS[kind], *arguments], stdout=log, stderr=log, start_new_session=True)  # noqa: S603
    with stopped(server):
        _wait_until_it_listens(server, port, log_file)
        if kind == "reference":
            _wait_until_it_is_healthy(port)
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Stop the process at the end of the block."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_it_listens(server: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    deadline_s = time.monotonic() + START_S_MAX
    while server.poll() is None and time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise ServerFailed(f"the server did not start:\n{log_file.read_text(errors='replace')[-LOG_SHOWN_MAX:]}")


def _wait_until_it_is_healthy(port: int) -> None:
    """Wait until a server that listens serves calls: on a busy machine, the reference refuses them for a while."""
    deadline_s = time.monotonic() + START_S_MAX
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        path = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"
        call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        while True:
            try:
                call(b"", timeout=START_S_MAX, wait_for_ready=True)
            except grpc.RpcError as failed:
                if failed.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
            else:
                return


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
