"""`fairlead admin repair`: a dry run needs no cluster; mistakes are reported in one line, and change nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from fairlead.testing import FairleadClusters
from tests.cli.admin.conftest import Admin
from tests.cli.thread import run_in_thread
from tests.replication.test_plans import PLAN, SEND, written

pytestmark = pytest.mark.timeout(120)


async def test_a_dry_run_shows_the_plan_without_a_cluster(tmp_path: Path) -> None:
    by_hand = {**SEND, "kind": "many_open", "state": "wrong", "detail": "2 runs"}
    file = written(tmp_path, PLAN | {"sends": [SEND | {"namespace": "orders"}], "by_hand": [by_hand]})
    shown = await run_in_thread("admin", "repair", "--plan", str(file), "--address", "127.0.0.1:1")
    assert (shown.code, shown.err) == (0, "")
    assert "1 step would send 3 events; 1 finding left for manual repair" in shown.out
    assert "orders" in shown.out
    plain = json.loads((await run_in_thread("admin", "repair", "--plan", str(file), "-o", "json")).out)
    (send,) = plain["sends"]
    assert send["namespace_id"] == "n"
    assert (send["target"], send["source"], send["events"], send["reason"]) == ("a", "b", "4-6", "gap")
    assert [each["kind"] for each in plain["by_hand"]] == ["many_open"]


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (PLAN | {"schema": 7}, (), "has schema 7"),
        (PLAN | {"sends": [{**SEND, "items": 1}]}, ("--apply",), "is not a plan of `fairlead pipeline reconcile`"),
        (PLAN, ("--apply", "--dry-run"), "give --dry-run or --apply, not both"),
    ],
)
async def test_an_invalid_plan_or_argument_is_reported_in_one_line(
    tmp_path: Path, plan: dict[str, Any], options: tuple[str, ...], words: str
) -> None:
    done = await run_in_thread("admin", "repair", "--plan", str(written(tmp_path, plan)), *options)
    assert (done.code, done.out) == (2, "")
    assert words in done.line


async def test_a_cluster_that_is_alone_says_so(admin: Admin, tmp_path: Path) -> None:
    done = await admin.run("repair", "--plan", str(written(tmp_path, PLAN)), "--apply")
    assert (done.code, done.out) == (2, "")
    assert "this cluster has no remote clusters" in done.line


async def test_a_plan_with_unknown_clusters_changes_nothing_and_failed_steps_are_reported(tmp_path: Path) -> None:
    async with FairleadClusters.start("a", "b") as clusters:
        address = clusters.admin_address("a")
        client = await clusters["a"].connect()
        handle = await client.start_workflow("Any", id="w", task_queue="q")
        namespace_id = (await client.workflow_service.describe_namespace(_describe())).namespace_info.id
        real = {**SEND, "namespace_id": namespace_id, "run_id": handle.first_execution_run_id}
        for name, where in (("target", "'a' is connected only to"), ("source", "'b' is connected only to")):
            plan = PLAN | {"sends": [real, {**real, "target": "b", "source": "a"} | {name: "x"}]}
            for option in ("--dry-run", "--apply"):
                done = await run_in_thread(
                    *("admin", "repair", "--plan", str(written(tmp_path, plan)), option, "--address", address)
                )
                assert (done.code, done.out) == (2, "")
                assert "the plan names cluster 'x'" in done.line
                assert where in done.line
        # No cluster has these events.
        file = str(written(tmp_path, PLAN | {"sends": [real]}))
        for option in ("--dry-run", "--apply"):
            done = await run_in_thread("admin", "repair", "--plan", file, option, "--address", address, "-o", "json")
            reported = json.loads(done.out)
            assert (done.code, reported["parameters"]["failed"], reported["parameters"]["events"]) == (3, 1, 0)
            assert reported["steps"][0]["error"]


def _describe() -> Any:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest  # noqa: PLC0415

    return DescribeNamespaceRequest(namespace="shared")
