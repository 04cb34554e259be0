"""Measures CPU and wall time from process start to the first answered call, for Fairlead and Temporal's server.

    python -m benchmarks.startup            # five rounds
    python -m benchmarks.startup --rounds 15 --json

Each server is started as a user starts it. A gRPC client repeats GetSystemInfo, the first call of every SDK, until the
server answers. The CPU time is read from the clock of the server's process at that moment, without the client's. The
rounds alternate between the servers. The output shows the median and the range for each server. Wall time depends most
on the load of the machine, CPU time less, and the ratio of two medians of one run least.

`no bytecode` is an installation that was never compiled and can't be, for example because it is read-only: Python
compiles every module at every start. `--version` and `--help` measure the whole run of the command.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from rich.console import Console
from rich.table import Table
from temporalio.api.workflowservice.v1 import GetSystemInfoResponse

from benchmarks.aims import RATIO_REACHED_MIN, Aim, show_aims
from benchmarks.workflows_servers import COMMANDS, OURS, REFERENCE, free_port

ROUNDS = 5
# Target CPU time in seconds of an in-memory server with bytecode.
CPU_S_TARGET = 0.5
ANSWER_S_MAX = 120.0
POLL_S = 0.005
GET_SYSTEM_INFO = "/temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo"


@dataclass(frozen=True)
class Taken:
    cpu_s: float
    wall_s: float


def cpu_clock(process_id: int) -> int:
    """Return the id of another process' CPU-time clock, computed as clock_getcpuclockid(3) does."""
    return (~process_id << 3) | 2


def environment(folder: Path, *, is_compiled: bool) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if is_compiled:
        return own
    return own | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPYCACHEPREFIX": str(folder / "none")}


def first_answer(kind: str, folder: Path, *, is_file: bool = False, is_compiled: bool = True) -> Taken:
    port = free_port()
    command = [*COMMANDS[kind], "server", "start-dev", "--headless", "--port", str(port)]
    if is_file:
        command += ["--db-filename", str(folder / "server.db")]
    began_s = time.monotonic()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command, stdout=log, stderr=log, env=environment(folder, is_compiled=is_compiled)
        )
        try:
            await_answer(port, process, folder / "server.log")
            return Taken(time.clock_gettime(cpu_clock(process.pid)), time.monotonic() - began_s)
        finally:
            process.kill()
            process.wait()


def await_answer(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + ANSWER_S_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            break
        if process.poll() is not None or time.monotonic() > deadline_s:
            sys.exit(f"the server did not start: {log.read_text()}")
        time.sleep(POLL_S)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(GET_SYSTEM_INFO, None, GetSystemInfoResponse.FromString)
        answer: GetSystemInfoResponse = call(b"", timeout=ANSWER_S_MAX, wait_for_ready=True)
    if not answer.server_version:
        sys.exit(f"GetSystemInfo was answered without a version: {answer}")


def whole_run(flag: str, folder: Path) -> Taken:
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(  # noqa: S603 - our own command
        [*COMMANDS[OURS], flag], stdout=subprocess.DEVNULL, env=environment(folder, is_compiled=True), check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Taken(cpu_s, time.monotonic() - began_s)


CASES: Mapping[str, Callable[[Path], Taken]] = {
    f"{REFERENCE}, in memory": lambda folder: first_answer(REFERENCE, folder),
    f"{REFERENCE}, SQLite file": lambda folder: first_answer(REFERENCE, folder, is_file=True),
    f"{OURS}, in memory": lambda folder: first_answer(OURS, folder),
    f"{OURS}, SQLite file": lambda folder: first_answer(OURS, folder, is_file=True),
    f"{OURS}, in memory, no bytecode": lambda folder: first_answer(OURS, folder, is_compiled=False),
    f"{OURS} --version": lambda folder: whole_run("--version", folder),
    f"{OURS} --help": lambda folder: whole_run("--help", folder),
}


def measure(rounds: int) -> dict[str, list[Taken]]:
    found: dict[str, list[Taken]] = {name: [] for name in CASES}
    # The first start after a change compiles the changed modules; it is not measured.
    with tempfile.TemporaryDirectory() as folder:
        first_answer(OURS, Path(folder), is_file=True)
    for _ in range(rounds):
        for name, take in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(take(Path(folder)))
    return found


def show(found: Mapping[str, list[Taken]]) -> None:
    reference_s = statistics.median(taken.cpu_s for taken in found[f"{REFERENCE}, in memory"])
    table = Table(title="from the start of the process to the first answered call, median (least to most)")
    for title in ("", "CPU s", "wall s", "CPU beside temporal, in memory"):
        table.add_column(title, justify="left" if not title else "right")
    for name, all_taken in found.items():
        cpu_s = [taken.cpu_s for taken in all_taken]
        ratio = f"{statistics.median(cpu_s) / reference_s:.1f}x"
        table.add_row(name, _spread(cpu_s), _spread([taken.wall_s for taken in all_taken]), ratio)
    Console().print(table)
    print(f"load average {os.getloadavg()[0]:.1f}")


def aim_of(found: Mapping[str, list[Taken]]) -> Aim:
    ours_s = statistics.median(taken.cpu_s for taken in found[f"{OURS}, in memory"])
    return Aim("CPU s to the first response, in memory", ours_s, CPU_S_TARGET, "less", reached_min=RATIO_REACHED_MIN)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.rounds)
    if asked.json:
        print(json.dumps({name: [vars(taken) for taken in all_taken] for name, all_taken in found.items()}))
    else:
        show(found)
        if missed := show_aims([aim_of(found)]):
            sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
