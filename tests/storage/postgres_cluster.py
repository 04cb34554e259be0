"""A private PostgreSQL server for the tests, on a free loopback port; it stops when the last test process ends.

All processes of a test run share one server, and each test has its own database. Run as a program, this file is the
keeper of the shared server: it waits until no process holds the run's lock (killed processes release it too), and
then stops the server.
"""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psycopg

INSTALL = Path(__file__).parents[2] / "scripts" / "install-postgres"
START_S_MAX = 60.0
STOP_S_MAX = 15.0
PORT_ATTEMPTS_MAX = 5
CONNECTIONS_MAX = 200
MIGRATED = "migrated"

_database_numbers = itertools.count(1)
_keepers: list[subprocess.Popen[bytes]] = []


class ClusterFailed(Exception):
    """PostgreSQL is not installed, or did not start."""


@dataclass(slots=True)
class PostgresCluster:
    """One server with its own folder; it can be stopped and started repeatedly, and keeps its port."""

    folder: Path
    port: int = 0
    _server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """The process of a server that was started here."""
        assert self._server is not None
        return self._server.pid

    def dsn(self, database: str) -> str:
        """Connection string of one of the server's databases."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def create_database(self, *, template: str = "template1") -> str:
        """Create a copy of a database for one test; returns its connection string. PostgreSQL's template is empty."""
        database = f"test_{os.getpid()}_{next(_database_numbers)}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database} TEMPLATE {template}".encode())
        return self.dsn(database)

    def migrated_template(self) -> str:
        """The name of a database with the schema of a new store: to copy it is faster than all migrations."""
        is_there = f"SELECT FROM pg_database WHERE datname = '{MIGRATED}' AND datistemplate".encode()
        with (
            (self.folder / "template.lock").open("a+") as door,
            _locked(door),
            psycopg.connect(self.dsn("postgres"), autocommit=True) as connection,
        ):
            if connection.execute(is_there).fetchone() is None:
                connection.execute(f"CREATE DATABASE {MIGRATED}".encode())
                # The test's event loop may run in this thread.
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, _migrate(self.dsn(MIGRATED))).result()
                connection.execute(f"ALTER DATABASE {MIGRATED} IS_TEMPLATE true".encode())
        return MIGRATED

    def initialise(self) -> None:
        """Create the data folder."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, _server_user())
        data = self.folder / "data"
        # initdb needs no fsync: if the machine crashes, the test ends as well. The server itself does fsync.
        self._run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        for _ in range(PORT_ATTEMPTS_MAX if not self.port else 1):
            port = self.port or _free_port()
            with (self.folder / "server.log").open("ab") as log:
                self._server = subprocess.Popen(  # noqa: S603 - our own arguments
                    [
                        *_as_server_user(),
                        str(binaries() / "postgres"),
                        *("-D", str(self.folder / "data"), "-k", str(self.folder)),
                        *("-c", "listen_addresses=127.0.0.1", "-c", f"port={port}", "-c", "fsync=on"),
                        *("-c", f"max_connections={CONNECTIONS_MAX}"),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    # Ctrl-C in a terminal is for the tests: they stop the server when they are done.
                    start_new_session=True,
                )
            if self._wait_until_it_answers(port):
                self.port = port
                return
            # Most likely another process took the port after it was found free.
            self.stop()
        raise ClusterFailed(f"PostgreSQL did not start within {START_S_MAX} s; its log:\n{self._log()}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; kill it if that takes too long. SIGINT is an orderly shutdown, SIGQUIT a crash."""
        if self._server is None:
            return
        self._server.send_signal(how)
        try:
            self._server.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None

    def _wait_until_it_answers(self, port: int) -> bool:
        deadline_s = time.monotonic() + START_S_MAX
        while self._server is not None and self._server.poll() is None and time.monotonic() < deadline_s:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=5").close()
                # The response may come from another server that took the port first; this one then gave up.
                return self._server.poll() is None
            time.sleep(0.05)
        return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [*_as_server_user(), str(binaries() / program), *arguments]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)  # noqa: S603
        if result.returncode:
            raise ClusterFailed(f"{program} failed:\n{result.stdout}{result.stderr}")

    def _log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")[-4000:]


async def _migrate(dsn: str) -> None:
    # Imported here: the keeper does not need it.
    from fairlead.storage.postgres import PostgresStore  # noqa: PLC0415

    await (await PostgresStore.open(dsn)).close()


@contextlib.contextmanager
def private_cluster() -> Iterator[PostgresCluster]:
    """A server for one test, which may stop and start it."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-postgres-"))
    cluster = PostgresCluster(folder)
    try:
        cluster.initialise()
        cluster.start()
        yield cluster
    finally:
        _discard(cluster)


@contextlib.contextmanager
def shared_cluster(run_folder: Path) -> Iterator[PostgresCluster]:
    """The server of the whole test run; `run_folder` is the same in all its processes. The last process waits for its
    end.
    """
    with (run_folder / "postgres.lock").open("a+") as door, contextlib.ExitStack() as stay:
        with _locked(door):
            cluster, users = _join(run_folder) or _open(run_folder)
            stay.enter_context(users)
        try:
            yield cluster
        finally:
            with _locked(door):
                users.close()
                _wait_if_last(cluster.folder)


def run_folder_of(base_temp: Path) -> Path:
    """The folder shared by all processes of a test run, derived from the base temporary folder of one of them."""
    return base_temp.parent if "PYTEST_XDIST_WORKER" in os.environ else base_temp


def binaries() -> Path:
    """The folder of PostgreSQL's programs; installs them if they are missing."""
    found = _find_binaries()
    if found is None:
        result = subprocess.run([INSTALL], capture_output=True, text=True, check=False)  # noqa: S603 - our own script
        found = _find_binaries()
        if found is None:
            raise ClusterFailed(f"the tests need PostgreSQL:\n{result.stdout}{result.stderr}")
    return found


def _find_binaries() -> Path | None:
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(versions, key=lambda initdb: float(initdb.parts[-3]), default=None)
    on_path = shutil.which("initdb")
    if newest is not None:
        return newest.parent
    return Path(on_path).parent if on_path else None


def _server_user() -> str:
    """The user that runs the server if the tests run as root: PostgreSQL refuses root."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _as_server_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(_server_user())
    # The program replaces itself with the server, so that signals reach the server itself.
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _discard(cluster: PostgresCluster) -> None:
    # Immediate shutdown: an orderly one would spend seconds on writing data that is deleted next.
    cluster.stop(signal.SIGQUIT)
    shutil.rmtree(cluster.folder, ignore_errors=True)


def _join(run_folder: Path) -> tuple[PostgresCluster, IO[str]] | None:
    """Register as a user of the server that another process of the run has started, if it still runs."""
    with contextlib.ExitStack() as undo:
        try:
            known = json.loads((run_folder / "postgres.json").read_text())
            users_file = Path(known["folder"]) / "users"
            users = undo.enter_context(users_file.open("r+"))
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            return None
        # The keeper removes the file while it holds the lock: if we hold the lock and the file exists, the server runs.
        if not users_file.exists():
            return None
        undo.pop_all()
        return PostgresCluster(Path(known["folder"]), known["port"]), users


def _open(run_folder: Path) -> tuple[PostgresCluster, IO[str]]:
    """Start the keeper and the run's server, and register as its first user."""
    binaries()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-postgres-"))
    users = (folder / "users").open("w+")
    fcntl.flock(users, fcntl.LOCK_SH)
    log_file = run_folder / "postgres-keeper.log"
    with log_file.open("wb") as log:
        command = [sys.executable, __file__, str(folder), str(run_folder / "postgres.json")]
        keeper = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
    _keepers.append(keeper)
    # The keeper writes the file by an atomic rename once the server accepts connections.
    while not (folder / "ready").exists():
        if keeper.poll() is not None:
            users.close()
            raise ClusterFailed(f"the server's keeper ended:\n{log_file.read_text(errors='replace')}")
        time.sleep(0.02)
    known = json.loads((run_folder / "postgres.json").read_text())
    return PostgresCluster(folder, known["port"]), users


def _wait_if_last(folder: Path) -> None:
    """Return at once if other processes use the server; else wait until it has stopped."""
    deadline_s = time.monotonic() + STOP_S_MAX + 5.0
    while folder.exists() and not _has_users(folder / "users") and time.monotonic() < deadline_s:
        time.sleep(0.02)
    for keeper in _keepers:
        if not folder.exists():
            keeper.wait(STOP_S_MAX)


def _has_users(users_file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError), users_file.open("r+") as users:
        for mode in (fcntl.LOCK_EX, fcntl.LOCK_SH):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, mode | fcntl.LOCK_NB)
                # If the exclusive lock is refused and a share is granted, then other users hold shares, and the keeper
                # holds nothing.
                return mode == fcntl.LOCK_SH
    return False


@contextlib.contextmanager
def _locked(door: IO[str]) -> Iterator[None]:
    fcntl.flock(door, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(door, fcntl.LOCK_UN)


def _keep(folder: Path, known_file: Path) -> None:
    """Run the server until it has no users left or this process gets a signal to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cluster = PostgresCluster(folder)
    with (folder / "users").open("r+") as users:
        try:
            cluster.initialise()
            cluster.start()
            known_file.write_text(json.dumps({"folder": str(folder), "port": cluster.port}))
            (folder / "ready").touch()
            fcntl.flock(users, fcntl.LOCK_EX)
        finally:
            _discard(cluster)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]), Path(sys.argv[2]))
