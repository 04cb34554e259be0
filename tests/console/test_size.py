"""Pages with ten thousand rows in a browser: what they show, their next pages, and what they leave out."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.console.conftest import Seen, open_page
from tests.console.filled import KEYED, PURGED, PURGED_TASKS, QUEUES, WORKFLOWS, Filled, filled_server

# Task queues beside the numbered ones: the two special ones, and that of the workflow.
MORE_QUEUES = 3


@pytest.fixture(scope="module")
def filled() -> Iterator[Filled]:
    """One server for all tests: filling it takes some seconds."""
    with filled_server() as found:
        yield found


@pytest.fixture
def large(browser: Browser, filled: Filled) -> Iterator[Seen]:
    """A new page of that server; the test fails if the browser's console shows an error, or a request fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
    found = open_page(context, filled.console)
    yield found
    context.close()
    assert not found.faults


def test_the_list_of_ten_thousand_task_queues_has_pages_and_every_waiting_row_has_its_reason(large: Seen) -> None:
    page = large.page
    large.goto("task-queues")
    rows = page.locator("#queues tbody tr")
    expect(rows).to_have_count(100)
    expect(page.locator("#totals")).to_contain_text(f"{QUEUES + MORE_QUEUES:,}")
    expect(page.locator(".pager")).to_contain_text(f"1 to 100 of {QUEUES + MORE_QUEUES:,}")
    for row in rows.all():
        expect(row).to_contain_text("No worker has polled in the last five minutes")
    large.shoot("size-task-queues")
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".pager")).to_contain_text("101 to 200 of")
    large.goto("task-queues?sort=name&page=101")
    expect(rows).to_have_count(MORE_QUEUES)
    expect(page.get_by_role("link", name="Next")).to_have_count(0)
    page.get_by_role("link", name="Previous").click()
    expect(rows).to_have_count(100)


def test_task_queues_that_no_host_has_loaded_say_so_and_are_loaded_when_they_are_shown(large: Seen) -> None:
    page = large.page
    large.goto("task-queues?search=queue-098")
    rows = page.locator("#queues tbody tr")
    expect(rows).to_have_count(100)
    first = rows.filter(has_text="queue-09802")
    expect(page.locator("#totals")).to_contain_text("Not loaded")
    expect(first).to_contain_text("not loaded")
    large.shoot("size-not-loaded")
    # The page's live part shows the figures as soon as they are there.
    expect(page.locator("#queues tbody tr").filter(has_text="not loaded")).to_have_count(0)
    expect(first).to_contain_text("No worker has polled")


def test_the_list_of_ten_thousand_workflows_has_pages(large: Seen) -> None:
    page = large.page
    large.goto("workflows")
    expect(page.locator(".counts")).to_contain_text(f"{WORKFLOWS:,}")
    first = page.locator("#rows tbody tr").first
    expect(first).to_contain_text("order-00000")
    shown = page.locator("#rows tbody tr").count()
    large.shoot("size-workflows")
    page.get_by_role("link", name="Next").click()
    expect(first).to_contain_text(f"order-{shown:05d}")


def test_a_task_queue_with_ten_thousand_keys_says_what_its_pages_leave_out(large: Seen) -> None:
    page = large.page
    large.goto(f"task-queue?type=activity&name={KEYED}")
    expect(page.locator("#tasks tbody tr")).to_have_count(50)
    expect(page.locator("#tasks")).to_contain_text("The first 50 of 10,000 waiting tasks")
    large.shoot("size-task-queue")
    page.get_by_role("link", name="Fairness").click()
    expect(page.locator("#lanes tbody tr")).to_have_count(200)
    expect(page.locator("#lanes")).to_contain_text("The table has the first 200 of 10,000 keys.")
    expect(page.locator("#lanes")).to_contain_text("each partition lists its first 1,000")
    large.shoot("size-fairness")


def test_a_purge_removes_the_tasks_of_clients(large: Seen) -> None:
    page = large.page
    large.goto(f"task-queue?type=activity&name={PURGED}")
    expect(page.locator("#tasks")).to_contain_text(f"The first 50 of {PURGED_TASKS} waiting tasks")
    page.locator("#act-purge- summary").click()
    form = page.locator("#act-purge-")
    form.get_by_label("Reason").fill("a test")
    form.get_by_label("Type purge to confirm").fill("purge")
    large.shoot("purge")
    form.get_by_role("button", name="Purge").click()
    expect(page.get_by_text(f"{PURGED_TASKS} tasks removed.")).to_be_visible()
    expect(page.locator("#tasks")).to_contain_text("No task waits.")
    expect(page.locator("#held")).to_contain_text("Nothing waits.")
