"""The view of the lake in a browser."""

import sys
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.console.conftest import open_page
from tests.console.test_report import new_lake
from tests.ports import free_port
from tests.ui.conftest import running


def test_the_page_fits_both_screens_and_opens_the_report(browser: Browser, tmp_path: Path) -> None:
    ui_port = free_port()
    command = [sys.executable, "-m", "fairlead", "server", "start-dev", "--port", "0", "--ui-port", str(ui_port)]
    with running(*command, "--ui-lake", str(new_lake(tmp_path / "lake")), until="Ready"):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
        seen = open_page(context, f"http://127.0.0.1:{ui_port}/console")
        seen.goto("report")
        page = seen.page
        expect(page.locator("#wrong tbody tr")).to_have_count(2)
        expect(page.locator("#commands")).to_contain_text("--dry-run")
        seen.shoot("report")
        page.get_by_role("link", name="Dry run of the repair").click()
        expect(page.locator("#plan .problem")).to_contain_text("no remote clusters")
        assert not seen.faults
        page.goto(f"{seen.address}/report/page")
        expect(page.get_by_text("The report")).to_have_css("color", "rgb(255, 0, 0)")
        # The script in the page did not run.
        assert any("script" in fault for fault in seen.faults)
        context.close()
