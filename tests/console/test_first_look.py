"""The overview, the list of workflows and the rate limit without a browser: problems that a new user meets first."""

import html
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.console.views.home import PROBLEMS_QUERY
from fairlead.server.process import Server
from tests.console.stuck_workflows import Waiting
from tests.console.web import Visitor, new_key, running_console
from tests.patience import until

ALL_CLEAR = "Nothing: no task queue waits"


async def connected(server: Server, key: str | None = None) -> Client:
    assert server.frontend_address is not None
    return await Client.connect(server.frontend_address, api_key=key, tls=False)


@pytest.fixture
async def visitor() -> AsyncIterator[Visitor]:
    """A console with a closed workflow, and an open one that was started before it."""
    async with running_console() as (server, visitor):
        client = await connected(server)
        await client.start_workflow("Nobody", id="open", task_queue="q")
        await (await client.start_workflow("Nobody", id="closed", task_queue="q")).terminate()

        async def is_listed() -> bool:
            counts = (await visitor.data("workflows"))["counts"]
            return {one["status"] for one in counts} == {"Running", "Terminated"}

        await until(is_listed)
        yield visitor


async def test_the_overview_names_workflows_that_report_a_problem_and_links_to_them(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text(
        "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute: [{value: 1}]\n"
        # The test counts more often than a viewer.
        "frontend.namespaceRPS.visibility: [{value: 1000}]\n"
    )
    async with running_console(dynamic_file=file) as (server, visitor):
        client = await connected(server)
        worker = Worker(client, task_queue="q", workflows=[Waiting], workflow_runner=UnsandboxedWorkflowRunner())
        async with worker:
            # The SDK does not report the second failure: the task times out.
            second = timedelta(seconds=1)
            await client.start_workflow(Waiting.run, "failing task", id="w", task_queue="q", task_timeout=second)

            async def is_named() -> bool:
                found = (await visitor.data("home"))["attention"]
                return any("1 workflow reports a problem" in one["sentence"] for one in found)

            await until(is_named)
        assert ALL_CLEAR not in (await visitor.get("")).body.decode()
        listed = await visitor.data("workflows", query=PROBLEMS_QUERY)
        assert [one["id"] for one in listed["rows"]] == ["w"]
        # The list has the query as a filter.
        page = html.unescape((await visitor.get("workflows", query=PROBLEMS_QUERY)).body.decode())
        assert 'aria-current="true">Failing workflow tasks</a>' in page


async def test_the_overview_does_not_say_that_all_is_well_where_it_could_not_look() -> None:
    async with running_console() as (_, visitor):
        assert ALL_CLEAR in (await visitor.get("")).body.decode()
        unknown = (await visitor.get("", namespace="none")).body.decode()
        assert ALL_CLEAR not in unknown
        assert "Not known: a part of this page could not be read." in unknown
    async with running_console(is_guarded=True, namespaces=("default", "other")) as (server, visitor):
        await visitor.sign_in(await new_key(server, "read"))
        assert ALL_CLEAR not in (await visitor.get("", namespace="other")).body.decode()


@pytest.mark.parametrize("rate", ["1e400", "nan", "inf", "-1", "1e39", "fast"])
async def test_a_rate_limit_that_is_no_usable_number_is_refused_with_the_name_of_its_field(
    rate: str, visitor: Visitor
) -> None:
    refused = await visitor.post("task-queue/limit?name=q&type=activity", {"rate": rate, "reason": "a test"})
    assert refused.status == 400
    assert f"Tasks per second is '{rate}': give a number from 0" in html.unescape(refused.body.decode())


@pytest.mark.parametrize(
    ("query", "position"), [("WorkflowType =", 15), ("  WorkflowType =", 17), ("WorkflowType ! 1", 15), ("GROUP BY", 9)]
)
async def test_the_position_of_a_syntax_error_counts_from_the_start_of_the_query(
    query: str, position: int, visitor: Visitor
) -> None:
    found = await visitor.data("workflows", query=query)
    assert f"syntax error at position {position}" in found["problem"]["message"]


async def test_the_list_shows_events_of_closed_workflows_only(visitor: Visitor) -> None:
    rows = (await visitor.data("workflows"))["rows"]
    assert {one["id"]: one["events"] for one in rows} == {"open": None, "closed": 3}
    assert [one["id"] for one in rows] == ["open", "closed"]
    page = (await visitor.get("workflows")).body.decode()
    assert "Workflows, open ones first" in page
    assert '<td class="figure"></td>' in page
