"""Starts the two servers as a user does, each with a file on disk, and reads their CPU time and memory."""

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
# Options for the reference server with which acknowledged writes may be lost if the machine crashes.
UNSYNCED = ("--sqlite-pragma", "synchronous=OFF", "--sqlite-pragma", "journal_mode=MEMORY")
READY_S_MAX = 60.0
STOP_S_MAX = 15.0


@dataclass(frozen=True)
class ServerProcess:
    address: str
    pid: int

    def cpu_s(self) -> float:
        """Seconds of CPU time used so far, with its children."""
        return sum(_cpu_s(pid) for pid in family(self.pid))

    def resident_mb(self) -> float:
        """Resident memory in MB, with its children."""
        return sum(_resident_bytes(pid) for pid in family(self.pid)) / 1e6


@contextlib.contextmanager
def server_process(kind: str, folder: Path, extra: Sequence[str] = ()) -> Iterator[ServerProcess]:
    """Run a new server with its default settings and the extra ones until the block ends."""
    port = free_port()
    arguments = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    arguments += ["--db-filename", str(folder / "server.db"), "--log-level", "error", *extra]
    with (folder / "server.log").open("wb") as log, killed([*COMMANDS[kind], *arguments], log) as process:
        await_port(port, process, folder / "server.log")
        yield ServerProcess(f"127.0.0.1:{port}", process.pid)


@contextlib.contextmanager
def killed(command: list[str], log: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a process; kill it when the block ends."""
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
    """Wait until a process listens on the port."""
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


def family(pid: int) -> list[int]:
    """The process, its children, and theirs."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in task.read_text().split():
                found += family(int(child))
    return found


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended meanwhile; its time is included in its parent's.
        return 0.0
    # User and system time of the process, then of its ended children.
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
