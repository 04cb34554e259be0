"""The list of workflows and one workflow, in a browser: filters, timeline, events, and every action."""

import re
from urllib.parse import urlencode

from playwright.sync_api import Page, expect
from temporalio.client import Client, WorkflowExecutionStatus

from tests.console.conftest import Place, Seen, in_another_thread

NASTY = "<img src=x onerror=alert(1)> \"quoted\" '\u202e' \x07 {{ 7 * 7 }}"


def start(place: Place, workflow_id: str, workflow: str = "Order") -> None:
    """Start a workflow at the worker of the orders."""

    async def ask() -> None:
        client = await Client.connect(place.frontend)
        await client.start_workflow(workflow, "rope", id=workflow_id, task_queue="orders")

    in_another_thread(ask())


def status_of(place: Place, workflow_id: str) -> WorkflowExecutionStatus | None:
    async def ask() -> WorkflowExecutionStatus | None:
        client = await Client.connect(place.frontend)
        return (await client.get_workflow_handle(workflow_id).describe()).status

    return in_another_thread(ask())


def open_workflow(seen: Seen, workflow_id: str) -> Page:
    seen.goto(f"workflow?{urlencode({'id': workflow_id})}")
    return seen.page


def act(page: Page, label: str, within: str = "main", **fields: str) -> None:
    """Open the form of an action, fill it in and send it."""
    form = page.locator(f"{within} details.action", has=page.locator("summary", has_text=label)).first
    form.locator("summary").click()
    for name, value in fields.items():
        form.locator(f'[name="{name}"]').fill(value)
    form.get_by_role("button", name=label).click()


def test_the_list_is_filtered_by_a_query_and_an_error_in_it_is_shown_where_it_is_mended(seen: Seen) -> None:
    seen.goto("workflows")
    page = seen.page
    expect(page.locator("#rows tbody tr").first).to_be_visible()
    expect(page.locator("#counts")).to_contain_text("Running")
    seen.shoot("workflows")
    page.keyboard.press("/")
    page.keyboard.type('WorkflowId = "order-3"')
    page.keyboard.press("Enter")
    expect(page.locator("#rows tbody tr")).to_have_count(1)
    page.keyboard.press("j")
    expect(page.get_by_role("link", name="order-3")).to_be_focused()
    page.locator("#query").fill("WorkflowType = ")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".problem")).to_contain_text("invalid query")
    expect(page.locator("#query")).to_have_value("WorkflowType = ")
    seen.shoot("workflows-error")
    page.locator("#query").fill('WorkflowType = "None"')
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No workflow matches the query.")).to_be_visible()


def test_a_plain_name_finds_workflows_by_id_type_and_run_and_counts_narrow_the_list(seen: Seen) -> None:
    seen.goto("workflows")
    page = seen.page
    page.locator("#query").fill("order-3")
    page.keyboard.press("Enter")
    # The order and its shipment.
    expect(page.locator("#rows tbody tr")).to_have_count(2)
    expect(page.locator("#counts")).to_contain_text('WorkflowId STARTS_WITH "order-3"')
    page.locator("#query").fill("Shipm")
    page.keyboard.press("Enter")
    expect(page.locator("#rows tbody tr td:nth-child(3)").first).to_have_text("Shipment")
    seen.shoot("workflows-by-name")
    page.locator("#counts a", has_text="Completed").click()
    expect(page.locator("#query")).to_have_value(
        re.compile(r'^\(WorkflowId STARTS_WITH .*\) AND ExecutionStatus = "Completed"$')
    )
    expect(page.locator("#rows tbody tr").first).to_contain_text("Shipment")
    seen.goto("workflows?query=order-3")
    page.get_by_role("link", name="why?").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("Why is order-3.* stuck"))


def test_a_query_is_saved_in_the_browser_and_forgotten_again(seen: Seen) -> None:
    query = urlencode({"query": 'WorkflowType = "Order"'})
    seen.goto(f"workflows?{query}")
    page = seen.page
    page.once("dialog", lambda dialog: dialog.accept("orders <b>only</b>"))
    page.get_by_role("button", name="Save this query").click()
    seen.goto("workflows")
    page.get_by_role("link", name="orders <b>only</b>").click()
    expect(page.locator("#query")).to_have_value('WorkflowType = "Order"')
    page.get_by_role("button", name="Forget the filter").click()
    expect(page.get_by_role("link", name="orders <b>only</b>")).to_have_count(0)


def test_the_list_has_pages(seen: Seen) -> None:
    seen.goto("workflows?rows=3")
    page = seen.page
    first = page.locator("#rows tbody th").first.inner_text()
    expect(page.locator("#rows tbody tr")).to_have_count(3)
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#rows tbody th").first).not_to_have_text(first)
    page.get_by_role("link", name="Previous").click()
    expect(page.locator("#rows tbody th").first).to_have_text(first)


def test_a_workflow_shows_its_timeline_events_input_and_relations(seen: Seen) -> None:
    page = open_workflow(seen, "order-1")
    expect(page.locator("#summary")).to_contain_text("order-1-shipment")
    expect(page.locator("#timeline tbody tr")).to_have_count(2)
    expect(page.locator("#timeline")).to_contain_text("completed, attempt 2")
    expect(page.locator("#payloads")).to_contain_text('"rope"')
    expect(page.locator("#events tbody tr").first).to_contain_text("WorkflowTaskCompleted")
    page.locator("#events summary", has_text="ActivityTaskScheduled").click()
    expect(page.locator("#events pre", has_text="activityTaskScheduledEventAttributes")).to_be_visible()
    seen.shoot("workflow")
    page.get_by_role("link", name="Oldest first").click()
    expect(page.locator("#events tbody tr").first).to_contain_text("WorkflowExecutionStarted")


def test_a_signal_is_sent_with_its_input_and_the_page_follows_live(seen: Seen, place: Place) -> None:
    start(place, "signalled")
    page = open_workflow(seen, "signalled")
    expect(page.locator("#timeline tbody tr")).to_have_count(2)
    act(page, "Signal", name="finish", input='"enough"', reason="test")
    expect(page.get_by_text("Signal finish was sent.")).to_be_visible()
    expect(page.locator("#summary")).to_contain_text("Completed")
    expect(page.locator("#payloads")).to_contain_text("packed rope")
    assert status_of(place, "signalled") is WorkflowExecutionStatus.COMPLETED


def test_an_input_that_is_not_json_is_refused_with_the_reason(seen: Seen) -> None:
    seen.allowed.add(400)
    page = open_workflow(seen, "order-2")
    act(page, "Signal", name="finish", input="enough", reason="test")
    expect(page.get_by_text("the input is not JSON")).to_be_visible()


def test_a_query_shows_its_result(seen: Seen) -> None:
    page = open_workflow(seen, "order-2")
    page.locator("#act-query summary").click()
    page.get_by_label("Type of the query").fill("__stack_trace")
    page.locator("#act-query").get_by_role("button", name="Query").click()
    expect(page.locator("#act-query pre")).to_contain_text("Stack for")


def test_a_workflow_is_paused_unpaused_cancelled_reset_and_terminated(seen: Seen, place: Place) -> None:
    start(place, "acted-on")
    page = open_workflow(seen, "acted-on")
    expect(page.locator("#timeline tbody tr")).to_have_count(2)
    act(page, "Pause", reason="under test")
    expect(page.locator("#summary")).to_contain_text("under test")
    act(page, "Unpause", reason="enough")
    expect(page.get_by_text("The workflow continues.")).to_be_visible()
    act(page, "Reset", event="4", reason="again", word="reset")
    expect(page.get_by_text("The workflow was reset.")).to_be_visible()
    act(page, "Cancel", reason="no longer wanted")
    expect(page.get_by_text("The cancellation was requested.")).to_be_visible()
    expect(page.locator("#summary")).to_contain_text("Canceled")
    start(place, "terminated")
    page = open_workflow(seen, "terminated")
    form = page.locator("#act-terminate-")
    form.locator("summary").click()
    form.locator('[name="reason"]').fill("test")
    form.locator('[name="word"]').fill("stop")
    form.get_by_role("button", name="Terminate").click()
    # The browser does not send the form with another word.
    expect(page.get_by_text("The workflow was terminated.")).to_have_count(0)
    form.locator('[name="word"]').fill("terminate")
    form.get_by_role("button", name="Terminate").click()
    expect(page.get_by_text("The workflow was terminated.")).to_be_visible()
    expect(page.locator("#summary")).to_contain_text("Terminated")
    expect(page.locator("#act-signal-")).to_have_count(0)


def test_a_run_is_reset_with_the_button_at_one_of_its_events(seen: Seen, place: Place) -> None:
    start(place, "reset-at-event")
    page = open_workflow(seen, "reset-at-event")
    expect(page.locator("#timeline tbody tr")).to_have_count(2)
    started = page.locator("#event-1")
    started.locator("summary").first.click()
    expect(started.locator("details.action")).to_have_count(0)
    completed = page.locator("#event-4")
    completed.locator("summary").first.click()
    form = completed.locator("details.action")
    form.locator("summary").click()
    expect(form.get_by_label("Event")).to_have_count(0)
    form.get_by_label("Reason").fill("again")
    form.get_by_label("Type reset").fill("reset")
    seen.shoot("workflow-reset-at-event")
    form.get_by_role("button", name="Reset to here").click()
    expect(page.get_by_text("The workflow was reset.")).to_be_visible()
    seen.shoot("workflow-reset")


def test_a_signal_takes_several_arguments(seen: Seen, place: Place) -> None:
    start(place, "several-arguments")
    page = open_workflow(seen, "several-arguments")
    expect(page.locator("#timeline tbody tr")).to_have_count(2)
    act(page, "Signal", name="two", input='"one"\n{"two": [2]}', reason="test")
    expect(page.get_by_text("Signal two was sent.")).to_be_visible()
    signaled = page.locator("#events details", has_text="WorkflowExecutionSignaled").first
    signaled.locator("summary").first.click()
    expect(signaled.locator("pre").nth(0)).to_have_text('"one"')
    expect(signaled.locator("pre").nth(1)).to_contain_text('"two"')


def test_an_activity_is_paused_unpaused_and_retried(seen: Seen, place: Place) -> None:
    start(place, "<b>failing</b> " + "very-long-name-" * 20, "Stubborn")
    page = open_workflow(seen, "<b>failing</b> " + "very-long-name-" * 20)
    expect(page.locator("#pending tbody")).to_contain_text("out of boxes")
    page.reload()
    seen.shoot("workflow-pending")
    act(page, "Pause", reason="broken", within="#acts")
    expect(page.get_by_text("is paused: it is not tried again")).to_be_visible()
    expect(page.locator("#pending")).to_contain_text("paused")
    act(page, "Unpause", reason="mended", within="#acts")
    expect(page.get_by_text("goes on.")).to_be_visible()
    act(page, "Retry now", reason="mended", within="#acts")
    expect(page.get_by_text("begins again with its first attempt")).to_be_visible()


def test_an_update_is_sent_and_its_rejection_is_shown(seen: Seen) -> None:
    seen.allowed.add(400)
    page = open_workflow(seen, "order-4")
    act(page, "Update", name="no_such_update", reason="test")
    expect(page.locator(".problem")).to_contain_text("rejected the update")
    page = open_workflow(seen, "order-4")
    act(page, "Update", name="note", input='"by the console"', reason="test")
    expect(page.get_by_text("Update note was accepted.")).to_be_visible()
    expect(page.locator("#timeline")).to_contain_text("note")


def test_names_with_markup_and_control_characters_are_harmless(seen: Seen, place: Place) -> None:
    start(place, NASTY)
    page = open_workflow(seen, NASTY)
    shown = NASTY.replace("\u202e", "\ufffd").replace("\x07", "\ufffd")
    expect(page.get_by_role("heading", level=1)).to_have_text(shown)
    assert page.locator("img").count() == 0
    seen.goto("workflows")
    page.get_by_role("link", name=shown, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(shown)
    seen.shoot("workflow-nasty")


def test_a_workflow_that_does_not_exist_says_what_to_do(seen: Seen) -> None:
    seen.allowed.add(404)
    page = open_workflow(seen, "no-such-workflow")
    expect(page.locator(".problem")).to_contain_text("not found")
    expect(page.get_by_text("Check the name and the namespace.")).to_be_visible()
