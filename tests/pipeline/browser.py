"""A real browser that looks at a page: Chromium without a screen."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

INSTALL = Path(__file__).parents[2] / "scripts" / "install-chromium"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LOOK_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a page became: its elements, what was said on the console, and what it asked the network for."""

    dom: str
    console: list[str]
    requests: list[str]


def chromium() -> str:
    """The program, which is installed if it is not there."""
    subprocess.run([INSTALL], check=True)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found is not None
    return found


def look_at(page: Path, folder: Path, *, width: int = 1100) -> Look:
    """Open the page as a person would, and wait until it is there."""
    log = folder / "network.json"
    done = subprocess.run(
        [
            chromium(),
            "--headless",
            # Tests run as root in containers, where there is no sandbox to be had.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--disable-component-update",
            # Nobody is asked, whatever the page wants.
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={log}",
            f"--window-size={width},2000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=LOOK_S_MAX,
    )
    console = re.findall(r"CONSOLE.*?\"(.*)\", source:", done.stderr)
    return Look(done.stdout, console, _requests(log))


def _requests(log: Path) -> list[str]:
    """Everything that the network was asked for: files of the disk are not among it."""
    events = json.loads(log.read_text())["events"]
    urls = (event.get("params", {}).get("url", "") for event in events)
    return sorted({url for url in urls if url.startswith(("http:", "https:", "ws:", "wss:", "ftp:"))})
