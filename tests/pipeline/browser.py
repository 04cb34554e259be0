"""Opens a page in a real browser: headless Chromium."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pipeline.devtools import DevTools, Event, devtools

INSTALL = Path(__file__).parents[2] / "scripts" / "install-chromium"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
POLL_S_MAX = 120.0

_NETWORK = ("http:", "https:", "ws:", "wss:", "ftp:")
# Resolves when the browser is idle: requests that the page makes after its load event have started by then.
_IDLE = "new Promise(done => requestIdleCallback(() => setTimeout(done)))"


@dataclass(frozen=True, slots=True)
class Look:
    """The loaded page: its elements, its console output, and its network requests."""

    dom: str
    console: list[str]
    requests: list[str]


def chromium() -> str:
    """The path of Chromium, which is installed if it is missing."""
    subprocess.run([INSTALL], check=True)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found is not None
    return found


def look_at(page: Path, folder: Path, *, width: int = 1100) -> Look:
    """Open the page in Chromium, and wait until it is loaded and idle.

    Only requests of the page's frames count; the DevTools protocol reports them. Chromium also makes requests that
    belong to no page (for the time, updates, a dictionary).
    """
    command = [
        chromium(),
        "--headless",
        # Tests run as root in containers, where Chromium's sandbox does not work.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        # No host name resolves, so no request leaves the machine.
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},2000",
    ]
    with devtools(command, within_s=POLL_S_MAX) as browser:
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        _follow(browser, session)
        browser.ask("Page.navigate", session, url=page.as_uri())
        browser.wait_for(lambda: any(event["method"] == "Page.loadEventFired" for event in browser.events))
        browser.ask("Runtime.evaluate", session, expression=_IDLE, awaitPromise=True)
        found = browser.ask(
            "Runtime.evaluate", session, expression="document.documentElement.outerHTML", returnByValue=True
        )
        return Look(found["result"]["value"], _console(browser.events), _requests(browser.events))


def _follow(browser: DevTools, session: str) -> None:
    """Enable the events of the page, and attach to frames that run in other processes."""
    for domain in ("Page", "Network", "Runtime", "Log"):
        browser.ask(f"{domain}.enable", session)
    browser.ask("Target.setAutoAttach", session, autoAttach=True, waitForDebuggerOnStart=False, flatten=True)


def _requests(events: list[Event]) -> list[str]:
    """The URLs that the page's frames requested from the network; local files are left out."""
    urls = set()
    for event in events:
        parameters: dict[str, Any] = event["params"]
        if event["method"] == "Network.requestWillBeSent":
            urls.add(parameters["request"]["url"])
        elif event["method"] == "Network.webSocketCreated":
            urls.add(parameters["url"])
        elif event["method"] == "Target.attachedToTarget":
            # A frame from another site.
            urls.add(parameters["targetInfo"]["url"])
    return sorted(url for url in urls if url.startswith(_NETWORK))


def _console(events: list[Event]) -> list[str]:
    """Console output of scripts, uncaught exceptions, and the browser's own warnings and errors."""
    lines = []
    for event in events:
        parameters: dict[str, Any] = event["params"]
        if event["method"] == "Runtime.consoleAPICalled":
            lines.append(" ".join(str(part.get("value", part.get("description"))) for part in parameters["args"]))
        elif event["method"] == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            lines.append(str(details.get("exception", {}).get("description") or details["text"]))
        elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
            lines.append(str(parameters["entry"]["text"]))
    return lines
