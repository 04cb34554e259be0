"""One workflow and its branches without a browser: what a reader of the namespace gets."""

import html
import json
import re

from temporalio.client import Client

from fairlead.server.process import Server
from tests.console.web import new_key, running_console


async def connected(server: Server, key: str | None = None) -> Client:
    return await Client.connect(str(server.frontend_address), api_key=key, tls=False)


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
        assert handle.first_execution_run_id in branches.body.decode()


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
