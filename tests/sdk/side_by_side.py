"""Run the programs on two servers and print the differences: `python -m tests.sdk.side_by_side [--only NAME]`.

A server is `reference`, `fairlead`, or the address of a running server.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.history.rebuild import check_file
from tests.sdk.catalogue import PROGRAMS
from tests.sdk.compare import Difference, differences
from tests.sdk.known import unknown
from tests.sdk.servers import DATABASE, KINDS, LOG_SHOWN_MAX, serving, stopped

SIDES = ("reference", "ours")
# Enables features that are off by default in the reference.
SETTINGS = {
    "nexusoperation.enableStandalone": "true",
    "activity.enableCallbacks": "true",
    "history.enableUpdateCallbacks": "true",
    "history.enableSignalWithStartFromWorkflow": "true",
    "frontend.workflowRulesAPIsEnabled": "true",
    "frontend.WorkflowTimeSkippingEnabled": "true",
}
ROOT = Path(__file__).parents[2]
REBUILT = "rebuilt.txt"


@contextlib.contextmanager
def observing(kinds: Sequence[str], folder: Path, names: Sequence[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start both servers and the processes that run the programs on them; results appear in `folder`."""
    tag = "" if all(kind in KINDS for kind in kinds) else f"~{uuid.uuid4().hex[:6]}"
    with contextlib.ExitStack() as stack:
        observers = []
        for side, kind in zip(SIDES, kinds, strict=True):
            place = folder / side
            place.mkdir()
            address = stack.enter_context(serving(kind, place, SETTINGS))
            log = stack.enter_context((place / "observer.log").open("wb"))
            command = [sys.executable, "-m", "tests.sdk.observe", address, str(place), f"--tag={tag}"]
            command += ["--lost-tasks-max=2"] if kind == "reference" else []
            command += names
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)  # noqa: S603
            observers.append(stack.enter_context(stopped(process)))
        yield observers


def seen(folder: Path, side: str, name: str) -> dict[str, Any] | None:
    """The results of a program; None if they are not written yet."""
    try:
        found = json.loads((folder / side / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    assert isinstance(found, dict)
    return found


def compared(folder: Path, name: str) -> list[Difference]:
    """The differences of one program that ran on both servers, without the intended ones."""
    sides = [seen(folder, side, name) for side in SIDES]
    missing = [side for side, found in zip(SIDES, sides, strict=True) if found is None]
    if missing:
        files = [file for side in missing for file in sorted((folder / side).glob("*.log"))]
        logs = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-LOG_SHOWN_MAX:]}" for file in files)
        return [Difference(name, f"not run on {', '.join(missing)}", "", "", f"\n{logs}")]
    assert sides[0] is not None
    assert sides[1] is not None
    return unknown(differences(name, sides[0], sides[1]))


def report(folder: Path, names: Sequence[str]) -> int:
    """Print every difference, then the most frequent places; returns the number of programs that differ."""
    all_found: list[Difference] = []
    for name in names:
        found = compared(folder, name)
        all_found += found
        for each in found:
            sys.stdout.write(f"{each}\n")
    # Remove the numbers of runs and events, so that one cause is one line.
    places = Counter(re.sub(r"^run \d+ \([^)]*\) |event \d+ ", "", f"{each.where} {each.path}") for each in all_found)
    programs = len({each.program for each in all_found})
    sys.stdout.write(f"\n{programs} of {len(names)} programs differ, {len(all_found)} differences; most common:\n")
    for place, count in places.most_common(40):
        sys.stdout.write(f"{count:6} {place}\n")
    slowest = sorted(
        ((seen(folder, side, name) or {}).get("seen_s", 0.0), side, name) for side in SIDES for name in names
    )
    sys.stdout.write("slowest: " + ", ".join(f"{name} {side} {took:.1f} s" for took, side, name in slowest[-5:]) + "\n")
    return programs


def rebuilt(folder: Path) -> str:
    """Rebuild all runs of Fairlead's database from their events; returns their number, or the first error."""
    database = folder / SIDES[1] / DATABASE
    if not database.exists():
        return "0"
    try:
        return str(asyncio.run(check_file(database)))
    except AssertionError as wrong:
        return str(wrong)


def _end_with_the_input() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    # The servers end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a program's name, or a part of it")
    parser.add_argument("--servers", nargs=2, default=("reference", "fairlead"), metavar="SERVER")
    parser.add_argument("--exactly", nargs="+", help="the names of the programs, in place of parts of them")
    parser.add_argument("--as-child", action="store_true", help="end with the process that started this one")
    parser.add_argument("--keep", type=Path, help="a new folder for what was seen")
    given = parser.parse_args()
    if given.as_child:
        threading.Thread(target=_end_with_the_input, daemon=True).start()
    names = given.exactly or [name for name in PROGRAMS if not given.only or any(part in name for part in given.only)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        began_s = time.monotonic()
        try:
            with observing(given.servers, folder, names) as observers:
                for observer in observers:
                    observer.wait()
            (folder / REBUILT).write_text(rebuilt(folder))
        finally:
            (folder / "over").touch()
        took_s = time.monotonic() - began_s
        programs = report(folder, names)
    sys.stdout.write(f"{took_s:.0f} s\n")
    sys.exit(bool(programs))


if __name__ == "__main__":
    main()
