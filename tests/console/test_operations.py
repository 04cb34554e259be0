"""The views for operators in a browser: schedules, workers, clusters, branches, namespaces, settings, keys, audit."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from playwright.sync_api import expect
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleIntervalSpec, ScheduleSpec
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from tests.console.conftest import Place, Seen, in_another_thread
from tests.console.loop_thread import loop_thread
from tests.console.stuck_workflows import Waiting

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


def test_one_schedule_shows_its_times_actions_and_counts(seen: Seen) -> None:
    page = seen.page
    seen.goto("schedules")
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.locator("#spec")).to_contain_text("every 1h")
    expect(page.locator("#upcoming tbody tr").first).to_be_visible()
    act = page.locator("#act-trigger-")
    act.locator("summary").click()
    act.get_by_label("Reason").fill("now")
    act.get_by_role("button").click()
    expect(page.get_by_text("The schedule nightly runs now.")).to_be_visible()
    expect(page.locator("#recent tbody tr").first).to_contain_text("nightly-")
    expect(page.locator("#facts")).to_contain_text("Missed")
    act = page.locator("#act-pause-")
    act.locator("summary").click()
    act.get_by_label("Reason").fill("a holiday")
    act.get_by_role("button").click()
    expect(page.get_by_text("nightly is paused: a holiday")).to_be_visible()
    seen.shoot("schedule")
    act = page.locator("#act-resume-")
    act.locator("summary").click()
    act.get_by_label("Reason").fill("back")
    act.get_by_role("button").click()
    expect(page.locator("#act-pause-")).to_be_visible()
    seen.goto("schedule?id=none")
    expect(page.get_by_text("This namespace has no schedule 'none'.")).to_be_visible()
    expect(page.locator("details.action")).to_have_count(0)


@pytest.fixture
def versions(place: Place) -> Iterator[None]:
    """Two versions of a deployment poll while the test runs."""

    # By default the SDK sends a heartbeat each minute, and not always one at the start.
    runtime = Runtime(telemetry=TelemetryConfig(), worker_heartbeat_interval=timedelta(seconds=1))

    async def poll() -> None:
        async with AsyncExitStack() as stack:
            for build_id in ("red", "green"):
                worker = Worker(
                    await Client.connect(place.frontend, runtime=runtime),
                    task_queue="shop",
                    workflows=[Waiting],
                    workflow_runner=UnsandboxedWorkflowRunner(),
                    identity=f"worker of {build_id}",
                    deployment_config=WorkerDeploymentConfig(
                        version=WorkerDeploymentVersion("shop", build_id),
                        use_worker_versioning=True,
                        default_versioning_behavior=VersioningBehavior.PINNED,
                    ),
                )
                await stack.enter_async_context(worker)
            await is_over.wait()

    is_over = asyncio.Event()
    with loop_thread() as thread:
        polling = asyncio.run_coroutine_threadsafe(poll(), thread.loop)
        yield
        thread.loop.call_soon_threadsafe(is_over.set)
        polling.result(timeout=60)


def test_versions_of_a_deployment_are_made_current_and_ramped(seen: Seen, versions: None) -> None:
    page = seen.page
    seen.goto("workers")
    # The workers register themselves while the page is live.
    expect(page.locator("#deployments").get_by_role("link", name="shop")).to_be_visible()
    expect(page.locator("#workers")).to_contain_text("worker of green")
    seen.shoot("workers-versions")
    page.get_by_role("link", name="shop").click()
    rows = page.locator("#versions tbody tr")
    expect(rows).to_have_count(2)
    expect(page.get_by_text("New workflows start on unversioned workers.")).to_be_visible()
    red, green = rows.filter(has_text="red"), rows.filter(has_text="green")
    form = red.locator("#act-current-red")
    form.locator("summary").click()
    form.get_by_label("Reason").fill("the first release")
    form.get_by_label("Type current").fill("current")
    form.get_by_role("button").click()
    expect(page.get_by_text("New workflows start on version red.")).to_be_visible()
    form = green.locator("#act-ramp-green")
    form.locator("summary").click()
    form.get_by_label("Reason").fill("a try")
    form.get_by_label("Percent of new workflows").fill("25")
    form.get_by_role("button").click()
    expect(page.get_by_text("New workflows start on version red, 25 % of them on version green.")).to_be_visible()
    expect(green).to_contain_text("ramping")
    expect(green).to_contain_text("25 %")
    expect(red).to_contain_text("75 %")
    seen.shoot("deployment")
    seen.allowed.add(400)
    form = green.locator("#act-ramp-green")
    form.locator("summary").click()
    form.get_by_label("Reason").fill("a try")
    form.get_by_label("Percent of new workflows").fill("101")
    form.get_by_role("button").click()
    expect(page.get_by_text("give a number from 0 to 100")).to_be_visible()


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
