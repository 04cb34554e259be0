"""The console below a public path, behind TLS, with a codec server and beside built pages; and long lists."""

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from temporalio.api.common.v1 import Payload
from temporalio.client import Client
from temporalio.common import RawValue

from fairlead.console.session import notice_cookie, session_cookie
from fairlead.http import Request
from tests.console.conftest import Seen, in_another_thread, open_page
from tests.ports import free_port
from tests.ui.conftest import running


class Codec(BaseHTTPRequestHandler):
    """Decodes payloads: their data is the text backwards."""

    def do_OPTIONS(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        decoded = [
            {"data": base64.b64encode(base64.b64decode(one["data"])[::-1]).decode(), "metadata": {}}
            for one in asked["payloads"]
        ]
        assert self.headers["x-namespace"] == "default"
        self._answer(json.dumps({"payloads": decoded}).encode())

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", self.headers.get("origin", "*"))
        self.send_header("Access-Control-Allow-Headers", "content-type,x-namespace")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def codec() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Codec) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def below(codec: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a console below /temporal, beside built pages; and the address for SDKs."""
    pages: Path = tmp_path_factory.mktemp("pages")
    (pages / "index.html").write_text("<title>built pages</title><p>built pages")
    port, ui_port = free_port(), free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--port", str(port), "--ui-port", str(ui_port)]
    command += ["--ui-public-path", "/temporal", "--ui-codec-endpoint", codec, "--ui-asset-path", str(pages)]
    with running(*command, until="Ready"):
        yield f"http://127.0.0.1:{ui_port}/temporal/console", f"127.0.0.1:{port}"


@pytest.fixture
def elsewhere(browser: Browser, below: tuple[str, str]) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = open_page(context, below[0])
    yield found
    context.close()
    assert not found.faults


def test_below_a_public_path_pages_links_files_and_live_updates_work(elsewhere: Seen) -> None:
    elsewhere.goto("")
    page = elsewhere.page
    expect(page.locator("#live-state")).to_have_text("live")
    page.get_by_role("link", name="Workflows").click()
    expect(page.get_by_text("No workflow in this namespace.")).to_be_visible()
    elsewhere.shoot("workflows-empty")
    page.get_by_role("link", name="Temporal UI").click()
    expect(page.get_by_text("built pages")).to_be_visible()


def test_encoded_payloads_are_decoded_by_the_codec_server_in_the_browser(
    elsewhere: Seen, below: tuple[str, str]
) -> None:
    async def start() -> None:
        client = await Client.connect(below[1])
        encoded = Payload(metadata={"encoding": b"binary/backwards"}, data=b"terces a")
        await client.start_workflow("Nobody", RawValue(encoded), id="encoded", task_queue="q")

    in_another_thread(start())
    elsewhere.goto("workflow?id=encoded")
    expect(elsewhere.page.locator("#payloads pre")).to_have_text("a secret")


def test_many_workflows_are_paged_and_every_row_is_reached(elsewhere: Seen, below: tuple[str, str]) -> None:
    async def start() -> None:
        client = await Client.connect(below[1])
        for number in range(120):
            await client.start_workflow("Many", id=f"many-{number}", task_queue="many")

    in_another_thread(start())
    elsewhere.goto("workflows?query=WorkflowType%20%3D%20%22Many%22")
    page = elsewhere.page
    found: set[str] = set()
    while True:
        expect(page.locator("#rows tbody tr").first).to_be_visible()
        found |= set(page.locator("#rows tbody th").all_inner_texts())
        following = page.get_by_role("link", name="Next")
        if not following.count():
            break
        with page.expect_navigation():
            following.click()
    assert len(found) == 120


def test_cookies_are_secure_with_tls() -> None:
    for is_secure in (True, False):
        request = Request("GET", "/console/", {}, b"", peer="127.0.0.1", is_secure=is_secure)
        for _, cookie in (
            session_cookie(request, "Bearer key", path="/console"),
            notice_cookie(request, "done", path="/console"),
        ):
            assert ("; Secure" in cookie) is is_secure
            assert "HttpOnly; SameSite=Strict" in cookie
            assert "Path=/console" in cookie
