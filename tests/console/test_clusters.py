"""Two connected clusters in a browser: replication, preflight, failovers and their history, branches and zombies."""

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from fairlead.console.views.failover import _record_of
from fairlead.journal import AuditRecord
from fairlead.replication.preflight import PastFailover
from tests.console.conftest import Seen, open_page
from tests.console.test_report import BY_HAND, new_lake
from tests.console.two_clusters import NAMESPACE, TwoClusters, two_clusters
from tests.patience import PATIENCE_S, until
from tests.replication.test_plans import PLAN, SEND

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake") / "lake"


@pytest.fixture(scope="module")
def clusters(lake: Path) -> Iterator[TwoClusters]:
    with two_clusters(lake=lake) as running:
        running.run(running.share(NAMESPACE))
        yield running


@pytest.fixture
def at(browser: Browser, clusters: TwoClusters) -> Iterator[Callable[[str], Seen]]:
    """Opens a page of the console of a cluster; the test fails if a page reports an error."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="UTC", locale="en-US")
    opened: list[Seen] = []

    def open_at(name: str) -> Seen:
        opened.append(open_page(context, clusters.console(name)))
        return opened[-1]

    yield open_at
    context.close()
    assert [fault for one in opened for fault in one.faults] == []


def row(page: Page, grid: str, *texts: str) -> list[str]:
    """The texts of the row whose first cells are these."""
    rows = page.locator(f"#{grid} tbody tr")
    expect(rows.first).to_be_visible()
    for number in range(rows.count()):
        cells = [" ".join(one.split()) for one in rows.nth(number).locator("th, td").all_inner_texts()]
        if cells[: len(texts)] == list(texts):
            return cells
    raise AssertionError(f"no row of {grid} begins with {texts}")


def wait_for_row(page: Page, grid: str, *texts: str, after: int, holds: list[str]) -> None:
    """Load the page until the cells after the first `after` ones are these: another cluster may lag for a moment."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := row(page, grid, *texts)[after : after + len(holds)]) != holds:
        assert time.monotonic() < deadline_s, found
        page.reload()


def fail_over(page: Page, to: str, how: str) -> None:
    form = page.locator(f"#act-start-{to}")
    form.locator("summary").click()
    form.get_by_label("How").select_option(how)
    form.get_by_label("Reason").fill("a drill")
    form.get_by_label("Type fail over").fill("fail over")
    form.get_by_role("button", name="Fail over").click()


def test_replication_is_shown_source_by_target_and_a_failover_after_its_preflight(
    clusters: TwoClusters, at: Callable[[str], Seen]
) -> None:
    seen = at("a")
    clusters.run(until(lambda: _follows(clusters, "b", "a")))
    seen.goto("clusters")
    page = seen.page
    wait_for_row(page, "lag", "b", "a", after=2, holds=["following"])
    assert row(page, "lag", "a", "b")[2] == "see the console of b"
    seen.shoot("clusters-two")
    page.get_by_role("link", name="Preflight and failover").click()
    expect(page.get_by_text("shared is active in a, at version 1.")).to_be_visible()
    # The page lists the targets, and shows each target's check before the form is sent.
    wait_for_row(page, "preflight", "b", after=1, holds=["responds", "has every write", "0", "ready"])
    page.locator("#act-start-b summary").click()
    seen.shoot("failover-preflight")
    page.reload()
    fail_over(page, "b", "graceful")
    expect(page.get_by_text("shared is active in b, at version 2.").first).to_be_visible()
    assert row(page, "failovers")[1:6] == ["shared", "a", "b", "graceful", "2"]

    # In cluster b, which is active now, a is the target: a forced failover moves the namespace back.
    there = at("b")
    there.goto("failover?name=shared")
    wait_for_row(there.page, "preflight", "a", after=1, holds=["responds", "has every write", "0"])
    fail_over(there.page, "a", "forced")
    expect(there.page.get_by_text("shared is active in a, at version 11.").first).to_be_visible()
    assert row(there.page, "failovers")[1:6] == ["shared", "b", "a", "forced", "11"]
    there.shoot("failover-history")

    # Every cluster has the history.
    async def is_back() -> bool:
        return await clusters.active("a") == "a"

    clusters.run(until(is_back))
    page.goto(f"{clusters.console('a')}/clusters")
    wait_for_row(page, "failovers", after=2, holds=["b", "a", "forced", "11"])


async def _follows(clusters: TwoClusters, source: str, target: str) -> bool:
    """Whether the target is connected to the source: the first cluster starts before the other listens."""
    grids = (await clusters.visitors[target].data("clusters"))["grids"]
    lag = next(grid for grid in grids if grid["id"] == "lag")
    states = {tuple(cell["text"] for cell in cells[:2]): cells[2]["text"] for cells in lag["rows"]}
    return states.get((source, target)) == "following"


def test_a_failover_to_a_cluster_that_does_not_respond_is_seen_before_and_changes_nothing(
    clusters: TwoClusters, at: Callable[[str], Seen]
) -> None:
    clusters.run(clusters.share("cut-off"))
    clusters.run(clusters.cut("b"))
    try:
        seen = at("a")
        seen.goto("failover?name=cut-off")
        cells = row(seen.page, "preflight", "b")
        assert cells[1:4] == ["no response", "unknown", "unknown"]
        seen.shoot("failover-no-response")
        seen.allowed.add(503)
        fail_over(seen.page, "b", "graceful")
        expect(seen.page.locator(".problem")).to_contain_text("'b' does not respond")
        assert clusters.run(clusters.active("a", "cut-off")) == "a"
    finally:
        clusters.heal()


def test_branches_show_what_was_reapplied_and_a_zombie_says_so(
    clusters: TwoClusters, at: Callable[[str], Seen]
) -> None:
    namespace = f"parted-{uuid.uuid4().hex[:6]}"
    clusters.run(clusters.share(namespace))
    zombie = clusters.run(_part(clusters, namespace))
    try:
        seen = at("b")
        page = seen.page
        seen.goto(f"workflow?{urlencode({'id': 'w', 'namespace': namespace})}")
        page.get_by_role("link", name="Branches").click()
        expect(page.locator("#branches tbody tr")).to_have_count(2)
        expect(page.locator("#branches")).to_contain_text("lost")
        expect(page.locator("#tree pre")).to_contain_text("<- current (reapplied here: 4)")
        cells = row(page, "reapplied")
        assert (cells[0], cells[1], cells[3], cells[5]) == ("lost", "signal", "3 v1", "reapplied as event 4")
        seen.shoot("branches-forked")
        seen.goto(f"branches?{urlencode({'id': 'z', 'run': zombie, 'namespace': namespace})}")
        expect(page.get_by_text("This run is a zombie")).to_be_visible()
        seen.shoot("branches-zombie")
    finally:
        clusters.heal()


async def _part(clusters: TwoClusters, namespace: str) -> str:
    """Let both clusters write to workflow w, and start workflow z in both; return the run of z that loses.

    In the end b has the events of a, but a does not have those of b.
    """
    a, b = await clusters.client("a", namespace), await clusters.client("b", namespace)
    await a.start_workflow("Any", id="w", task_queue="q")

    async def has_arrived() -> bool:
        return await _events(clusters, "b", namespace, "w") == 2

    await until(has_arrived)
    await clusters.cut()
    await a.get_workflow_handle("w").signal("lost")
    zombie = await a.start_workflow("Any", id="z", task_queue="q")
    client = clusters.visitors["b"]
    await client.get("failover", name=namespace)
    form = {"to": "b", "how": "forced", "word": "fail over", "reason": "a drill"}
    assert (await client.post(f"failover/start?name={namespace}", form)).status == 303
    await b.get_workflow_handle("w").signal("won")
    await b.start_workflow("Any", id="z", task_queue="q")
    clusters.wires["a"].heal()

    async def is_known() -> bool:
        return await _events(clusters, "b", namespace, "z", zombie.result_run_id or "") == 2

    await until(is_known)

    async def is_reapplied() -> bool:
        return await _events(clusters, "b", namespace, "w") == 4

    await until(is_reapplied)
    return zombie.result_run_id or ""


async def _events(clusters: TwoClusters, name: str, namespace: str, workflow_id: str, run_id: str = "") -> int:
    client = await clusters.client(name, namespace)
    try:
        history = await client.get_workflow_handle(workflow_id, run_id=run_id or None).fetch_history()
    except Exception:  # noqa: BLE001 - the caller asks again
        return 0
    return len(history.events)


def test_a_repair_is_tried_and_applied_with_a_typed_word(
    clusters: TwoClusters, at: Callable[[str], Seen], lake: Path
) -> None:
    clusters.run(clusters.share("repaired"))
    new_lake(lake, clusters.run(_plan(clusters, "repaired")))
    seen = at("a")
    page = seen.page
    seen.goto("report")
    assert row(page, "verdicts", "agreed")[2] == "2"
    expect(page.locator("#wrong")).to_contain_text("<b>order-2</b>")
    expect(page.locator("#by-hand")).to_contain_text("many_open")
    seen.shoot("report-findings")
    page.get_by_role("link", name="Dry run of the repair").click()
    expect(page.locator("#plan")).to_contain_text("Dry run: 0 events would be written by 1 of 2 steps, 1 failed")
    seen.shoot("report-dry-run")
    form = page.locator("details.action")
    form.locator("summary").click()
    form.get_by_label("Reason").fill("a drill")
    form.get_by_label("Type repair").fill("mend")
    form.get_by_role("button").click()
    # The browser does not send the form, because the word is not `repair`.
    expect(page.locator("p.notice")).to_have_count(0)
    form.get_by_label("Type repair").fill("repair")
    form.get_by_role("button").click()
    expect(page.locator("p.notice")).to_contain_text("0 events were written by 1 of 2 steps, 1 failed.")
    seen.shoot("report-applied")


async def _plan(clusters: TwoClusters, namespace: str) -> dict[str, Any]:
    """A plan of two steps: of events that both clusters have, and of events that none has."""
    client = await clusters.client("a", namespace)
    handle = await client.start_workflow("Any", id="w", task_queue="q")
    run_id = handle.result_run_id or ""

    async def has_arrived() -> bool:
        return await _events(clusters, "b", namespace, "w") == 2

    await until(has_arrived)
    described = await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    place = {"namespace_id": described.namespace_info.id, "run_id": run_id, "target": "b", "source": "a"}
    events = {"version": 1, "first_event_id": 1, "last_event_id": 2, "items": [{"event_id": 2, "version": 1}]}
    missing = {"first_event_id": 8, "last_event_id": 9, "items": [{"event_id": 9, "version": 1}]}
    return PLAN | {"sends": [SEND | place | events, SEND | place | events | missing], "by_hand": [BY_HAND]}


def test_a_failover_is_attributed_to_the_last_request_that_can_have_caused_it() -> None:
    def request(at_s: float, principal: str, *, namespace: str = "shared", is_allowed: bool = True) -> AuditRecord:
        return AuditRecord(
            time_us=int(at_s * 1e6),
            principal_kind="api-key",
            principal=principal,
            method="fairlead/replication.FailOver",
            namespace="",
            object=namespace,
            is_allowed=is_allowed,
            reason="a drill",
            peer="127.0.0.1",
            host="h",
        )

    past = PastFailover("shared", int(1_000e9), 2, "b", "a", is_graceful=True)
    records = [
        request(900, "long before"),
        request(990, "first"),
        request(995, "other", namespace="other"),
        request(996, "refused", is_allowed=False),
        request(1_100, "later"),
    ]
    found = _record_of(past, records)
    assert found is not None
    assert found.principal == "first"
    assert _record_of(past, records[:1]) is None
