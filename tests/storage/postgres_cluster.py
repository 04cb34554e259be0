"""A private PostgreSQL server for the tests: started here on a free loopback port, and gone when its users are.

All processes of a test run share one server, each test has its own database. Run as a program, this file is the keeper
of that shared server: it waits until no process holds the run's lock any more, were they killed or not, and stops it.
"""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psycopg

INSTALL = Path(__file__).parents[2] / "scripts" / "install-postgres"
START_S_MAX = 60.0
STOP_S_MAX = 15.0
PORT_ATTEMPTS_MAX = 5
CONNECTIONS_MAX = 200

_database_numbers = itertools.count(1)
_keepers: list[subprocess.Popen[bytes]] = []


class ClusterFailed(Exception):
    """PostgreSQL is not there, or did not start."""


@dataclass(slots=True)
class PostgresCluster:
    """One server on its own folder; `stop` and `start` may alternate, and the port stays the same."""

    folder: Path
    port: int = 0
    _server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def dsn(self, database: str) -> str:
        """How to connect to a database of it."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"

    def create_database(self) -> str:
        """A new, empty database that nobody else uses; returns how to connect to it."""
        database = f"test_{os.getpid()}_{next(_database_numbers)}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {database}".encode())
        return self.dsn(database)

    def initialise(self) -> None:
        """Make the data folder."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, _server_user())
        data = self.folder / "data"
        # Making the folder needs no fsync, since a crash of the machine ends the test; the server itself does fsync.
        self._run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def start(self) -> None:
        """Start the server and wait until it answers."""
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
                    # The interrupt of a terminal is for the tests: they stop the server when they are done.
                    start_new_session=True,
                )
            if self._wait_until_it_answers(port):
                self.port = port
                return
            # Most likely another process took the port since it was found free.
            self.stop()
        raise ClusterFailed(f"PostgreSQL did not start within {START_S_MAX} s; its log:\n{self._log()}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server, by force where that takes too long. SIGINT shuts it down, SIGQUIT is a crash."""
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
                # Whoever answered may be another server, which came first and made this one give up.
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
    """The one server of a test run; `run_folder` is the same for all its processes. The last to leave sees it gone."""
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
    """The folder that all processes of a test run share, given the base temporary folder of one of them."""
    return base_temp.parent if "PYTEST_XDIST_WORKER" in os.environ else base_temp


def binaries() -> Path:
    """The folder of PostgreSQL's programs, which are installed if they are missing."""
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
    """Whom the server runs as where we are root, which it refuses."""
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _as_server_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(_server_user())
    # It replaces itself with the server, so that the process we signal is the server's own.
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _discard(cluster: PostgresCluster) -> None:
    # At once: an orderly shutdown would take seconds to bring to the disk what is deleted next.
    cluster.stop(signal.SIGQUIT)
    shutil.rmtree(cluster.folder, ignore_errors=True)


def _join(run_folder: Path) -> tuple[PostgresCluster, IO[str]] | None:
    """Become a user of the server that another process of the run has started, if it is still there."""
    with contextlib.ExitStack() as undo:
        try:
            known = json.loads((run_folder / "postgres.json").read_text())
            users_file = Path(known["folder"]) / "users"
            users = undo.enter_context(users_file.open("r+"))
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            return None
        # The keeper removes the file while it holds the lock: who has the lock and sees the file came in time.
        if not users_file.exists():
            return None
        undo.pop_all()
        return PostgresCluster(Path(known["folder"]), known["port"]), users


def _open(run_folder: Path) -> tuple[PostgresCluster, IO[str]]:
    """Start the run's server in the care of a keeper, and become its first user."""
    binaries()
    folder = Path(tempfile.mkdtemp(prefix="fairlead-postgres-"))
    users = (folder / "users").open("w+")
    fcntl.flock(users, fcntl.LOCK_SH)
    log_file = run_folder / "postgres-keeper.log"
    with log_file.open("wb") as log:
        command = [sys.executable, __file__, str(folder), str(run_folder / "postgres.json")]
        keeper = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
    _keepers.append(keeper)
    # The keeper tells where the server is once it answers, in one step: the name appears with all of the content.
    while not (folder / "ready").exists():
        if keeper.poll() is not None:
            users.close()
            raise ClusterFailed(f"the server's keeper ended:\n{log_file.read_text(errors='replace')}")
        time.sleep(0.02)
    known = json.loads((run_folder / "postgres.json").read_text())
    return PostgresCluster(folder, known["port"]), users


def _wait_if_last(folder: Path) -> None:
    """Return at once where others use the server, else when it is gone: no process of ours survives the run."""
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
                # Refused the whole lock and granted a share: so do others hold shares, and not the keeper the whole.
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
    """Run the server until it has no users left, or this process is told to end."""
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
