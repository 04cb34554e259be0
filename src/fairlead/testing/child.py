"""A server in a child process, which ends with its parent."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from fairlead.core.errors import RetryLater
from fairlead.settings import Plain

READY_S_MAX = 30.0
STOPPED_S_MAX = 15.0


class ChildFailed(RetryLater):
    """The child process did not become ready."""


@contextmanager
def child(
    *,
    namespaces: Sequence[str],
    search_attributes: Mapping[str, str],
    db_filename: Path | None,
    dynamic_config: Mapping[str, Plain],
) -> Iterator[str]:
    """Run `fairlead server start-dev` on a free port; yields its address."""
    arguments = ["--port", "0", "--headless", "--log-level", "warn", "--stop-with-input"]
    for name in namespaces:
        arguments += ["--namespace", name]
    for name, kind in search_attributes.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    for key, value in dynamic_config.items():
        arguments += ["--dynamic-config-value", f"{key}={json.dumps(value)}"]
    if db_filename is not None:
        arguments += ["--db-filename", str(db_filename)]
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "fairlead", "server", "start-dev", *arguments],
        # The server stops when this pipe closes, so it also stops if the tests are killed.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    try:
        yield _address(process)
    finally:
        _stop(process)


def _address(process: "subprocess.Popen[str]") -> str:
    """Wait until the server prints that it is ready; return its address."""
    assert process.stdout is not None  # noqa: S101 - it has a pipe
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
    address = ""
    while True:
        try:
            line = lines.get(timeout=READY_S_MAX)
        except Empty:
            raise ChildFailed(f"the server was not ready within {READY_S_MAX:g} s: is the machine very busy?") from None
        if line.startswith("Server:"):
            address = line.removeprefix("Server:").strip()
        elif line.startswith("Ready"):
            return address
        elif not line:
            code = process.wait(STOPPED_S_MAX)
            raise ChildFailed(f"the server ended with {code} before it was ready: see what it wrote to standard error")


def _read(output: IO[str], lines: "SimpleQueue[str]") -> None:
    for line in output:
        lines.put(line.rstrip("\n") or " ")
    lines.put("")


def _stop(process: "subprocess.Popen[str]") -> None:
    try:
        if process.stdin is not None:
            process.stdin.close()
        process.wait(STOPPED_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()
