"""The two servers as a user starts them, each with a file on disk, and what they take of the machine."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

OURS, REFERENCE = "fairlead", "temporal"
SERVERS = (OURS, REFERENCE)
COMMANDS = {
    OURS: (sys.executable, "-m", "fairlead"),
    REFERENCE: (str(Path(sys.executable).with_name("temporal")),),
}
# For the reference: what was acknowledged may be lost with the machine.
UNSYNCED = ("--sqlite-pragma", "synchronous=OFF", "--sqlite-pragma", "journal_mode=MEMORY")
READY_S_MAX = 60.0
STOP_S_MAX = 15.0


@dataclass(frozen=True)
class ServerProcess:
    address: str
    pid: int

    def cpu_s(self) -> float:
        """What it has used so far, its children too."""
        return sum(_cpu_s(pid) for pid in _family(self.pid))

    def resident_mb(self) -> float:
        """What it has in memory, its children too."""
        return sum(_resident_bytes(pid) for pid in _family(self.pid)) / 1e6


@contextlib.contextmanager
def server_process(kind: str, folder: Path, extra: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """A new server with the settings that it comes with, but for the extra ones; gone when the block ends."""
    port = free_port()
    arguments = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    arguments += ["--db-filename", str(folder / "server.db"), "--log-level", "error", *extra]
    with (folder / "server.log").open("wb") as log, killed([*COMMANDS[kind], *arguments], log) as process:
        await_port(port, process, folder / "server.log")
        yield ServerProcess(f"127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def killed(command: list[str], log: object) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that does not outlive the block."""
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # type: ignore[call-overload] # noqa: S603
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Until somebody listens there."""
    deadline_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline_s and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    sys.exit(f"the server did not start: {log.read_text()}")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += _family(int(child))
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # User and system; then the same of children that have ended.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
