"""Actions: who may act, what a form must have, and what the audit keeps."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle

from fairlead.journal import read_segment
from fairlead.server.process import Server
from tests.console.web import Visitor, new_key, running_console

TERMINATE = "workflow/terminate?id=w"
FORM = {"reason": "an incident", "word": "terminate"}


async def started(server: Server, key: str | None = None) -> WorkflowHandle[object, object]:
    assert server.frontend_address is not None
    client = await Client.connect(server.frontend_address, api_key=key, tls=False)
    return await client.start_workflow("Nobody", id="w", task_queue="q")


async def status(handle: WorkflowHandle[object, object]) -> WorkflowExecutionStatus | None:
    return (await handle.describe()).status


async def test_a_form_needs_its_reason_its_word_and_its_fields() -> None:
    async with running_console() as (server, visitor):
        handle = await started(server)
        await visitor.get("")
        for path, form, sentence in (
            (TERMINATE, {"word": "terminate"}, "give a reason"),
            (TERMINATE, {"reason": "x"}, "type the word"),
            (TERMINATE, {"reason": "x", "word": "Terminate"}, "type the word"),
            (TERMINATE, {"reason": "x" * 501, "word": "terminate"}, "more than 500 characters"),
            ("workflow/signal?id=w", {"reason": "x"}, "is missing"),
            ("workflow/reset?id=w", {"reason": "x", "word": "reset", "event": "-1"}, "is not the number of an event"),
            ("workflow/nothing?id=w", FORM, "there is no action"),
        ):
            refused = await visitor.post(path, form)
            assert refused.status in {400, 404}
            page = refused.body.decode()
            assert sentence in page
            assert "<h1>Nothing was done</h1>" in page
            assert '<a href="/console/workflow?id=w">Back to the page</a>' in page
        assert await status(handle) is WorkflowExecutionStatus.RUNNING
        done = await visitor.post(TERMINATE, FORM)
        assert (done.status, done.headers["location"]) == (303, "/console/workflow?namespace=default&id=w")
        assert await status(handle) is WorkflowExecutionStatus.TERMINATED
        assert b"The workflow was terminated." in (await visitor.get("workflow", id="w")).body
        # The sentence is shown once.
        assert b"The workflow was terminated." not in (await visitor.get("workflow", id="w")).body


async def test_an_action_without_the_token_or_from_another_site_is_refused() -> None:
    async with running_console() as (server, visitor):
        handle = await started(server)
        await visitor.get("")
        old = await visitor.post(TERMINATE, {**FORM, "_csrf": "0" * 32})
        assert (old.status, old.headers["content-type"]) == (403, "text/html; charset=utf-8")
        for words in ("<h1>Nothing was done</h1>", "This page is too old: reload it.", 'id=w">Back to the page</a>'):
            assert words in old.body.decode()
        assert "default-src 'none'" in old.headers["content-security-policy"]
        program = await visitor.send("POST", f"/console/{TERMINATE}", b"{}", content_type="application/json")
        assert (program.status, program.headers["content-type"]) == (400, "application/json")
        assert (await visitor.post(TERMINATE, {**FORM, "_csrf": ""})).status == 400
        assert (await visitor.post(TERMINATE, FORM, origin="http://evil.example")).status == 403
        assert (await visitor.send("GET", f"/console/{TERMINATE}&reason=x&word=terminate")).status == 404
        assert await status(handle) is WorkflowExecutionStatus.RUNNING


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Server, Visitor, Path]]:
    async with running_console(is_guarded=True, journal=tmp_path / "journal") as (server, visitor):
        yield server, visitor, tmp_path / "journal"


async def test_a_reader_sees_no_button_and_is_refused_and_a_writer_acts(
    guarded: tuple[Server, Visitor, Path],
) -> None:
    server, visitor, _ = guarded
    key = await new_key(server, "write", name="writer")
    handle = await started(server, key)
    await visitor.sign_in(await new_key(server, "read", name="reader"))
    page = (await visitor.get("workflow", id="w")).body.decode()
    assert "Nobody" in page
    assert "act-terminate" not in page
    assert 'method="post" action="/console/workflow' not in page
    refused = await visitor.post(TERMINATE, FORM)
    assert refused.status == 403
    assert await status(handle) is WorkflowExecutionStatus.RUNNING
    await visitor.sign_in(key)
    assert "act-terminate" in (await visitor.get("workflow", id="w")).body.decode()
    assert (await visitor.post(TERMINATE, FORM)).status == 303
    assert await status(handle) is WorkflowExecutionStatus.TERMINATED


async def test_the_audit_has_every_action_with_its_viewer_and_reason(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    async with running_console(is_guarded=True, journal=folder) as (server, visitor):
        key = await new_key(server, "write", name="writer")
        await started(server, key)
        await visitor.sign_in(await new_key(server, "read", name="reader"))
        assert (await visitor.post("workflow/signal?id=w", {"name": "s", "reason": "may I?"})).status == 403
        await visitor.sign_in(key)
        form = {"name": "s", "reason": "nudge <it>"}
        assert (await visitor.post("workflow/signal?id=w", form)).status == 303
        assert (await visitor.post(TERMINATE, FORM)).status == 303
    records = [record for file in sorted(folder.rglob("audit.v1.*")) for record in read_segment(file)]
    found = [
        (one["principal"].partition("(")[2], one["method"].rpartition("/")[2], one["is_allowed"], one["reason"])
        for one in records
        if one["method"].endswith(("/SignalWorkflowExecution", "/TerminateWorkflowExecution"))
    ]
    assert found == [
        ("reader)", "SignalWorkflowExecution", False, "the role does not suffice"),
        ("writer)", "SignalWorkflowExecution", True, "nudge <it>"),
        ("writer)", "TerminateWorkflowExecution", True, "an incident"),
    ]
