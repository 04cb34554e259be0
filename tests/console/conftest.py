"""The console of a server with workflows, in a browser."""

import asyncio
import os
import sys
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, expect, sync_playwright

from tests.pipeline.browser import chromium
from tests.ports import free_port
from tests.ui.conftest import ORDERS, WAIT_MS, running

# Widths of the pictures, in pixels: a desktop's and a phone's.
WIDTHS = (1280, 390)
# Folder of the pictures that `shoot` takes, for people to look at; none are taken without it.
PICTURES = os.environ.get("FAIRLEAD_TEST_PICTURES")

T = TypeVar("T")


def in_another_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; Playwright's own loop runs in this thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


@dataclass(frozen=True)
class Place:
    """Addresses of a server: of its console, and for SDKs."""

    console: str
    frontend: str


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A server on which a worker has run some orders."""
    port, ui_port = free_port(), free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--port", str(port), "--ui-port", str(ui_port)]
    command += ["--dynamic-config-value", "frontend.WorkflowPauseEnabled=true"]
    with running(*command, until="Ready"), running(sys.executable, ORDERS, f"127.0.0.1:{port}", until="ready"):
        yield Place(f"http://127.0.0.1:{ui_port}/console", f"127.0.0.1:{port}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, which can reach nothing but this machine."""
    expect.set_options(timeout=WAIT_MS)
    flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield opened
        opened.close()


@dataclass
class Seen:
    """A page of the console, and what went wrong on it. `allowed` are statuses above 400 that the test expects."""

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)
    allowed: set[int] = field(default_factory=set)

    def goto(self, path: str) -> None:
        """Open a page of the console."""
        self.page.goto(f"{self.address}/{path}", wait_until="domcontentloaded")

    def shoot(self, name: str) -> None:
        """At each width, the page must not be wider than the screen; take a picture if there is a folder for them."""
        before = self.page.viewport_size
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"
            if PICTURES:
                self.page.screenshot(path=Path(PICTURES) / f"{name}-{width}.png", full_page=True)
        if before is not None:
            self.page.set_viewport_size(before)

    def note_message(self, message: ConsoleMessage) -> None:
        is_expected = any(f"status of {status}" in message.text for status in self.allowed)
        if message.type in {"error", "warning"} and not is_expected:
            self.faults.append(f"console: {message.text} {message.location}")

    def note_response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.allowed:
            self.faults.append(f"{response.status}: {response.request.method} {response.url}")


def open_page(context: BrowserContext, address: str) -> Seen:
    """A new page whose faults are noted."""
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    found = Seen(page, address)
    page.on("console", found.note_message)
    page.on("pageerror", lambda error: found.faults.append(f"script: {error}"))
    page.on("response", found.note_response)
    return found


@pytest.fixture
def seen(browser: Browser, place: Place) -> Iterator[Seen]:
    """A new page; the test fails if the browser's console shows an error, or a request fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
    found = open_page(context, place.console)
    yield found
    context.close()
    assert not found.faults
