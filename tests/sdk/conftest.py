"""The programs run once on both servers for the whole test run, even with several pytest processes."""

import contextlib
import fcntl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sdk.side_by_side import ROOT, SIDES
from tests.storage.postgres_cluster import run_folder_of

RUN_S_MAX = 150.0


class SideBySide:
    """The folder where the results of the run appear."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wait_for(self, program: str) -> None:
        """Wait until both servers have run the program, or the run has ended without it."""
        deadline_s = time.monotonic() + RUN_S_MAX
        files = [self.folder / side / f"{program}.json" for side in SIDES]
        while not all(file.exists() for file in files) and time.monotonic() < deadline_s:
            if (self.folder / "over").exists():
                return
            time.sleep(0.05)

    def wait_for_the_end(self) -> None:
        """Wait until all programs have run and both servers have stopped."""
        deadline_s = time.monotonic() + RUN_S_MAX
        while not (self.folder / "over").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)


@pytest.fixture(scope="session")
def side_by_side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SideBySide]:
    """The first pytest process that needs the run starts it and waits for its end."""
    run_folder = run_folder_of(tmp_path_factory.getbasetemp())
    folder = run_folder / "side-by-side"
    with (run_folder / "side-by-side.lock").open("a+") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        first = not folder.exists()
        folder.mkdir(exist_ok=True)
    if not first:
        yield SideBySide(folder)
        return
    names = [name for item in request.session.items if (name := _program(item))]
    with (run_folder / "side-by-side.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.sdk.side_by_side", "--keep", str(folder), "--as-child"]
        command += ["--exactly", *names]
        runner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log)  # noqa: S603
    # The runner ends when this process closes its input, which also happens if this process is killed.
    with runner:
        yield SideBySide(folder)
        # Other processes may wait for programs that have not run yet.
        with contextlib.suppress(subprocess.TimeoutExpired):
            runner.wait(RUN_S_MAX)


def _program(item: pytest.Item) -> str:
    """The program that a test compares; None for other tests."""
    if not isinstance(item, pytest.Function) or "side_by_side" not in item.fixturenames:
        return ""
    return str(item.callspec.params["name"]) if hasattr(item, "callspec") else ""
