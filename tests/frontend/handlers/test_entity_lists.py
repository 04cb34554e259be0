"""ORDER BY in lists of schedules, standalone activities and standalone Nexus operations, on every store."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import temporalio.api.workflowservice.v1 as api

from fairlead.api.errors import ApiError, InvalidArgument
from fairlead.api.schedules.lists import ARCHETYPE as SCHEDULE
from fairlead.api.schedules.lists import PAUSED, SCHEDULE_ID
from fairlead.api.standalone_activities import ARCHETYPE as ACTIVITY
from fairlead.api.standalone_nexus import ARCHETYPE as OPERATION
from fairlead.api.standalone_nexus import SERVICE
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers import schedules, standalone_activity_lists, standalone_nexus_lists
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.nexus import STANDALONE_ENABLED
from fairlead.storage.history import HistoryStore, VisibilityDelete, VisibilityRow
from tests.api.search.world import NAMESPACE_ID, closed, run, save
from tests.frontend.handlers.test_visibility import frontend_over
from tests.storage.history.conftest import STORES, opened

METHODS: dict[str, Handler] = {
    **standalone_activity_lists.METHODS,
    **standalone_nexus_lists.METHODS,
    **schedules.METHODS,
}
COMPLETED, FAILED = 2, 3


@dataclass(frozen=True, slots=True)
class Listed:
    """A list method, with the names of the fields that the tests read."""

    method: str
    archetype: str
    size_field: str
    entries: str
    id_field: str
    id_attribute: str


LISTS = {
    "activities": Listed("ActivityExecutions", ACTIVITY, "page_size", "executions", "activity_id", "ActivityId"),
    "operations": Listed(
        "NexusOperationExecutions", OPERATION, "page_size", "operations", "operation_id", "OperationId"
    ),
    "schedules": Listed("Schedules", SCHEDULE, "maximum_page_size", "schedules", "schedule_id", "ScheduleId"),
}


@dataclass(frozen=True, slots=True)
class Setup:
    frontend: Frontend
    store: HistoryStore
    listed: Listed

    async def page(self, query: str, *, size: int = 0, token: bytes = b"") -> tuple[list[str], bytes]:
        """Ids of a page, and the token of the next one."""
        name = f"List{self.listed.method}"
        fields = {"namespace": "default", "query": query, self.listed.size_field: size, "next_page_token": token}
        answer = await self._ask(name, fields)
        ids = [getattr(entry, self.listed.id_field) for entry in getattr(answer, self.listed.entries)]
        return ids, answer.next_page_token

    async def ids(self, query: str, *, size: int = 2) -> list[str]:
        """Ids of all pages."""
        ids, token = await self.page(query, size=size)
        while token:
            more, token = await self.page(query, size=size, token=token)
            assert more
            ids += more
        return ids

    async def count(self, query: str) -> Any:
        return await self._ask(f"Count{self.listed.method}", {"namespace": "default", "query": query})

    async def error_of(self, query: str, token: bytes = b"") -> str:
        with pytest.raises(InvalidArgument) as raised:
            await self.page(query, token=token)
        return str(raised.value)

    async def write(self, *rows: VisibilityRow | VisibilityDelete) -> None:
        await save(self.store, *rows)

    def row(self, entity_id: str, number: int | None, kind: str = "Beta", **fields: object) -> VisibilityRow:
        """An open entity, with `CustomInt` if there is a number."""
        attributes: dict[str, Any] = {SCHEDULE_ID: entity_id, PAUSED: kind == "Alpha", SERVICE: f"of {kind}"}
        if number is not None:
            attributes["CustomInt"] = number
        row = run(entity_id, kind, f"queue {kind}", len(entity_id), search_attributes=attributes, **fields)
        return row._replace(namespace_id=f"{NAMESPACE_ID}#{self.listed.archetype}")

    async def _ask(self, name: str, fields: dict[str, Any]) -> Any:
        nobody: Any = None
        return await METHODS[name](self.frontend, getattr(api, f"{name}Request")(**fields), nobody)


async def enabled_over(store: HistoryStore) -> Frontend:
    """A frontend that has standalone Nexus operations enabled."""
    frontend = await frontend_over(store)
    frontend.settings = DynamicSettings(overrides={STANDALONE_ENABLED.key: True})
    return frontend


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HistoryStore]:
    async with opened(request.param, tmp_path, request) as history:
        yield history


@pytest.fixture(params=LISTS)
async def setup(request: pytest.FixtureRequest, store: HistoryStore) -> Setup:
    """A list of five entities; two have the same number, and one has no number."""
    setup = Setup(await enabled_over(store), store, LISTS[request.param])
    rows = [setup.row("b", 3), setup.row("e", 1, "Alpha"), setup.row("a", None), setup.row("d", 2), setup.row("c", 2)]
    await setup.write(*rows)
    return setup


async def test_entities_are_listed_in_the_requested_order(setup: Setup) -> None:
    name = setup.listed.id_attribute
    assert await setup.ids(f"ORDER BY {name}") == ["a", "b", "c", "d", "e"]
    assert await setup.ids(f"ORDER BY {name} DESC") == ["e", "d", "c", "b", "a"]
    assert await setup.ids(f"{name} > 'a' ORDER BY CustomInt, {name} DESC") == ["e", "d", "c", "b"]
    # Entities without a value come last in both directions; equal ones are in the order of their run ids.
    assert await setup.ids("order by CustomInt") == ["e", "c", "d", "b", "a"]
    assert await setup.ids("order by CustomInt desc") == ["b", "c", "d", "e", "a"]


async def test_pages_stay_correct_while_entities_change(setup: Setup) -> None:
    query = "ORDER BY CustomInt"
    first, token = await setup.page(query, size=2)
    assert first == ["e", "c"]
    # The last entity of the page is deleted, one is added before it and one after it, and one moves to the end.
    gone = VisibilityDelete(f"{NAMESPACE_ID}#{setup.listed.archetype}", "0-c")
    await setup.write(gone, setup.row("early", 0), setup.row("late", 9), setup.row("b", None))
    second, token = await setup.page(query, size=2, token=token)
    third, token = await setup.page(query, size=2, token=token)
    assert [*second, *third] == ["d", "late", "a", "b"]
    assert not token


async def test_an_unknown_or_too_long_order_is_refused(setup: Setup) -> None:
    assert await setup.error_of("ORDER BY Nope") == "invalid query: invalid search attribute: Nope"
    assert await setup.error_of("ORDER BY CustomText") == (
        "invalid query: invalid expression: unable to sort by field of Text type, use field of type Keyword"
    )
    assert await setup.error_of(f"ORDER BY {', '.join(['CustomInt'] * 6)}") == (
        "invalid query: invalid expression: can't order by 6 fields: give 1 to 5"
    )
    with pytest.raises(ApiError, match="operation is not supported: 'ORDER BY' clause"):
        await setup.count("ORDER BY CustomInt")


async def test_a_page_token_is_valid_in_its_own_order_only(setup: Setup) -> None:
    _, sorted_token = await setup.page("ORDER BY CustomInt", size=2)
    _, plain_token = await setup.page("", size=2)
    for query, token in (
        ("", sorted_token),
        ("ORDER BY CustomInt DESC", sorted_token),
        ("ORDER BY CustomInt", plain_token),
        ("ORDER BY CustomInt", sorted_token[:-1]),
        ("ORDER BY CustomInt", b"x"),
    ):
        assert await setup.error_of(query, token) == "Invalid NextPageToken."


async def test_activities_and_operations_are_ordered_by_their_own_fields(store: HistoryStore) -> None:
    frontend = await enabled_over(store)
    for name, orders in {
        "activities": ("ActivityType", "TaskQueue", "StartTime DESC", "ExecutionStatus DESC", "CloseTime"),
        "operations": ("Operation", "Endpoint", "Service", "StartTime DESC", "ExecutionStatus DESC", "CloseTime"),
    }.items():
        setup = Setup(frontend, store, LISTS[name])
        ended = closed(setup.row("xxx", 1, "Alpha"), FAILED, 5, length=0, size=0, steps=1)
        earlier = closed(setup.row("yy", 1, "Beta"), COMPLETED, 7, length=0, size=0, steps=1)
        await setup.write(setup.row("z", 1, "Gamma"), earlier, ended)
        for order in orders:
            assert await setup.ids(f"ORDER BY {order}", size=1) == ["xxx", "yy", "z"], (name, order)


async def test_schedules_can_be_ordered_only_by_fields_that_queries_may_use(store: HistoryStore) -> None:
    setup = Setup(await frontend_over(store), store, LISTS["schedules"])
    await setup.write(setup.row("b", 1), setup.row("a", 1, "Alpha"))
    assert await setup.ids("ORDER BY TemporalSchedulePaused") == ["b", "a"]
    assert await setup.ids("ORDER BY TemporalSchedulePaused DESC") == ["a", "b"]
    for name in ("StartTime", "WorkflowId", "TemporalScheduledById"):
        assert await setup.error_of(f"ScheduleId = 'a' ORDER BY {name}") == (
            f'invalid query for schedules: cannot order by "{name}"'
        )
