"""The try of a new user: from the start of a server to knowing why a workflow is stuck, by links alone."""

import re
import sys
import time

from playwright.sync_api import Browser, expect
from temporalio.client import Client

from tests.console.conftest import Seen, in_another_thread, open_page
from tests.ports import free_port
from tests.ui.conftest import running

# Seconds from the first page to the reason, without the time that a person reads.
SECONDS_MAX = 60.0
CLICKS_MAX = 2


class Clicks:
    """Follows links of a page, and counts them."""

    def __init__(self, seen: Seen) -> None:
        self.seen = seen
        self.count = 0

    def follow(self, name: str | re.Pattern[str], within: str = "body") -> None:
        """Click the first link with this name."""
        self.seen.page.locator(within).get_by_role("link", name=name).first.click()
        self.count += 1


def test_a_new_user_knows_in_under_a_minute_why_a_workflow_is_stuck(browser: Browser) -> None:
    port, ui_port = free_port(), free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--port", str(port), "--ui-port", str(ui_port)]

    async def start() -> None:
        client = await Client.connect(f"127.0.0.1:{port}")
        await client.start_workflow("Checkout", id="checkout-7", task_queue="checkouts")

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    with running(*command, until="Ready"):
        in_another_thread(start())
        # The address is the one that the server prints; everything else is links.
        seen = open_page(context, f"http://127.0.0.1:{ui_port}/console")
        began_s = time.monotonic()
        seen.goto("")
        page = seen.page
        seen.shoot("new-user-1-home")
        clicks = Clicks(seen)
        clicks.follow("Workflows", "nav")
        clicks.follow("checkout-7", "#rows")
        reason = "The workflow task waits in task queue checkouts, and no worker polls it for workflows."
        expect(page.locator("p.sentence")).to_have_text(reason)
        expect(page.get_by_text("Start a worker for task queue checkouts")).to_be_visible()
        seen.shoot("new-user-2-why")
        assert clicks.count <= CLICKS_MAX
        assert time.monotonic() - began_s < SECONDS_MAX
        # The evidence is behind the sentence.
        clicks.follow(re.compile("The workflow task waits"), "main")
        expect(page.get_by_text("Position in the fair backlog")).to_be_visible()

        # The overview leads to the cause, too: the task queue that waits.
        page.get_by_role("link", name="Overview").click()
        clicks = Clicks(seen)
        clicks.follow(re.compile("checkouts"), "main")
        expect(page.locator("main")).to_contain_text(re.compile("no worker", re.IGNORECASE))
        seen.shoot("new-user-3-queue")
        context.close()
        assert not seen.faults
