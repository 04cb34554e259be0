"""The ring of two hosts in a browser: shares, and by name what a leaving host would move."""

from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from playwright.sync_api import Browser, expect
from temporalio.client import Client

from fairlead.settings.static.config import PostgresConfig
from tests.console.conftest import open_page
from tests.console.loop_thread import loop_thread
from tests.console.web import Visitor, running_console
from tests.patience import until

QUEUES = tuple(f"orders-{number} <b>" for number in range(6))


@pytest.fixture
def two_hosts(postgres_dsn: str) -> Iterator[Visitor]:
    """The console of one of two hosts, with workflows that wait on several task queues."""
    stack = AsyncExitStack()

    async def start() -> Visitor:
        store = PostgresConfig(postgres_dsn)
        server, visitor = await stack.enter_async_context(running_console(store=store))
        await stack.enter_async_context(running_console(store=store))

        async def are_two() -> bool:
            return len((await visitor.data("ring"))["hosts"]) == 2

        await until(are_two)
        client = await Client.connect(str(server.frontend_address))
        for queue in QUEUES:
            await client.start_workflow("Nobody", id=queue, task_queue=queue)

        async def are_stored() -> bool:
            return bool((await visitor.data("ring"))["partitions"] >= len(QUEUES))

        await until(are_stored)
        return visitor

    with loop_thread() as thread:
        try:
            yield thread.run(start())
        finally:
            thread.run(stack.aclose())


def test_the_departure_of_a_host_is_previewed_with_the_names_of_what_moves(
    browser: Browser, two_hosts: Visitor
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    seen = open_page(context, f"http://127.0.0.1:{two_hosts.port}/console")
    page = seen.page
    seen.goto("ring")
    hosts = page.locator("#hosts tbody tr")
    expect(hosts).to_have_count(2)
    expect(page.locator("#hosts")).not_to_contain_text("differs")
    seen.shoot("ring-two")
    owned: dict[str, set[str]] = {}
    for place in range(2):
        leaving = hosts.nth(place).locator("th").inner_text()
        hosts.nth(place).get_by_role("link", name="Preview its departure").click()
        expect(page.locator(".notice")).to_contain_text(f"If {leaving} leaves")
        moving = page.locator("#moving tbody tr")
        if moving.count():
            owned[leaving] = set(moving.locator("th").all_inner_texts())
            assert set(moving.locator("td:nth-child(5)").all_inner_texts()) == {leaving}
            assert set(moving.locator("td:nth-child(3)").all_inner_texts()) == {"default"}
        expect(page.locator("#moving")).to_contain_text("of workflows to")
        seen.shoot(f"ring-leaving-{place}")
        page.get_by_role("link", name="Clear").click()
    # Each task queue belongs to one of the hosts, and would move with it.
    assert set.union(*owned.values()) >= set(QUEUES)
    context.close()
    assert not seen.faults
