"""The view of the lake: its report, the findings of the reconciliation, and their repair."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from temporalio.api.replication.v1 import ClusterReplicationConfig
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client

from fairlead.console import lake as console_lake
from fairlead.pipeline.jobs import reconcile, report
from fairlead.pipeline.jobs.backtest import settings_document
from fairlead.pipeline.kernels.scaler import Candidate
from fairlead.pipeline.report.page import POLICY
from fairlead.settings import Plain
from fairlead.settings.static.clusters import ClusterConfig, RemoteClusterConfig
from tests.console.web import new_key, running_console
from tests.patience import until
from tests.ports import free_port
from tests.replication.test_plans import PLAN, SEND

BY_HAND = {**SEND, "kind": "many_open", "state": "wrong", "detail": "2 <runs>", "namespace": "orders"}
APPLY = {"plan": str(PLAN["now_us"]), "word": "repair", "reason": "a test"}


def new_lake(folder: Path, plan: dict[str, Any] | None = None) -> Path:
    """A lake as the pipeline leaves it: a report, verdicts of four runs, and a plan."""
    folder.mkdir(exist_ok=True)
    (folder / "_lake.json").write_text('{"layout": 1}')
    (folder / "report.html").write_text("<!doctype html><style>p {color: red}</style><p>The report<script>1</script>")
    run = folder / "_runs" / "verdicts" / "1"
    run.mkdir(parents=True)
    rows = [("agreed", []), ("agreed", []), ("wrong", ["gap", "zombie"]), ("wrong", ["gap"])]
    columns = {
        "namespace": ["orders"] * 4,
        "workflow_id": [f"<b>order-{number}</b>" for number in range(4)],
        "run_id": ["r"] * 4,
        "verdict": [verdict for verdict, _ in rows],
        "kinds": pa.array([kinds for _, kinds in rows], pa.list_(pa.string())),
    }
    parquet.write_table(pa.table(columns), run / "part-0.parquet")
    (folder / "verdicts").symlink_to("_runs/verdicts/1")
    shown = plan or PLAN | {"sends": [SEND | {"namespace": "orders"}], "by_hand": [BY_HAND]}
    (folder / "repair_plan.json").write_text(json.dumps(shown))
    return folder


def rows_of(data: Any, grid: str) -> list[list[str]]:
    found = next(each for each in data["grids"] if each["id"] == grid)
    return [
        [cell["text"] or ("" if cell["number"] is None else f"{cell['number']:g}") for cell in row]
        for row in found["rows"]
    ]


def test_the_names_of_files_are_those_of_the_pipeline() -> None:
    assert (console_lake.REPORT_FILE, console_lake.PLAN_FILE) == (report.REPORT_FILE, reconcile.PLAN_FILE)


async def test_without_a_lake_the_page_says_how_to_give_one(tmp_path: Path) -> None:
    async with running_console() as (_, visitor):
        assert "--ui-lake DIR" in (await visitor.data("report"))["sentence"]
        assert (await visitor.get("report/page")).status == 404
    async with running_console(lake=tmp_path / "later") as (_, visitor):
        assert "fairlead pipeline all" in (await visitor.data("report"))["sentence"]
        (tmp_path / "later").mkdir()
        (tmp_path / "later" / "_lake.json").write_text("{}")
        data = await visitor.data("report")
        assert (data["sentence"], data["page_at_s"], data["plan_us"]) == ("", 0, 0)


async def test_the_lake_is_listed_and_its_report_has_its_own_policy(tmp_path: Path) -> None:
    async with running_console(lake=new_lake(tmp_path / "lake")) as (_, visitor):
        data = await visitor.data("report")
        assert rows_of(data, "verdicts") == [
            ["agreed", "", "2"],
            ["wrong", "", "2"],
            ["wrong", "gap", "2"],
            ["wrong", "zombie", "1"],
        ]
        assert [row[0] for row in rows_of(data, "wrong")] == ["<b>order-2</b>", "<b>order-3</b>"]
        assert [row[3:6] for row in rows_of(data, "plan")] == [["a", "b", "4-6"]]
        assert [row[3] for row in rows_of(data, "by-hand")] == ["many_open"]
        assert [row[0] for row in rows_of(data, "tables")] == ["verdicts"]
        assert data["commands"][1] == f"fairlead admin repair --plan {tmp_path}/lake/repair_plan.json --apply"
        reply = await visitor.get("report/page")
        assert (reply.status, b"The report" in reply.body) == (200, True)
        # The web page adds a policy of its own; a browser applies both.
        policy = reply.headers["content-security-policy"].splitlines()[0]
        assert set(POLICY.split("; ")) < set(policy.split("; "))
        assert policy.endswith("; sandbox")
        assert "script-src" not in policy


async def test_damaged_files_become_problems_of_their_parts(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    (lake / "repair_plan.json").write_text("{")
    (lake / "verdicts" / "part-0.parquet").write_bytes(b"no Parquet")
    async with running_console(lake=lake) as (_, visitor):
        problems = {grid["id"]: grid["problem"] for grid in (await visitor.data("report"))["grids"]}
        assert "is not a plan" in problems["plan"]["message"]
        assert "verdicts can't be read" in problems["verdicts"]["message"]
        await visitor.get("report")
        assert (await visitor.post("report/apply", APPLY)).status == 400


async def test_without_pyarrow_the_page_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    async with running_console(lake=new_lake(tmp_path / "lake")) as (_, visitor):
        problems = {grid["id"]: grid["problem"] for grid in (await visitor.data("report"))["grids"]}
        assert "pip install 'fairlead[pipeline]'" in problems["verdicts"]["message"]
        assert problems["plan"] is None


async def test_only_an_administrator_repairs_and_only_the_plan_that_was_shown(tmp_path: Path) -> None:
    async with running_console(lake=new_lake(tmp_path / "lake"), is_guarded=True) as (server, visitor):
        await visitor.sign_in(await new_key(server, "reader", "temporal-system"))
        assert "Apply the repair plan" not in (await visitor.get("report")).body.decode()
        assert (await visitor.get("report/page")).status == 200
        assert (await visitor.post("report/apply", APPLY)).status == 403
        plan = next(grid for grid in (await visitor.data("report", dry="true"))["grids"] if grid["id"] == "plan")
        assert plan["problem"]["status"] == 403
        await visitor.sign_in(await new_key(server, "reader", "default"))
        assert (await visitor.get("report/page")).status == 403
        await visitor.sign_in(await new_key(server, "admin", "temporal-system"))
        assert "Apply the repair plan" in (await visitor.get("report")).body.decode()
        for change, words in (
            ({"word": "yes"}, "type the word"),
            ({"plan": "4"}, "the lake has a newer repair plan"),
            ({}, "this cluster has no remote clusters"),
        ):
            reply = await visitor.post("report/apply", APPLY | change)
            assert (reply.status, words in reply.body.decode()) == (400, True), words


async def test_a_plan_is_tried_and_applied_in_another_cluster(tmp_path: Path) -> None:
    ports = dict(zip("ab", (free_port(), free_port()), strict=True))
    versions = {"a": 1, "b": 2}

    def config(name: str, other: str) -> ClusterConfig:
        remote = RemoteClusterConfig(versions[other], f"127.0.0.1:{ports[other]}")
        return ClusterConfig(name, versions[name], 10, {other: remote})

    lake = tmp_path / "lake"
    async with (
        running_console(lake=lake, port=ports["a"], cluster=config("a", "b")) as (server, visitor),
        running_console(port=ports["b"], cluster=config("b", "a")) as (other, _),
    ):
        client = await Client.connect(str(server.frontend_address), namespace="shared")
        far = await Client.connect(str(other.frontend_address), namespace="shared")
        await client.workflow_service.register_namespace(_global("shared"))
        asked = DescribeNamespaceRequest(namespace="shared")

        await until(lambda: _succeeds(far.workflow_service.describe_namespace(asked)))
        handle = await client.start_workflow("Any", id="w", task_queue="q")
        await until(lambda: _succeeds(far.get_workflow_handle("w").describe()))
        namespace_id = (await client.workflow_service.describe_namespace(asked)).namespace_info.id
        place = {"namespace_id": namespace_id, "run_id": handle.first_execution_run_id, "target": "b", "source": "a"}
        events = {"version": 1, "first_event_id": 1, "last_event_id": 2, "items": [{"event_id": 2, "version": 1}]}
        # The second step is of events that no cluster has.
        missing = {"first_event_id": 8, "last_event_id": 9, "items": [{"event_id": 9, "version": 1}]}
        new_lake(lake, PLAN | {"sends": [SEND | place | events, SEND | place | events | missing]})

        plan = next(grid for grid in (await visitor.data("report", dry="true"))["grids"] if grid["id"] == "plan")
        assert plan["title"] == "Dry run: 0 events would be written by 1 of 2 steps, 1 failed"
        assert [row[-1]["kind"] for row in plan["rows"]] == ["bad", "good"]
        await visitor.get("report")
        assert (await visitor.post("report/apply", APPLY)).status == 303
        page = (await visitor.get("report")).body.decode()
        assert "0 events were written by 1 of 2 steps, 1 failed. The first failure:" in page


async def _succeeds(call: Any) -> bool:
    try:
        await call
    except Exception:  # noqa: BLE001 - the caller asks again
        return False
    return True


def _global(name: str) -> RegisterNamespaceRequest:
    request = RegisterNamespaceRequest(
        namespace=name,
        is_global_namespace=True,
        active_cluster_name="a",
        clusters=[ClusterReplicationConfig(cluster_name=cluster) for cluster in "ab"],
    )
    request.workflow_execution_retention_period.seconds = 86_400
    return request


async def test_the_scaler_shows_the_recommended_settings_beside_those_in_force(tmp_path: Path) -> None:
    folder = new_lake(tmp_path / "lake") / "_recommended"
    folder.mkdir()
    file = folder / "settings.active.yaml"
    orders: dict[str, Plain] = {"namespace": "default", "taskQueueName": "orders", "taskType": "workflow"}
    best = Candidate(50.0, upscale_sustained_s=60.0, downscale_sustained_s=300.0, downscale_factor=0.5, interval_s=15.0)
    document = settings_document(best, [(orders, best._replace(upscale_rps=70.0))])
    key = "matching.partitionUpscaleRPS"
    async with running_console(lake=tmp_path / "lake") as (server, visitor):
        client = await Client.connect(str(server.frontend_address))
        for name in ("orders", "others"):
            await client.start_workflow("Any", id=name, task_queue=name)
        data = await visitor.data("scaler", name="orders", type="workflow")
        assert data["recommendation"] is None
        file.write_text(yaml.safe_dump(document))
        for name, expected in (("orders", "70"), ("others", "50")):
            data = await visitor.data("scaler", name=name, type="workflow")
            shown = {one["key"]: (one["value"], one["recommended"]) for one in data["settings"]}
            assert set(document) == set(shown)
            assert shown[key] == ("200", expected)
            assert "Recommended by" in (await visitor.get("scaler", name=name, type="workflow")).body.decode()
        file.write_text("matching.partitionUpscaleRPS: [{value: many}]")
        data = await visitor.data("scaler", name="orders", type="workflow")
        assert "can't be used" in data["recommendation"]["problem"]["message"]
