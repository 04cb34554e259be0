"""Temporal's own pages on Fairlead: they show the server's data, and their buttons work.

These tests start a server, a worker and a browser, and so take longer than most.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.ui.conftest import WAIT_MS, Seen

expect.set_options(timeout=WAIT_MS)
pytestmark = pytest.mark.timeout(300)

# A folder for pictures of the pages; none are made without it.
PICTURES = os.environ.get("FAIRLEAD_TEST_PICTURES")


def picture(page: Page, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def row(page: Page, text: str) -> Locator:
    return page.locator("tbody tr", has_text=re.compile(rf"\b{re.escape(text)}\b(?!-)")).first


def confirm(page: Page, dialog: str, fill: Callable[[Locator], None] = lambda _dialog: None) -> None:
    """Fill in a dialog and confirm it."""
    opened = page.locator(f"dialog#{dialog}[open]")
    expect(opened).to_be_visible()
    fill(opened)
    opened.get_by_test_id("confirm-modal-button").click()
    expect(opened).to_be_hidden()


def status(page: Page) -> Locator:
    """The status of the workflow that is shown."""
    return page.get_by_test_id("execution-status").first


def choose_action(page: Page, button: str) -> None:
    page.get_by_role("button", name="More Actions").click()
    page.get_by_test_id(button).locator("visible=true").click()


def test_workflows_are_listed_counted_and_filtered(seen: Seen) -> None:
    page = seen.page
    page.goto(seen.address)
    expect(page).to_have_url(re.compile("/namespaces/default/workflows"))
    expect(row(page, "order-1")).to_contain_text("Running", ignore_case=True)
    expect(row(page, "order-0")).to_contain_text("Completed", ignore_case=True)
    expect(page.get_by_test_id("workflow-status-Completed")).to_be_visible()
    picture(page, "workflows")
    seen.goto("/workflows?query=%60WorkflowId%60%3D%22order-0%22")
    expect(row(page, "order-0")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_test_id("toggle-manual-query").click()
    query = page.get_by_test_id("workflow-manual-search-input")
    query.fill('`WorkflowType`="Shipment"')
    query.press("Enter")
    expect(row(page, "order-1-shipment")).to_be_visible()
    expect(page.locator("tbody tr", has_text=re.compile(r"\bOrder\b"))).to_have_count(0)
    picture(page, "filter")


def test_a_workflow_has_its_timeline_and_its_history(seen: Seen) -> None:
    page = seen.page
    seen.goto("/workflows/order-0")
    expect(page).to_have_url(re.compile(r"/workflows/order-0/[0-9a-f-]{36}/timeline"))
    expect(page.get_by_role("heading", name="order-0")).to_be_visible()
    expect(page.get_by_text("2 • pack").first).to_be_visible()
    expect(page.get_by_text('"packed rope"').first).to_be_visible()
    picture(page, "timeline")
    page.get_by_test_id("history-tab").click()
    for event in ("Workflow Execution Started", "Workflow Execution Signaled", "Workflow Execution Completed"):
        expect(page.get_by_text(event).first).to_be_visible()
    picture(page, "history")
    seen.goto("/workflows/order-1")
    expect(page.get_by_text("Results will appear upon completion").first).to_be_visible()


def test_a_workflow_is_signaled(seen: Seen) -> None:
    page = seen.page
    seen.goto("/workflows/order-1")
    choose_action(page, "signal-button")

    def fill(dialog: Locator) -> None:
        dialog.get_by_test_id("signal-select-button").click()
        dialog.get_by_role("option", name="finish").click()
        dialog.get_by_role("textbox", name="Data").fill('"from the page"')
        picture(page, "signal")

    confirm(page, "signal-confirmation-modal", fill)
    expect(page.get_by_text('"packed rope"').first).to_be_visible()


def test_a_workflow_is_cancelled(seen: Seen) -> None:
    page = seen.page
    seen.goto("/workflows/order-2")
    page.get_by_role("button", name="Request Cancellation").click()
    confirm(page, "cancel-confirmation-modal")
    expect(status(page)).to_have_text("Canceled", ignore_case=True)
    picture(page, "cancelled")


def test_a_workflow_is_terminated(seen: Seen) -> None:
    page = seen.page
    seen.goto("/workflows/order-3")
    choose_action(page, "terminate-button")
    confirm(page, "terminate-confirmation-modal", lambda dialog: dialog.get_by_role("textbox").fill("not needed"))
    expect(status(page)).to_have_text("Terminated", ignore_case=True)
    picture(page, "terminated")


def test_a_workflow_is_reset(seen: Seen) -> None:
    page = seen.page
    seen.goto("/workflows/order-0")
    page.get_by_role("button", name="Reset").click()

    def fill(dialog: Locator) -> None:
        dialog.get_by_test_id("workflow-reset-event-id-select-button").click()
        dialog.get_by_role("option").first.click()
        dialog.get_by_test_id("reset-reason").fill("once more")

    confirm(page, "reset-confirmation-modal", fill)
    seen.goto("/workflows?query=%60WorkflowId%60%3D%22order-0%22")
    expect(page.locator("tbody tr")).to_have_count(2)
    picture(page, "reset")


def test_a_schedule_is_shown_and_paused(seen: Seen) -> None:
    page = seen.page
    seen.goto("/schedules")
    expect(row(page, "nightly")).to_contain_text("Order")
    picture(page, "schedules")
    row(page, "nightly").get_by_role("link", name="nightly").click()
    page.get_by_role("button", name="Pause", exact=True).click()
    confirm(page, "pause-schedule-modal", lambda dialog: dialog.get_by_role("textbox").fill("for now"))
    expect(page.get_by_role("button", name="Unpause", exact=True)).to_be_visible()
    picture(page, "schedule")
    page.get_by_role("button", name="Schedule Actions", exact=True).click()
    page.get_by_text("Trigger", exact=True).locator("visible=true").first.click()
    confirm(page, "trigger-schedule-modal")
    expect(page.get_by_role("link", name=re.compile(r"^nightly-20")).first).to_be_visible()
    picture(page, "schedule-triggered")


def test_a_task_queue_has_its_pollers(seen: Seen) -> None:
    page = seen.page
    seen.goto("/task-queues/orders")
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    page.get_by_role("button", name=re.compile("Pollers")).click()
    expect(page.locator("tbody tr").first).to_contain_text("@")
    picture(page, "task-queue")


def test_many_workflows_are_terminated_in_a_batch(seen: Seen) -> None:
    page = seen.page
    seen.goto(
        "/workflows?query=%60WorkflowId%60+IN+%28%22order-4%22%2C%22order-5%22%29+AND+%60ExecutionStatus%60%3D%22Running%22"
    )
    expect(page.locator("tbody tr")).to_have_count(2)
    page.locator("thead input[type=checkbox]").first.check(force=True)
    page.get_by_test_id("bulk-terminate-button").click()
    confirm(
        page, "batch-terminate-confirmation-modal", lambda dialog: dialog.get_by_role("textbox").first.fill("too many")
    )
    seen.goto("/batch-operations")
    expect(page.locator("tbody tr").first).to_contain_text("Completed", ignore_case=True)
    picture(page, "batch")
    seen.goto("/workflows/order-4")
    expect(status(page)).to_have_text("Terminated", ignore_case=True)
