"""The views for operators in a browser: schedules, workers, clusters, branches, namespaces, settings, keys, audit."""

from datetime import timedelta

import pytest
from playwright.sync_api import expect
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec

from tests.console.conftest import Place, Seen, in_another_thread

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


def test_a_schedule_is_deleted_with_a_typed_word(seen: Seen, place: Place) -> None:
    async def create() -> None:
        client = await Client.connect(place.frontend)
        action = ScheduleActionStartWorkflow("Order", "rope", id="weekly", task_queue="orders")
        every = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(days=7))])
        await client.create_schedule("weekly", Schedule(action=action, spec=every))

    in_another_thread(create())
    page = seen.page
    seen.goto("schedules")
    row = page.locator("#schedules tbody tr").filter(has_text="weekly")
    form = row.locator("details.action", has=page.locator("summary", has_text="Delete"))
    form.locator("summary").click()
    form.get_by_label("Reason").fill("no longer needed")
    form.get_by_label("Type delete").fill("no")
    form.get_by_role("button").click()
    # The browser does not send the form with another word.
    expect(page.locator("p.notice")).to_have_count(0)
    form.get_by_label("Type delete").fill("delete")
    form.get_by_role("button").click()
    expect(page.locator("p.notice")).to_have_text("The schedule weekly is deleted.")
    expect(row).to_have_count(0)
    seen.shoot("schedules-deleted")


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
