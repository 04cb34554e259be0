"""Servers on a SQLite file or a private PostgreSQL for `benchmarks.growth`: stopped, filled and started again."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.starts import PostgresProcess
from benchmarks.workflows_servers import ServerProcess, await_port, family, free_port, killed
from fairlead.settings.static.config import PostgresConfig, SqliteConfig, StoreConfig
from tests.storage.postgres_cluster import private_cluster

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
KINDS = (SQLITE, POSTGRES)
NAMESPACE = "default"


@dataclass(frozen=True)
class Measured:
    """A running server, and the database server behind it, if there is one."""

    server: ServerProcess
    # Address of the hosts' port, for the public client.
    host_address: str
    postgres: PostgresProcess | None

    def cpu_s(self) -> float:
        """CPU seconds of the server and its database so far, precise to the nanosecond; other counters have only clock
        ticks.
        """
        pids = family(self.server.pid) + (family(self.postgres.pid()) if self.postgres else [])
        return sum(scheduled_s(pid) for pid in pids)


@dataclass(frozen=True)
class Place:
    """A folder with a store. A server runs on it only after it was started."""

    kind: str
    folder: Path
    postgres: PostgresProcess | None = None

    @property
    def config(self) -> StoreConfig:
        """The configuration with which `open_store` opens the store."""
        if self.postgres is None:
            return SqliteConfig(self.folder / "store.db")
        return PostgresConfig(self.postgres.dsn)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Measured]:
        """Run a server on the store, as a user starts it."""
        port, host_port = free_port(), free_port()
        if self.postgres is None:
            store = f"{{sqlite: {{file: {self.folder / 'store.db'}}}}}"
        else:
            store = "{postgres: {dsnEnv: FAIRLEAD_DSN}}"
            os.environ["FAIRLEAD_DSN"] = self.postgres.dsn
        (self.folder / "server.yaml").write_text(
            f"listen: 127.0.0.1:{host_port}\nfrontend: {{listen: '127.0.0.1:{port}'}}\nstore: {store}\n"
            "log: {level: error}\nstop: {handOver: 0s, grace: 1s}\n"
            f"namespaces: [{{name: {NAMESPACE}, retention: 720h, searchAttributes: {{Customer: Keyword}}}}]\n"
        )
        log_file = self.folder / "server.log"
        command = [sys.executable, "-m", "fairlead", "server", "start", "--config", str(self.folder / "server.yaml")]
        command += ["--dynamic-config-value", "history.maximumSignalsPerExecution=0"]
        with log_file.open("wb") as log, killed(command, log) as process:
            await_port(port, process, log_file)
            while "Fairlead is ready" not in log_file.read_text():
                if process.poll() is not None:
                    sys.exit(f"the server did not start: {log_file.read_text()}")
                time.sleep(0.1)
            yield Measured(ServerProcess(f"127.0.0.1:{port}", process.pid), f"127.0.0.1:{host_port}", self.postgres)

    def settle(self) -> None:
        """Run the database's background maintenance now, as after all these writes."""
        if self.postgres is not None:
            with psycopg.connect(self.postgres.dsn, autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE")
                connection.execute("CHECKPOINT")


@contextlib.contextmanager
def new_place(kind: str) -> Iterator[Place]:
    """Make an empty store in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fairlead-growth-") as name, contextlib.ExitStack() as stack:
        if kind == SQLITE:
            yield Place(kind, Path(name))
        else:
            cluster = stack.enter_context(private_cluster())
            yield Place(kind, Path(name), PostgresProcess(cluster, cluster.create_database()))


def scheduled_s(pid: int) -> float:
    """CPU seconds that the running threads of a process have used; ended threads are not counted."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int(thread.read_text().split()[0])
    return total_ns / 1e9
