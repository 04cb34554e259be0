"""Pages in a browser while a host or the store does not answer, and while there is nothing to show."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest
from playwright.sync_api import Browser, expect
from temporalio.client import Client

from fairlead.core.errors import FairleadError
from fairlead.matching.operator_client import OperatorClient
from fairlead.rpc.hosts.caller import Unreachable
from fairlead.server.process import Server
from fairlead.storage.tasks import StoreUnavailable
from tests.console.conftest import Seen, open_page
from tests.console.filled import Filled, in_thread, load_queue, namespace_id_of, write_queue
from tests.console.web import running_console

GONE = Unreachable("host '10.0.0.9:7240' refused the connection: ask for the owner again")
BROKEN = StoreUnavailable("the database does not answer: connection refused")
QUEUE = "name=orders&type=activity"
EMPTY = "name=unused&type=activity"


@asynccontextmanager
async def small_console() -> AsyncIterator[tuple[Server, str]]:
    """A server with a waiting workflow, a task queue with a task, and an empty one."""
    async with running_console() as (server, _):
        namespace_id = await namespace_id_of(server)
        assert server.frontend_address is not None
        client = await Client.connect(server.frontend_address)
        await client.start_workflow("Order", id="order-1", task_queue="orders")
        for name, keys in (("orders", ["tenant"]), ("unused", [])):
            await load_queue(server, await write_queue(server, namespace_id, name, keys))
        yield server, namespace_id


@pytest.fixture(scope="module")
def small() -> Iterator[Filled]:
    with in_thread(small_console) as found:
        yield found


@pytest.fixture
def failing(browser: Browser, small: Filled) -> Iterator[Seen]:
    """A page of that server; responses of 503 are what the tests are about."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
    found = open_page(context, small.console)
    found.allowed.add(503)
    yield found
    context.close()
    assert not found.faults


async def unreachable(*_: Any, **__: Any) -> Any:
    raise GONE


async def broken(*_: Any, **__: Any) -> Any:
    raise BROKEN


async def no_figures(*_: Any, **__: Any) -> tuple[list[Any], dict[str, FairleadError]]:
    return [], {"10.0.0.9:7240": GONE}


def test_the_overview_and_the_list_name_a_host_that_does_not_answer(failing: Seen) -> None:
    with patch.object(OperatorClient, "figures", no_figures):
        failing.goto("?namespace=default")
        expect(failing.page.locator("#waiting")).to_contain_text("10.0.0.9:7240 did not answer")
        expect(failing.page.locator("#attention")).to_contain_text("Host 10.0.0.9:7240 does not answer")
        expect(failing.page.locator("#attention .calm")).to_have_count(0)
        failing.shoot("error-home")
        failing.goto("task-queues")
        expect(failing.page.locator("#totals")).to_contain_text("10.0.0.9:7240 did not answer")
        failing.shoot("error-task-queues")


@pytest.mark.parametrize("view", ["task-queue", "fairness", "scaler"])
def test_a_task_queue_whose_host_does_not_answer_says_so(failing: Seen, view: str) -> None:
    failing.goto(f"{view}?{QUEUE}")
    with patch.object(OperatorClient, "_ask", unreachable):
        failing.goto(f"{view}?{QUEUE}")
        expect(failing.page.get_by_text("refused the connection")).to_be_visible()
        expect(failing.page.get_by_text("Wait a moment, then reload.")).to_be_visible()
        failing.shoot(f"error-{view}")
    failing.goto(f"{view}?{QUEUE}")
    expect(failing.page.get_by_text("refused the connection")).to_have_count(0)


def test_an_open_page_says_that_its_host_went_away_and_continues_when_it_is_back(failing: Seen) -> None:
    failing.goto(f"fairness?{QUEUE}")
    expect(failing.page.locator("#live-state")).to_have_text("live")
    with patch.object(OperatorClient, "_ask", unreachable):
        expect(failing.page.locator("#live-state")).not_to_have_text("live")
        failing.shoot("error-live")
    expect(failing.page.locator("#live-state")).to_have_text("live")


def test_the_overview_and_the_diagnosis_say_that_the_store_and_a_host_do_not_answer(
    failing: Seen, small: Filled
) -> None:
    assert small.server._store is not None
    store = small.server._store.history
    with (
        patch.object(store, "count_visibility", broken),
        patch.object(OperatorClient, "_ask", unreachable),
    ):
        failing.goto("?namespace=default")
        expect(failing.page.locator("#counts .problem")).to_contain_text("does not answer")
        failing.shoot("error-store-home")
        failing.goto("stuck?id=order-1")
        expect(failing.page.locator("main")).to_contain_text("refused the connection")
        expect(failing.page.locator("main")).to_contain_text("another host takes over within seconds")
        expect(failing.page.locator("main")).not_to_contain_text("No worker has polled")
        failing.shoot("error-stuck")


def test_a_task_queue_without_tasks_and_workers_says_what_to_do(failing: Seen) -> None:
    failing.goto(f"task-queue?{EMPTY}")
    expect(failing.page.locator("#held")).to_contain_text("Nothing waits.")
    expect(failing.page.locator("#tasks")).to_contain_text("No task waits.")
    failing.shoot("empty-task-queue")
    failing.goto(f"fairness?{EMPTY}")
    expect(failing.page.locator("#lanes")).to_contain_text("No task has a fairness key yet.")
    failing.shoot("empty-fairness")
    failing.goto(f"scaler?{EMPTY}")
    expect(failing.page.locator("#changes")).to_contain_text("No change since the root of this task queue was loaded.")
    failing.shoot("empty-scaler")
