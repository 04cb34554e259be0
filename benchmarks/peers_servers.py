"""The servers for `benchmarks.peers`, which sync every write: on free loopback ports, in temporary folders."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.growth_stores import SQLITE, Place
from benchmarks.workflows_servers import free_port, killed
from tests.storage.postgres_cluster import private_cluster

READY_S_MAX = 30.0


class Missing(Exception):
    """A program is not installed, and this benchmark can't install it."""


def debian_program(folder: Path, name: str, packages: list[str]) -> tuple[Path, dict[str, str]]:
    """A program that is installed, or is unpacked from Debian's packages; and the environment that it needs."""
    found = shutil.which(name)
    if found is not None:
        return Path(found), {}
    root = folder / "debian"
    binary = root / "usr" / "bin" / name
    if not binary.exists():
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise Missing(f"{name} is not installed, and there is no apt-get to get it: install {packages[0]}")
        downloads = folder / "downloads" / name
        downloads.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", "download", "-q", *packages], downloads)
        for package in downloads.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(root)], downloads)
    libraries = {str(library.parent) for library in root.glob("usr/lib/*/*.so*")}
    return binary, {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


def _run(command: list[str], folder: Path) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if ended.returncode:
        raise Missing(f"{' '.join(command)} failed: {ended.stderr.strip().splitlines()[-1:]}")


@contextlib.contextmanager
def _listening(command: list[str], port: int, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a server until the block ends."""
    os.environ.update(environment)
    try:
        with (folder / "server.log").open("wb") as log, killed(command, log) as process:
            deadline_s = time.monotonic() + READY_S_MAX
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise Missing(
                        f"{Path(command[0]).name} did not start: {(folder / 'server.log').read_text()[-300:]}"
                    )
                time.sleep(0.05)
            yield
    finally:
        for name in environment:
            os.environ.pop(name, None)


@contextlib.contextmanager
def redis(programs: Path, folder: Path) -> Iterator[str]:
    """Redis that syncs its log before it answers a write."""
    packages = ["redis-server", "redis-tools", "libjemalloc2", "liblua5.1-0", "liblzf1"]
    binary, environment = debian_program(programs, "redis-server", packages)
    port = free_port()
    command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"]
    with _listening(command, port, folder, environment):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def beanstalkd(programs: Path, folder: Path) -> Iterator[str]:
    """Run beanstalkd with a log that is synced at every write."""
    binary, environment = debian_program(programs, "beanstalkd", ["beanstalkd"])
    port = free_port()
    command = [str(binary), "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), "-f0"]
    with _listening(command, port, folder, environment):
        yield f"127.0.0.1:{port}"


@contextlib.contextmanager
def nats(programs: Path, folder: Path) -> Iterator[str]:
    """NATS with JetStream, synced at every write; the server is in the peer's Python environment."""
    found = next(iter(programs.glob("nats_jetstream/bin/nats-server")), None) or shutil.which("nats-server")
    if found is None:
        raise Missing("nats-server is not installed: version 2.10 or later is needed for sync_interval")
    port = free_port()
    (folder / "nats.conf").write_text(
        f"host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: '{folder}/data', sync_interval: always }}\n"
    )
    with _listening([str(found), "-c", str(folder / "nats.conf")], port, folder, {}):
        yield f"nats://127.0.0.1:{port}"


@contextlib.contextmanager
def postgres(_programs: Path, _folder: Path) -> Iterator[str]:
    """PostgreSQL with its defaults: fsync, and synchronous commits."""
    with private_cluster() as cluster:
        database = cluster.create_database().rpartition("dbname=")[2]
        yield f"postgresql://postgres@127.0.0.1:{cluster.port}/{database}"


@contextlib.contextmanager
def sqlite(_programs: Path, folder: Path) -> Iterator[str]:
    """A SQLite file; the peer needs no server."""
    yield str(folder / "peer.db")


@contextlib.contextmanager
def fairlead_hosts(_programs: Path, folder: Path) -> Iterator[str]:
    """Fairlead on a SQLite file, at the port for the public client."""
    with Place(SQLITE, folder).serving() as measured:
        yield measured.host_address


@contextlib.contextmanager
def fairlead_frontend(_programs: Path, folder: Path) -> Iterator[str]:
    """Fairlead on a SQLite file, at the port for SDKs."""
    with Place(SQLITE, folder).serving() as measured:
        yield measured.server.address


Serve = Callable[[Path, Path], AbstractContextManager[str]]
