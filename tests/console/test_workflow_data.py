"""One workflow and its branches without a browser: what a reader of the namespace gets."""

import asyncio
import html
import json
import re
from datetime import timedelta

import pytest
from temporalio import workflow
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import CreateNexusEndpointRequest
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.console.timeline import SPANS_MAX
from fairlead.console.views import workflow as view
from fairlead.server.process import Server
from tests.console.stuck_workflows import Waiting, fail
from tests.console.web import Visitor, new_key, running_console
from tests.patience import until


async def connected(server: Server, key: str | None = None) -> Client:
    return await Client.connect(str(server.frontend_address), api_key=key, tls=False)


@workflow.defn
class Family:
    """A parent waits for its child, a timer, an activity and a Nexus operation; the child's first run has a second."""

    @workflow.run
    async def run(self, role: str) -> None:
        if role == "first run":
            workflow.continue_as_new("second run")
        if role == "parent":
            desk = workflow.create_nexus_client(endpoint="desk", service="greeting")
            once = timedelta(hours=1)
            await asyncio.gather(
                workflow.execute_child_workflow(Family.run, "first run", id="child"),
                workflow.sleep(3600),
                workflow.execute_activity(fail, start_to_close_timeout=once),
                desk.execute_operation("greet", "hello", schedule_to_close_timeout=once),
            )
        await workflow.wait_condition(lambda: False)


async def endpoint(client: Client) -> None:
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue="nobody"))
    await client.operator_service.create_nexus_endpoint(
        CreateNexusEndpointRequest(spec=EndpointSpec(name="desk", target=target))
    )


async def test_pending_work_of_every_kind_is_listed_and_relations_are_linked() -> None:
    async with running_console() as (server, visitor):
        client = await connected(server)
        await endpoint(client)
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue="q", workflows=[Family], activities=[fail], workflow_runner=runner):
            parent = await client.start_workflow(Family.run, "parent", id="parent", task_queue="q")

            async def is_waiting() -> bool:
                data = await visitor.data("workflow", id="parent")
                kinds = [one["kind"] for one in data["waiting"]]
                failed = [one for one in data["activities"] if one["failed_s"] and one["next_s"]]
                return kinds == ["timer", "child", "nexus"] and bool(failed) and await _has_second_run(visitor)

            await until(is_waiting)
            data = await visitor.data("workflow", id="parent")
            timer, child, nexus = data["waiting"]
            assert timer["until_s"] > data["started_s"] + 3_000
            assert (child["name"], child["detail"]) == ("child", "Family")
            assert nexus["name"] == "greeting/greet at desk"

            second = await visitor.data("workflow", id="child")
            assert relation(second, "parent") == ("parent", parent.first_execution_run_id)
            first_run = relation(second, "previous run")[1]
            assert relation(second, "first run") == ("child", first_run)
            first = await visitor.data("workflow", id="child", run=first_run)
            assert relation(first, "next run") == ("child", second["run"])
            assert relation(data, "child") == ("child", first_run)

            request = ResetWorkflowExecutionRequest(
                namespace="default", reason="a test", workflow_task_finish_event_id=4, request_id="r"
            )
            request.workflow_execution.workflow_id = "parent"
            new = await client.workflow_service.reset_workflow_execution(request)
            old = await visitor.data("workflow", id="parent", run=parent.first_execution_run_id or "")
            assert relation(old, "reset to") == ("parent", new.run_id)


async def test_the_attempts_of_a_pending_activity_are_drawn_though_they_have_no_events() -> None:
    async with running_console() as (server, visitor):
        client = await connected(server)
        runner = UnsandboxedWorkflowRunner()
        async with Worker(client, task_queue="q", workflows=[Waiting], activities=[fail], workflow_runner=runner):
            await client.start_workflow(Waiting.run, "/fail", id="w", task_queue="q")

            async def has_failed() -> bool:
                return any(one["next_s"] for one in (await visitor.data("workflow", id="w"))["activities"])

            await until(has_failed)
        data = await visitor.data("workflow", id="w")
        (span,) = [one for one in data["spans"] if one["kind"] == "activity"]
        assert (span["outcome"], span["attempt"]) == ("retries", 2)
        assert span["began_s"] <= span["failed_s"]
        assert 'class="ran failed"' in (await visitor.get("workflow", id="w")).body.decode()


async def _has_second_run(visitor: Visitor) -> bool:
    reply = await visitor.get("workflow.json", id="child")
    return reply.status == 200 and any(one["kind"] == "previous run" for one in json.loads(reply.body)["relations"])


def relation(data: dict[str, list[dict[str, str]]], kind: str) -> tuple[str, str]:
    """The workflow id and the run of the only relation of a kind."""
    (found,) = [one for one in data["relations"] if one["kind"] == kind]
    return found["id"], found["run"]


async def test_a_long_run_shows_its_newest_part_and_says_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "NEWEST_EVENTS", 40)
    async with running_console() as (server, visitor):
        client = await connected(server)
        handle = await client.start_workflow("Nobody", id="long", task_queue="q")
        # More events than the first page and the newest part have together: a page ends with a whole batch, and a batch
        # may have the events of 100 signals.
        for first in range(0, 1_300, 100):
            await asyncio.gather(*(handle.signal(f"signal-{number}") for number in range(first, first + 100)))
        await handle.signal("the newest")
        data = await visitor.data("workflow", id="long")
        total = data["events_total"]
        (first, last), newest = data["drawn"]
        assert (first, last >= 1_000, newest) == (1, True, [total - 39, total])
        assert data["spans"][-1]["label"] == "the newest"
        assert (len(data["spans"]), data["spans_total"]) == (SPANS_MAX, last - 2 + 40)
        page = " ".join((await visitor.get("workflow", id="long")).body.decode().split())
        assert f"These are the oldest and the newest 100 of {last + 38:,} rows." in page
        assert f"Drawn from the events 1 to {last:,} and {total - 39:,} to {total:,}" in page


def link_of(page: bytes, text: str) -> str:
    """The address of the link with this text, below /console/."""
    found = re.search(rf'<a href="/console/([^"]+)">{text}</a>', page.decode())
    assert found is not None, text
    return html.unescape(found.group(1))


async def test_a_signed_in_reader_follows_the_page_to_all_events_and_to_the_branches() -> None:
    async with running_console(is_guarded=True) as (server, visitor):
        client = await connected(server, await new_key(server, "writer"))
        handle = await client.start_workflow("Nobody", id="w/<1>", task_queue="q")
        await visitor.sign_in(await new_key(server, "reader"))
        page = (await visitor.get("workflow", id="w/<1>")).body
        events = await visitor.get(link_of(page, "All as JSON"))
        assert (events.status, events.headers["content-type"]) == (200, "application/json")
        assert [one["eventType"] for one in json.loads(events.body)] == [
            "EVENT_TYPE_WORKFLOW_EXECUTION_STARTED",
            "EVENT_TYPE_WORKFLOW_TASK_SCHEDULED",
        ]
        branches = await visitor.get(link_of(page, "Branches"))
        assert branches.status == 200
        assert (handle.first_execution_run_id or "no run") in branches.body.decode()


async def test_without_rights_or_a_workflow_there_are_neither_events_nor_branches() -> None:
    async with running_console(is_guarded=True, namespaces=("default", "other")) as (server, visitor):
        client = await connected(server, await new_key(server, "writer"))
        await client.start_workflow("Nobody", id="w", task_queue="q")
        refused = await visitor.get("workflow/history.json", id="w")
        assert refused.status == 401
        await visitor.sign_in(await new_key(server, "reader", "other"))
        for path in ("workflow/history.json", "branches.json"):
            assert (await visitor.get(path, id="w", namespace="default")).status == 403, path
            missing = await visitor.get(path, id="none", namespace="other")
            assert missing.status == 404, path
            assert "not found" in json.loads(missing.body)["message"]
