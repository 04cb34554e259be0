"""The views for operators in a browser: schedules, workers, clusters, branches, namespaces, settings, keys, audit."""

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Seen

LISTS = ("schedules", "workers", "clusters", "ring", "namespaces", "settings", "keys", "audit", "task-queues", "report")


def test_a_schedule_is_paused_run_and_resumed(seen: Seen) -> None:
    page = seen.page
    seen.goto("schedules")
    row = page.locator("#schedules tbody tr").filter(has_text="nightly")
    expect(row).to_contain_text("active")
    row.locator("summary", has_text="Pause").click()
    row.locator("form[action*=pause]").get_by_label("Reason").fill("a holiday")
    row.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("is paused.")).to_be_visible()
    expect(row).to_contain_text("a holiday")
    seen.shoot("schedules")
    row.locator("summary", has_text="Run now").click()
    row.locator("form[action*=trigger]").get_by_label("Reason").fill("now")
    row.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("runs now.")).to_be_visible()
    row.locator("summary", has_text="Resume").click()
    row.locator("form[action*=resume]").get_by_label("Reason").fill("back")
    row.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("is active.")).to_be_visible()


@pytest.mark.parametrize("name", LISTS)
def test_a_list_fits_both_screens(seen: Seen, name: str) -> None:
    seen.goto(name)
    expect(seen.page.locator("main h1")).to_be_visible()
    seen.shoot(name)


def test_the_branches_of_a_workflow_are_drawn(seen: Seen) -> None:
    seen.goto("branches?id=order-0")
    page = seen.page
    expect(page.locator("#branches tbody tr")).to_have_count(1)
    expect(page.locator("#branches")).to_contain_text("current")
    seen.shoot("branches")
