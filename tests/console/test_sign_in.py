"""Signing in with an API key in a browser: a reader looks, and can't act; a writer can."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from temporalio.client import Client

from tests.console.conftest import Seen, in_another_thread, open_page
from tests.ports import free_port
from tests.ui.conftest import running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with authorization: its addresses, and a key for each role."""
    folder: Path = tmp_path_factory.mktemp("guarded")
    port, ui_port = free_port(), free_port()
    config = folder / "fairlead.yaml"
    config.write_text(
        f"""
frontend: {{listen: "127.0.0.1:{port}"}}
ui: {{listen: "127.0.0.1:{ui_port}"}}
listen: 127.0.0.1:0
store: {{sqlite: {{file: fairlead.db}}}}
namespaces: [default]
stop: {{handOver: 0s, grace: 1s}}
global:
  authorization: {{authorizer: default}}
"""
    )
    found = {"console": f"http://127.0.0.1:{ui_port}/console", "frontend": f"127.0.0.1:{port}"}
    for role in ("reader", "writer"):
        command = ["key", "create", "--namespace", "default", "--role", role, "--name", role, "--config", str(config)]
        made = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "fairlead", "admin", *command], check=True, capture_output=True, text=True
        )
        found[role] = made.stdout.strip()
    with running(sys.executable, "-m", "fairlead", "server", "start", "--config", config, until=str(port)):
        yield found


@pytest.fixture
def visitor(browser: Browser, guarded: dict[str, str]) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = open_page(context, guarded["console"])
    yield found
    context.close()
    assert not found.faults


def test_a_reader_signs_in_looks_and_has_no_buttons_and_a_writer_has_them(
    visitor: Seen, guarded: dict[str, str]
) -> None:
    async def start() -> None:
        client = await Client.connect(guarded["frontend"], api_key=guarded["writer"], tls=False)
        await client.start_workflow("Nobody", id="w", task_queue="q")

    in_another_thread(start())
    page = visitor.page
    visitor.goto("workflow?id=w")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    visitor.shoot("sign-in")
    visitor.allowed.add(403)
    page.get_by_label("API key or token").fill("fl_not_a_key")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not a valid API key")
    page.get_by_label("API key or token").fill(guarded["reader"])
    page.get_by_role("button", name="Sign in").click()
    # The page that was asked for is shown.
    expect(page.get_by_role("heading", name="w", exact=True)).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("live")
    expect(page.locator("#act-terminate-")).to_have_count(0)
    assert "fairlead_session" not in page.evaluate("document.cookie")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("API key or token").fill(guarded["writer"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    visitor.goto("workflow?id=w")
    expect(page.locator("#act-terminate- summary")).to_be_visible()
