"""Why is it stuck: real workflows on a real server, and the sentence that the page says about them."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from temporalio.client import Client
from temporalio.common import PinnedVersioningOverride, VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from fairlead.console import diagnosis as diagnosis_module
from fairlead.console.findings import Cause
from fairlead.server.process import Server
from tests.console.conftest import Place, Seen, in_another_thread
from tests.console.stuck_workflows import Waiting, fail, sleep_quietly
from tests.console.web import Visitor, new_key, running_console
from tests.patience import PATIENCE_S, until

QUEUE = "waiting"


@asynccontextmanager
async def worker_of(server: Server, *, slots: int = 1, **options: Any) -> AsyncIterator[Client]:
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address, **options)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Waiting],
        activities=[fail, sleep_quietly],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_activities=slots,
    )
    async with worker:
        yield client


async def diagnosis(visitor: Visitor, workflow_id: str, cause: Cause, **parameters: str) -> dict[str, Any]:
    """The first finding about a workflow, as soon as it is this cause."""
    found: dict[str, Any] = {}
    try:
        async with asyncio.timeout(PATIENCE_S):
            while found.get("cause") != cause:
                data = await visitor.data("stuck", id=workflow_id, **parameters)
                found = {**data["findings"][0], "queues": data["queues"]}
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{workflow_id}: {found} is not {cause}") from None
    return found


async def test_each_reason_is_named_for_real_workflows() -> None:
    async with running_console() as (server, visitor), worker_of(server) as client:

        async def start(what: str, workflow_id: str, queue: str = QUEUE) -> None:
            await client.start_workflow(Waiting.run, what, id=workflow_id, task_queue=queue)

        await start("timer", "w-timer")
        await start("child", "w-child")
        await start("signal", "w-signal")
        await start("failing task", "w-failing")
        await start("nobody/fail", "w-no-worker")
        await start("/fail", "w-backing-off")
        await start("signal", "w-alone", "no-such-queue")
        assert "fires in 59m" in (await diagnosis(visitor, "w-timer", Cause.WAITS_FOR_TIMER))["sentence"]
        assert "w-child-child (Waiting)" in (await diagnosis(visitor, "w-child", Cause.WAITS_FOR_CHILD))["sentence"]
        await diagnosis(visitor, "w-signal", Cause.WAITS_FOR_SIGNAL)
        failing = await diagnosis(visitor, "w-failing", Cause.TASK_FAILING)
        assert "a bug in the code" in failing["sentence"]
        alone = await diagnosis(visitor, "w-no-worker", Cause.NO_WORKER)
        assert "task queue nobody, and no worker polls it for activities" in alone["sentence"]
        assert ["Position in the fair backlog", "1"] in alone["evidence"]
        assert alone["queues"][0]["partitions"][0]["backlog"] == 1
        # The workflow's own page has the reason, too.
        assert (await visitor.data("workflow", id="w-no-worker"))["reason"]["cause"] == Cause.NO_WORKER
        page = (await visitor.get("workflow", id="w-no-worker")).body.decode()
        assert "and no worker polls it for activities" in page
        backing_off = await diagnosis(visitor, "w-backing-off", Cause.BACKING_OFF)
        assert "waits for attempt 2" in backing_off["sentence"]
        assert "out of boxes" in backing_off["sentence"]
        unserved = await diagnosis(visitor, "w-alone", Cause.NO_WORKER)
        assert "polls it for workflows" in unserved["sentence"]
        await client.get_workflow_handle("w-signal").terminate()
        await diagnosis(visitor, "w-signal", Cause.CLOSED)
        assert (await visitor.data("workflow", id="w-signal"))["reason"] is None


async def test_a_worker_that_hangs_and_a_worker_without_a_free_slot_are_named() -> None:
    async with running_console() as (server, visitor), worker_of(server) as client:
        await client.start_workflow(Waiting.run, "/sleep_quietly", id="w-hangs", task_queue=QUEUE)
        hangs = await diagnosis(visitor, "w-hangs", Cause.NO_HEARTBEAT)
        assert "the timeout is 2 s" in hangs["sentence"]
        await client.start_workflow(Waiting.run, "/fail", id="w-busy", task_queue=QUEUE)
        await diagnosis(visitor, "w-busy", Cause.WORKERS_BUSY)


async def test_a_rate_limit_and_a_type_that_no_worker_has_are_named() -> None:
    async with running_console() as (server, visitor), worker_of(server) as client:
        await client.start_workflow(Waiting.run, "/unknown_type", id="w-type", task_queue=QUEUE)
        found = await diagnosis(visitor, "w-type", Cause.NO_WORKER_OF_TYPE)
        assert "unknown_type" in found["sentence"]
        assert server.frontend_address is not None
        limited = Worker(client, task_queue="limited", activities=[fail], max_task_queue_activities_per_second=0.001)
        async with limited:
            for number in range(3):
                await client.start_workflow(Waiting.run, "limited/fail", id=f"w-{number}", task_queue=QUEUE)
            held = None
            async with asyncio.timeout(PATIENCE_S):
                while held is None:
                    for number in range(3):
                        data = await visitor.data("stuck", id=f"w-{number}")
                        if data["findings"][0]["cause"] == Cause.RATE_LIMIT:
                            held = data["findings"][0]
                    await asyncio.sleep(0.05)
            assert "max_task_queue_activities_per_second" in held["advice"]


@pytest.mark.parametrize(
    ("setting", "cause"),
    [("taskQueueConcurrency", Cause.RUNNING_LIMIT), ("fairnessKeyConcurrency", Cause.KEY_RUNNING_LIMIT)],
)
async def test_a_limit_on_running_activities_is_named(tmp_path: Path, setting: str, cause: Cause) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text(f"matching.{setting}:\n- value: 1\n")
    async with running_console(dynamic_file=file) as (server, visitor), worker_of(server, slots=5) as client:
        await client.start_workflow(Waiting.run, "/sleep_quietly", id="w-first", task_queue=QUEUE)
        await diagnosis(visitor, "w-first", Cause.RUNNING)
        await client.start_workflow(Waiting.run, "/fail", id="w-second", task_queue=QUEUE)
        found = await diagnosis(visitor, "w-second", cause)
        assert f"as many as matching.{setting} allows" in found["sentence"]
        assert "1 of 1" in dict(found["evidence"]).values()


async def test_an_activity_that_is_not_pending_is_named_with_a_link_to_the_whole_workflow() -> None:
    async with running_console() as (server, visitor), worker_of(server) as client:
        await client.start_workflow(Waiting.run, "timer", id="w-timer", task_queue=QUEUE)
        await diagnosis(visitor, "w-timer", Cause.WAITS_FOR_TIMER)
        found = await diagnosis(visitor, "w-timer", Cause.ACTIVITY_NOT_PENDING, activity="99")
        assert "no pending activity 99" in found["sentence"]
        page = (await visitor.get("stuck", id="w-timer", activity="99")).body.decode()
        assert re.search(r'href="/console/stuck\?namespace=default&amp;id=w-timer&amp;run=[^"&]+"', page)


async def test_a_reader_of_one_namespace_gets_a_diagnosis_without_partitions() -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        assert server.frontend_address is not None
        client = await Client.connect(server.frontend_address, api_key=await new_key(server, "write"), tls=False)
        await client.start_workflow("Waiting", "signal", id="w-alone", task_queue="no-such-queue")
        await visitor.sign_in(await new_key(server, "read"))
        found = await diagnosis(visitor, "w-alone", Cause.NO_WORKER)
        assert found["queues"][0]["partitions"] == []
        await visitor.sign_in(await new_key(server, "read", "temporal-system"))
        found = await diagnosis(visitor, "w-alone", Cause.NO_WORKER)
        assert found["queues"][0]["partitions"] != []


async def test_each_of_several_activities_of_a_run_has_its_own_position() -> None:
    async with running_console() as (server, visitor), worker_of(server) as client:
        await client.start_workflow(Waiting.run, "three activities", id="w-three", task_queue=QUEUE)
        positions: dict[str, str] = {}
        for number in range(3):
            found = await diagnosis(visitor, "w-three", Cause.NO_WORKER, activity=f"a-{number}")
            positions[f"a-{number}"] = dict(found["evidence"])["Position in the fair backlog"]
        assert sorted(positions.values()) == ["1", "2", "3"]


async def test_a_workflow_of_a_version_without_a_worker_names_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers count as gone soon after their last poll, so that the test need not wait for a minute.
    monkeypatch.setattr(diagnosis_module, "POLLER_GONE_S", 0.2)
    async with running_console() as (server, visitor):
        assert server.frontend_address is not None
        client = await Client.connect(server.frontend_address)

        async def start_pinned() -> bool:
            override = PinnedVersioningOverride(WorkerDeploymentVersion("app", "v1"))
            try:
                await client.start_workflow(
                    Waiting.run, "signal", id="w-old", task_queue=QUEUE, versioning_override=override
                )
            except RPCError as failure:
                # The version's first poll has not arrived yet.
                if "is not present in task queue" not in failure.message:
                    raise
                return False
            return True

        async with versioned_worker(client, "v1"):
            await until(start_pinned)
            await diagnosis(visitor, "w-old", Cause.WAITS_FOR_SIGNAL)
            page = await visitor.data("task-queue", name=QUEUE, type="workflow", version="app:v1")
            assert [one["version"] for one in page["workers"]] == ["app.v1"]
        async with versioned_worker(client, "v2"):
            await client.get_workflow_handle("w-old").signal("anything")
            found = await diagnosis(visitor, "w-old", Cause.NO_WORKER_OF_VERSION)
            assert "a worker of version app.v1, and there is none" in found["sentence"]
        async with versioned_worker(client, "v1"):
            await diagnosis(visitor, "w-old", Cause.WAITS_FOR_SIGNAL)


def versioned_worker(client: Client, build_id: str) -> Worker:
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Waiting],
        workflow_runner=UnsandboxedWorkflowRunner(),
        identity=f"worker of {build_id}",
        # Without a cache there is no sticky task queue, for whose timeout the test would have to wait.
        max_cached_workflows=0,
        deployment_config=WorkerDeploymentConfig(
            version=WorkerDeploymentVersion("app", build_id),
            use_worker_versioning=True,
            default_versioning_behavior=VersioningBehavior.PINNED,
        ),
    )


def test_the_page_says_why_and_becomes_calm_when_it_is_mended(seen: Seen, place: Place) -> None:
    async def start() -> None:
        client = await Client.connect(place.frontend)
        await client.start_workflow("Order", "rope", id="stuck-order", task_queue="other <orders>")

    in_another_thread(start())
    seen.goto("workflow?id=stuck-order")
    page = seen.page
    page.get_by_role("link", name="Why is it stuck?").click()
    expect(page.locator(".sentence")).to_contain_text("task queue other <orders>, and no worker polls it")
    expect(page.get_by_text("Start a worker for task queue")).to_be_visible()
    seen.shoot("stuck")
    page.get_by_role("link", name="The workflow", exact=True).click()
    expect(page.get_by_role("heading", name="stuck-order")).to_be_visible()
    seen.goto("stuck?id=order-1")
    expect(page.locator(".sentence.calm")).to_contain_text("waits for a signal or an update")


def test_an_open_page_becomes_calm_when_a_worker_is_started(seen: Seen, place: Place) -> None:
    queue = "to be mended"
    ended = threading.Event()

    async def start() -> None:
        client = await Client.connect(place.frontend)
        await client.start_workflow(Waiting.run, "signal", id="mended", task_queue=queue)

    async def work() -> None:
        client = await Client.connect(place.frontend)
        worker = Worker(client, task_queue=queue, workflows=[Waiting], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker:
            await asyncio.to_thread(ended.wait)

    in_another_thread(start())
    seen.goto("stuck?id=mended")
    page = seen.page
    expect(page.locator(".sentence")).to_contain_text("and no worker polls it")
    expect(page.locator("#live-state")).to_have_text("live")
    mending = threading.Thread(target=lambda: asyncio.run(work()))
    mending.start()
    try:
        expect(page.locator(".sentence.calm")).to_contain_text("waits for a signal or an update")
        seen.shoot("stuck-mended")
    finally:
        ended.set()
        mending.join(60)
