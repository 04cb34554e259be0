"""A console with authorization in a browser: API keys, the audit; and what a reader may not do, action by action."""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from fairlead.console.view import Action, View
from fairlead.console.views import HOME, VIEWS
from tests.console.conftest import Seen, open_page
from tests.console.loop_thread import LoopThread, loop_thread
from tests.console.web import Visitor, new_key, running_console

ACTIONS = [(view, action) for view in VIEWS for action in view.actions]
# Parameters without which a view has nothing to show.
PARAMETERS = {
    "workflow": "id=w",
    "task-queue": "name=q&type=workflow",
    "failover": "name=default",
    "schedule": "id=s",
    "deployment": "name=d",
    "branches": "id=w",
    "stuck": "id=w",
    "fairness": "name=q&type=workflow",
    "scaler": "name=q&type=workflow",
}


@dataclass(frozen=True)
class Guarded:
    """A server with authorization: a client of its console, and a key for each role."""

    thread: LoopThread
    visitor: Visitor
    keys: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    journal: Path = tmp_path_factory.mktemp("journal")
    stack = AsyncExitStack()

    async def start() -> tuple[Visitor, dict[str, str]]:
        server, visitor = await stack.enter_async_context(running_console(is_guarded=True, journal=journal))
        keys = {"admin": await new_key(server, "admin", "temporal-system", name="ops")}
        keys["reader"] = await new_key(server, "reader", "temporal-system", name="auditor")
        return visitor, keys

    with loop_thread() as thread:
        yield Guarded(thread, *thread.run(start()))
        thread.run(stack.aclose())


@pytest.fixture
def visitor(browser: Browser, guarded: Guarded) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    found = open_page(context, f"http://127.0.0.1:{guarded.visitor.port}/console")
    yield found
    context.close()
    assert not found.faults


def sign_in(seen: Seen, key: str) -> None:
    seen.goto("sign-in")
    seen.page.get_by_label("API key or token").fill(key)
    seen.page.get_by_role("button", name="Sign in").click()
    expect(seen.page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_key_is_created_shown_once_and_revoked_and_the_audit_has_both(visitor: Seen, guarded: Guarded) -> None:
    sign_in(visitor, guarded.keys["admin"])
    page = visitor.page
    visitor.goto("keys")
    form = page.locator("#act-create-")
    form.locator("summary").click()
    form.get_by_label("Name", exact=True).fill("shop <b>1</b>")
    form.get_by_label("For namespace").fill("default")
    form.get_by_label("Role").select_option("writer")
    form.get_by_label("Valid for days").fill("3")
    form.get_by_label("Reason").fill("the shop needs one")
    visitor.shoot("keys-form")
    form.get_by_role("button", name="Create a key").click()
    expect(page.locator("p.notice")).to_contain_text("The key is shown only here, copy it now:")
    shop = page.locator("#keys tbody tr").filter(has_text="shop <b>1</b>")
    expect(shop).to_contain_text("writer of default")
    expect(shop).to_contain_text("valid")
    visitor.shoot("keys-created")
    page.reload()
    expect(page.locator("p.notice")).to_have_count(0)
    shop.locator("summary").click()
    shop.get_by_label("Reason").fill("it leaked")
    shop.get_by_label("Type revoke").fill("revoke")
    shop.get_by_role("button", name="Revoke").click()
    expect(page.locator("p.notice")).to_contain_text("The key is revoked")
    expect(shop).to_contain_text("revoked")
    visitor.shoot("keys-revoked")
    visitor.goto("audit?search=Key")
    revoked = page.locator("#audit tbody tr").filter(has_text="RevokeKey").first
    expect(revoked).to_contain_text("it leaked")
    expect(page.locator("#audit")).to_contain_text("the shop needs one")
    visitor.shoot("audit-keys")


def form_of(action: Action) -> dict[str, str]:
    """A form with which the action would be carried out."""
    form = {field.name: (dict(field.choices) and field.choices[0][0]) or "1" for field in action.fields}
    return {**form, "reason": "a test", "word": action.word, "to": "b", "schedule": "s", "id": "x", "plan": "1"}


@pytest.mark.parametrize(("view", "action"), ACTIONS, ids=[f"{view.path}-{action.name}" for view, action in ACTIONS])
def test_a_reader_of_everything_cannot_act(guarded: Guarded, view: View, action: Action) -> None:
    async def act() -> None:
        reader = Visitor(guarded.visitor.port)
        await reader.sign_in(guarded.keys["reader"])
        path = view.path or HOME
        address = f"{path}/{action.name}?{PARAMETERS.get(view.path, '')}"
        refused = await reader.post(address, form_of(action))
        assert refused.status == 403, (address, refused.body)
        page = await reader.send("GET", f"/console/{view.path}?{PARAMETERS.get(view.path, '')}")
        assert f'/{action.name}"' not in page.body.decode()
        assert f"/{action.name}?" not in page.body.decode()

    guarded.thread.run(act())


def test_a_reader_of_everything_sees_the_views_and_no_button(visitor: Seen, guarded: Guarded) -> None:
    sign_in(visitor, guarded.keys["reader"])
    page = visitor.page
    views = page.locator("nav[aria-label=Views] a").all_inner_texts()
    assert "API keys" not in views
    assert {"Overview", "Clusters", "Settings", "Ring"} <= set(views)
    for view in VIEWS:
        if view.nav in views:
            visitor.goto(view.path)
            expect(page.locator("main h1")).to_be_visible()
            expect(page.locator("details.action")).to_have_count(0)
