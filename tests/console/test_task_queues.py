"""The views of task queues in a browser: the list, one queue with its tree, fairness, the scaler, and the ring."""

import asyncio

import pytest
from playwright.sync_api import expect
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest
from temporalio.client import Client
from temporalio.common import Priority

from tests.console.conftest import Place, Seen, in_another_thread

QUEUE = "lonely <b>queue</b> with a name that is long enough to be cut off somewhere in a table of a small screen"


@pytest.fixture(scope="module", autouse=True)
def backlog(place: Place) -> None:
    """Workflows in a task queue without a worker: a flood of one tenant, and a few of others."""

    async def start() -> None:
        client = await Client.connect(place.frontend)
        for tenant, count in (("flood", 12), ("small", 2), ("<i>third</i>", 1)):
            for number in range(count):
                await client.start_workflow(
                    "Nobody",
                    id=f"{tenant}-{number}",
                    task_queue=QUEUE,
                    priority=Priority(fairness_key=tenant, fairness_weight=2.0 if tenant == "small" else 1.0),
                )

    in_another_thread(start())


def test_a_queue_without_workers_is_found_and_explained(seen: Seen) -> None:
    page = seen.page
    seen.goto("task-queues")
    expect(page.get_by_role("heading", name="Task queues")).to_be_visible()
    row = page.locator("#queues tbody tr").filter(has_text="lonely")
    expect(row).to_contain_text("15")
    expect(row).to_contain_text("no workers")
    seen.shoot("task-queues")
    page.get_by_label("Name contains").fill("LONELY")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#queues tbody tr")).to_have_count(1)
    row.get_by_role("link").first.click()
    expect(page.locator("#held")).to_contain_text("No worker has polled in the last five minutes; 15 tasks wait")
    expect(page.locator("#tasks tbody tr")).to_have_count(15)
    expect(page.locator("#tasks")).to_contain_text("flood-0")
    expect(page.locator("#workers")).to_contain_text("No worker has polled")
    seen.shoot("task-queue")


def test_partitions_are_changed_and_drawn_as_a_tree(seen: Seen) -> None:
    page = seen.page
    seen.goto(f"task-queue?type=workflow&name={QUEUE}")
    page.get_by_text("Change partitions").first.click()
    page.get_by_label("Read partitions").fill("5")
    page.get_by_label("Write partitions").fill("3")
    page.get_by_label("Reason").first.fill("a test")
    page.get_by_role("button", name="Change partitions").click()
    expect(page.get_by_text("Read partitions: 5, write partitions: 3.")).to_be_visible()
    expect(page.locator("svg.tree g")).to_have_count(5)
    expect(page.locator("svg.tree g.drained")).to_have_count(2)
    expect(page.locator("#partitions tbody tr")).to_have_count(5)
    seen.shoot("task-queue-tree")
    page.get_by_role("link", name="Scaler").click()
    expect(page.locator("#changes tbody tr").first).to_contain_text("Changed by hand")


def test_a_rate_limit_is_set_shown_and_removed(seen: Seen) -> None:
    page = seen.page
    seen.goto("task-queue?type=activity&name=orders")
    expect(page.locator("#workers tbody tr")).to_have_count(1)
    page.get_by_text("Limit the rate").first.click()
    page.get_by_label("Tasks per second").fill("2.5")
    page.locator("#act-limit-").get_by_label("Reason").fill("slow down")
    page.get_by_role("button", name="Limit the rate").click()
    expect(page.get_by_text("The rate limit is 2.5 tasks per second.")).to_be_visible()
    expect(page.locator("#configuration")).to_contain_text("2.5 tasks per second, set with UpdateTaskQueueConfig")
    expect(page.locator("#configuration")).to_contain_text("slow down")
    page.get_by_text("Limit the rate").first.click()
    page.locator("#act-limit-").get_by_label("Reason").fill("fast again")
    page.get_by_role("button", name="Limit the rate").click()
    expect(page.get_by_text("The rate limit is removed.")).to_be_visible()
    seen.goto(f"task-queue?type=workflow&name={QUEUE}")
    expect(page.get_by_text("Limit the rate")).to_have_count(0)


def test_a_purge_keeps_the_tasks_of_workflows(seen: Seen) -> None:
    page = seen.page
    seen.goto(f"task-queue?type=workflow&name={QUEUE}")
    page.get_by_text("Purge").first.click()
    form = page.locator("#act-purge-")
    form.get_by_label("Reason").fill("a test")
    form.get_by_label("Type purge to confirm").fill("purge")
    form.get_by_role("button", name="Purge").click()
    expect(page.get_by_text("0 tasks removed. 15 tasks of workflows stayed")).to_be_visible()


def test_the_lanes_show_each_key_with_its_weight(seen: Seen) -> None:
    page = seen.page
    seen.goto(f"fairness?type=workflow&name={QUEUE}")
    lanes = page.locator("#lanes tbody tr")
    expect(lanes).to_have_count(3)
    expect(lanes.first).to_contain_text("flood")
    expect(page.locator("#lanes")).to_contain_text("<i>third</i>")
    seen.shoot("fairness")


def test_a_flood_is_marked_when_its_tasks_go_and_those_of_others_wait(seen: Seen, place: Place) -> None:
    async def dispatch() -> None:
        """Dispatch 60 of 110 tasks, all of the tenant with the higher priority."""
        client = await Client.connect(place.frontend)

        async def start(tenant: str, number: int, priority: int) -> None:
            await client.start_workflow(
                "Nobody",
                id=f"{tenant}-of-flood-{number}",
                task_queue="flooded",
                priority=Priority(priority_key=priority, fairness_key=tenant),
            )

        await asyncio.gather(*(start("noisy", number, 1) for number in range(100)))
        await asyncio.gather(*(start("quiet", number, 5) for number in range(10)))
        for _ in range(60):
            request = PollWorkflowTaskQueueRequest(
                namespace="default", task_queue=TaskQueue(name="flooded"), identity="a poller"
            )
            assert (await client.workflow_service.poll_workflow_task_queue(request)).task_token

    in_another_thread(dispatch())
    page = seen.page
    seen.goto("fairness?type=workflow&name=flooded")
    expect(page.locator("#verdict")).to_contain_text("noisy floods this task queue: 1 key got less than a tenth")
    lanes = page.locator("#lanes tbody tr")
    expect(lanes.filter(has_text="noisy")).to_contain_text("flood")
    expect(lanes.filter(has_text="noisy")).to_contain_text("100.0 %")
    expect(lanes.filter(has_text="quiet")).to_contain_text("starved")
    expect(page.locator("#lanes")).to_contain_text("tasks dispatched in the last 5m")
    seen.shoot("fairness-flood")


def test_the_scaler_says_that_it_is_off_and_shows_its_settings(seen: Seen) -> None:
    page = seen.page
    seen.goto(f"scaler?type=workflow&name={QUEUE}")
    expect(page.locator("#now")).to_contain_text("The scaler is off for this task queue")
    expect(page.locator("#settings")).to_contain_text("matching.partitionUpscaleRPS")
    seen.shoot("scaler")


def test_the_ring_shows_this_host_with_all_shards(seen: Seen) -> None:
    page = seen.page
    seen.goto("ring")
    expect(page.locator("#hosts tbody tr")).to_have_count(1)
    expect(page.locator("#hosts")).to_contain_text("100.0 %")
    seen.shoot("ring")


def test_an_unknown_task_queue_is_not_created_by_looking_at_it(seen: Seen) -> None:
    seen.allowed.add(400)
    seen.goto("task-queue?type=workflow&name=never-used")
    expect(seen.page.get_by_text("no task queue 'never-used' for workflow tasks")).to_be_visible()
    seen.goto("task-queues?search=never-used")
    expect(seen.page.get_by_text("No task queue matches.")).to_be_visible()
