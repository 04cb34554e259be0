"""The overview in a browser: what it shows, live updates, keys, colors, both widths."""

from playwright.sync_api import expect
from temporalio.client import Client

from tests.console.conftest import Place, Seen, in_another_thread


def start_without_worker(place: Place, workflow_id: str, queue: str) -> None:
    """Start a workflow whose task queue has no worker."""

    async def start() -> None:
        client = await Client.connect(place.frontend)
        await client.start_workflow("Nobody", id=workflow_id, task_queue=queue)

    in_another_thread(start())


def test_the_overview_shows_counts_and_becomes_live_when_a_queue_has_no_worker(seen: Seen, place: Place) -> None:
    seen.goto("")
    page = seen.page
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.locator("#counts")).to_contain_text("Running")
    expect(page.locator("#live-state")).to_have_text("live")
    start_without_worker(place, "nobody-1", "nobody's <b>queue</b> \u202eback")
    expect(page.locator("#attention")).to_contain_text("no worker that polls")
    expect(page.locator("#waiting tbody tr")).to_have_count(1)
    expect(page.locator("#waiting")).to_contain_text("nobody's <b>queue</b> \ufffdback")
    seen.shoot("home")


def test_a_keyboard_reaches_help_and_views_and_the_choice_of_colors_is_kept(seen: Seen) -> None:
    seen.goto("")
    page = seen.page
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Colors").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("g")
    with page.expect_navigation():
        page.keyboard.press("o")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    seen.shoot("home-dark")


def test_a_hidden_page_is_not_live(seen: Seen) -> None:
    seen.goto("")
    page = seen.page
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate(
        "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    expect(page.locator("#live-state")).to_have_text("paused")
    page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#live-state")).to_have_text("live")


def test_an_unknown_page_says_where_to_go(seen: Seen) -> None:
    seen.allowed.add(404)
    seen.goto("nowhere")
    expect(seen.page.get_by_text("the console has no page 'nowhere'")).to_be_visible()
    seen.shoot("problem")


def test_on_a_phone_rows_are_cards_with_the_names_of_their_columns(seen: Seen) -> None:
    page = seen.page
    page.set_viewport_size({"width": 390, "height": 800})
    seen.goto("task-queues")
    cell = page.locator("#queues tbody td").nth(1)
    assert cell.get_attribute("data-label") == "Backlog"
    assert cell.evaluate("one => getComputedStyle(one, '::before').content") == '"Backlog"'
    # The whole row is on the screen, and the navigation takes one line.
    right = page.locator("#queues tbody tr").first.evaluate("one => one.getBoundingClientRect().right")
    assert right <= 390
    heights = page.locator("header nav").evaluate("one => [one.clientHeight, one.querySelector('a').clientHeight]")
    assert heights[0] < 2 * heights[1]
    # The view that is shown is in sight.
    seen.goto("settings")
    place = page.locator("header nav [aria-current]").evaluate("one => one.getBoundingClientRect().left")
    assert 0 <= place < 390
    # The names stay when the live part is sent again.
    seen.goto("task-queues")
    expect(page.locator("#live-state")).to_have_text("live")
    page.wait_for_function("document.querySelector('#queues tbody td:nth-child(3)').dataset.label === 'Backlog'")


def test_the_field_of_the_overview_leads_to_the_reason_of_a_workflow(seen: Seen) -> None:
    seen.goto("")
    page = seen.page
    page.keyboard.press("/")
    page.keyboard.type("order-1")
    page.get_by_role("button", name="Why is it stuck?").click()
    expect(page.locator("p.sentence")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_contain_text("order-1")
