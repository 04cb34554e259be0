"""Defects planted in the journal of a real server: all are found, with no false alarm; prints a table of scores."""

import asyncio
import base64
import json
import random
import subprocess
import sys
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from pyspark.sql import SparkSession
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.journal import read_segment
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.jobs import ingest, reconcile
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.sources.faults import Fault
from fairlead.pipeline.synth.history_defects import Expected, Planted
from fairlead.pipeline.synth.scores import OTHERS, Score, score, score_names, table_of
from tests.journal.victim import Victim
from tests.patience import until
from tests.pipeline.journals import frames_of, task_records, write_segment
from tests.pipeline.test_real_journal import QUEUE, Order, Parcel, deliver

CLUSTERS = ("east", "north", "west")
HOUR_US = 3_600_000_000
TASK_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
SIGNALED = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
YEAR_2100_US = 4_102_444_800_000_000
SPOILT = "west"

UNKNOWN_FIELD = "colour"

Records = list[dict[str, Any]]
Copies = dict[str, dict[str, Records]]
Spoil = Callable[[Records, str], Records]


class Plant(NamedTuple):
    """A defect: the change of one cluster's records of a run, and the result that a check must have.

    `others` changes the records of the other clusters. `is_by_hand` means that nothing of the run may be sent.
    """

    spoil: Spoil
    kinds: tuple[str, ...] = ()
    verdict: str = "wrong"
    others: Spoil | None = None
    others_kind: str = ""
    is_by_hand: bool = False

    @property
    def name(self) -> str:
        """The defect's name in the table."""
        return self.spoil.__name__

    def planted(self, record: dict[str, Any]) -> Planted:
        """The entry of the manifest for a run with this defect."""
        key = (record["namespace_id"], record["workflow_id"], record["run_id"])
        expected = [Expected(kind, SPOILT) for kind in self.kinds]
        expected += [Expected(self.others_kind, name) for name in CLUSTERS if self.others and name != SPOILT]
        return Planted(self.name, *key, (*expected,), self.verdict, self.is_by_hand)


async def live(folder: Path, runs: int) -> None:
    """Run workflows with a child, an activity that fails once, continue-as-new, signals and a reset on a server."""
    victim = Victim(folder)
    await victim.start()
    client = await Client.connect(victim.address)
    worker = Worker(
        client,
        task_queue=QUEUE,
        workflows=[Order, Parcel],
        activities=[deliver],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        handles = [
            await client.start_workflow(
                Order.run,
                args=[None],
                id=f"order-{number}",
                task_queue=QUEUE,
                start_signal="tell",
                start_signal_args=["a"],
            )
            for number in range(runs)
        ]
        for handle in handles:
            # On a busy machine the first run would get these signals, and the second run would have none.
            await until_continued(handle)
            await handle.signal(Order.tell, "b")
            await handle.signal(Order.tell, "end")
        await asyncio.gather(*(handle.result() for handle in handles))
        # A reset run is in the history tree of its base, which is correct.
        execution = WorkflowExecution(workflow_id=handles[-1].id, run_id=(await handles[-1].describe()).run_id)
        events = client.get_workflow_handle(execution.workflow_id, run_id=execution.run_id).fetch_history_events()
        completed = [event.event_id async for event in events if event.event_type == TASK_COMPLETED]
        await client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace="default",
                workflow_execution=execution,
                workflow_task_finish_event_id=completed[0],
                request_id="reset",
            )
        )
        await client.get_workflow_handle(handles[-1].id).result()
    assert await victim.stop() == 0


async def until_continued(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the workflow has continued as new: until its current run is not the first one."""

    async def is_continued() -> bool:
        return (await handle.describe()).run_id != handle.result_run_id

    await until(is_continued)


def exported(folder: Path) -> dict[str, Records]:
    """The records that `fairlead export` writes from the server's store, with payloads, by run id."""
    places = ("--db", str(folder / "f.db"), "--journal", str(folder / "export"))
    subprocess.run([sys.executable, "-m", "fairlead", "export", *places], check=True, capture_output=True)
    runs: dict[str, Records] = {}
    for segment in sorted((folder / "export").glob("*/history.*.zst")):
        for record in read_segment(segment):
            # Pretend that the namespace is global.
            record["version"] = 1
            record["items"] = [item | {"version": 1} for item in record["items"]]
            runs.setdefault(record["run_id"], []).append(record)
    return runs


# Each function gets a run's records in the spoilt cluster and an unused id, and returns records with one defect.


def missing_run(_records: Records, _new: str) -> Records:
    return []


def missing_events(records: Records, _new: str) -> Records:
    return records[:-1]


def gap(records: Records, _new: str) -> Records:
    return [records[0], *records[2:]]


def different_events(records: Records, _new: str) -> Records:
    records[1]["event_digests"][-1] = "0123456789abcdef"
    del records[1]["payload"]
    return records


def different_types(records: Records, _new: str) -> Records:
    # Don't change the type of a signal: the record would keep the signal's id, which would be a second defect.
    record = next(record for record in records[1:] if record["event_types"][-1] != SIGNALED)
    record["event_types"][-1] = 17
    del record["payload"]
    return records


def different_signals(records: Records, new: str) -> Records:
    record = next(record for record in records if record.get("signals"))
    record["signals"][0] = new
    del record["payload"]
    return records


def unnamed_signals(records: Records, _new: str) -> Records:
    record = next(record for record in records if record.get("signals"))
    del record["signals"], record["payload"]
    return records


def wrong_tree(records: Records, new: str) -> Records:
    return [record | {"tree_id": new} for record in records]


def tree_of_another(records: Records, _new: str) -> Records:
    """Each workflow id has two runs: the second follows the first by continue-as-new."""
    return [record | {"tree_id": record["before"]} for record in records]


def sole_witness(records: Records, _new: str) -> Records:
    """Only this cluster has the end; the cluster that wrote that version lacks it."""
    return records


def sole_witness_in_a_wrong_tree(records: Records, new: str) -> Records:
    return wrong_tree(records, new)


def wrong_payload(records: Records, _new: str) -> Records:
    history = History.FromString(base64.b64decode(records[1]["payload"]))
    history.events[-1].event_time.seconds += 1
    records[1]["payload"] = base64.b64encode(history.SerializeToString()).decode()
    return records


def status_differs(records: Records, _new: str) -> Records:
    records[-1]["status"] = 7
    return records


def not_comparable(records: Records, _new: str) -> Records:
    for name in ("event_types", "event_digests", "signals", "payload"):
        records[1].pop(name, None)
    return records


def late(records: Records, _new: str) -> Records:
    return records[:-1]


PLANTS = (
    Plant(missing_run, ("missing_run",)),
    Plant(missing_events, ("missing_events",)),
    Plant(gap, ("gap",)),
    Plant(different_events, ("different_events",)),
    Plant(different_types, ("different_types",)),
    Plant(different_signals, ("different_signals",)),
    Plant(unnamed_signals, ("malformed_batch",)),
    Plant(wrong_tree, ("wrong_tree",)),
    Plant(tree_of_another, ("wrong_tree",)),
    Plant(wrong_payload, ("wrong_payload",)),
    Plant(status_differs, ("status_differs",)),
    Plant(sole_witness, ("extra_events",), others=missing_events, others_kind="missing_events", is_by_hand=True),
    Plant(
        sole_witness_in_a_wrong_tree,
        ("wrong_tree",),
        others=missing_run,
        others_kind="missing_run",
        is_by_hand=True,
    ),
    Plant(not_comparable, verdict="not_comparable"),
    Plant(late, verdict="late"),
)


def plant(runs: dict[str, Records], chance: random.Random) -> tuple[Copies, list[Planted]]:
    """Copy the runs to each cluster and plant the defects in one; returns the copies and the list of defects."""
    before = {records[-1]["new_run_id"]: run_id for run_id, records in runs.items() if records[-1].get("new_run_id")}
    copies: Copies = {cluster: msgspec.json.decode(msgspec.json.encode(runs)) for cluster in CLUSTERS}
    chosen = chance.sample(plantable(runs, before), 2 * len(PLANTS))
    manifest = []
    latest_us = max(record["time_us"] for records in runs.values() for record in records)
    for place, run_id in enumerate(chosen):
        defect = PLANTS[place % len(PLANTS)]
        for cluster in CLUSTERS:
            records = copies[cluster][run_id]
            for record in records:
                # Runs with late events are recent: 2 hours after all others.
                record["time_us"] = latest_us + 2 * HOUR_US if defect.spoil is late else record["time_us"]
            spoil = defect.spoil if cluster == SPOILT else defect.others
            known = [record | {"before": before[run_id]} for record in records]
            spoilt = known if spoil is None else spoil(known, f"nobody-{place}")
            copies[cluster][run_id] = [without(record, "before") for record in spoilt]
        manifest.append(defect.planted(runs[run_id][0]))
    return copies, manifest


def plantable(runs: dict[str, Records], before: Container[str]) -> list[str]:
    """The runs that are suitable for every defect, in the order of their workflow ids.

    These are second runs: they have no failed workflow task and no successor, and all have signals. The base of the
    reset is left out: a newer run follows it, so a cluster that lacks its end rightly has a second finding, a zombie.
    """
    bases = {record["tree_id"] for run_id, records in runs.items() for record in records if record["tree_id"] != run_id}
    suitable = [run_id for run_id in runs if run_id in before and run_id not in bases]
    return sorted(suitable, key=lambda run_id: str(runs[run_id][0]["workflow_id"]))


def without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def segment_scores(findings: dict[str, Any], planted: dict[str, set[str]]) -> list[Score]:
    found: dict[str, set[str]] = {fault: set() for fault in planted}
    for entry in findings["quarantined"]:
        found.setdefault(entry["fault"], set()).add(f"{entry['cluster']}/{entry['name']}")
    found["duplicate"] = set(findings["segments_duplicate"])
    for name in ("unknown_fields", "unknown_kinds"):
        found[name] = {f"{one}: {count}" for one, count in findings[name].items()}
    return score_names(planted, found)


@pytest.mark.timeout(1200)
def test_defects_in_a_real_journal_are_found_with_no_false_alarm(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(live(tmp_path, runs=2 * len(PLANTS) + 8))
    runs = exported(tmp_path)
    assert any(record["tree_id"] != run_id for run_id, records in runs.items() for record in records), "no reset run"
    copies, manifest = plant(runs, random.Random(3))
    journal = tmp_path / "journal-of-three"
    segments: dict[str, set[str]] = {"duplicate": set(), Fault.IMPLAUSIBLE_TIME: set(), Fault.OTHER_SCHEMA: set()}
    segments |= {"unknown_fields": {f"{UNKNOWN_FIELD}: {len(CLUSTERS)}"}, "unknown_kinds": {"parked: 2"}}
    for place, cluster in enumerate(CLUSTERS):
        records = [record for run in copies[cluster].values() for record in run]
        for record in records:
            record["time_us"] += HOUR_US * (cluster == "north")
        records[0][UNKNOWN_FIELD] = "red"
        path = write_segment(journal, records, kind="history", cluster=cluster, number=place)
        # Each cluster also has a duplicate segment, one with a wrong clock and one of a later release.
        copied = write_segment(journal, path.read_bytes(), kind="history", cluster=cluster, number=50)
        wrong_clock = frames_of([*records[:5], records[5] | {"time_us": YEAR_2100_US}])
        future = write_segment(journal, wrong_clock, kind="history", cluster=cluster, number=51)
        newer = write_segment(journal, records[:9], kind="history", cluster=cluster, number=52, version=2)
        for defect, file in (("duplicate", copied), (Fault.IMPLAUSIBLE_TIME, future), (Fault.OTHER_SCHEMA, newer)):
            segments[defect].add(f"{cluster}/{file.name}")
    write_segment(journal, task_records(2, kind="parked"), cluster="east")
    lake = Lake(tmp_path / "lake")
    taken = ingest.run(JobContext(spark, lake, journal=journal))
    assert taken.rows["history"] == sum(len(run) for copy in copies.values() for run in copy.values())

    versions = tuple(f"{cluster}={place + 1}" for place, cluster in enumerate(CLUSTERS))
    reconcile.run(JobContext(spark, lake, options={"increment": 10, "initial_version": versions}))
    found = {
        row.run_id: (row.verdict, frozenset((one.kind, one.cluster) for one in row.findings if one.state == "wrong"))
        for row in lake.read_derived(spark, "verdicts").where("verdict != 'agreed'").collect()
    }
    scores = [*segment_scores(taken.findings, segments), *score(manifest, found)]
    print(f"\n{table_of(scores)}")  # noqa: T201 - shown by pytest -s
    assert {one.defect for one in scores} == {*segments, *(plant.name for plant in PLANTS), OTHERS}
    assert [one for one in scores if one.recall < 1 or one.false_alarms] == []
    plan = json.loads((lake.root / reconcile.PLAN_FILE).read_bytes())
    kept = {entry.run_id for entry in manifest if entry.is_by_hand}
    assert kept.isdisjoint(send["run_id"] for send in plan["sends"])
    assert kept <= {left["run_id"] for left in plan["by_hand"]}
