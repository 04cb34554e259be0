"""Every column of the derived tables, compared with a computation apart from the jobs.

The tables of the journal's tasks and of the clusters are compared here, on the one lake of `test_all.py`.
"""

import math
from typing import Any

import pytest

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.schemas import BRONZE
from tests.pipeline.all_jobs import Run
from tests.pipeline.oracle import clusters, fairness, placement, traffic
from tests.pipeline.oracle.lakes import derived
from tests.pipeline.oracle.records import Row, task_records

# The first of these tests runs all jobs.
pytestmark = pytest.mark.timeout(1500)

# Defects with events that the job may count otherwise than a plain comparison.
ODD = ("mixed_versions", "contradiction", "sole_witness", "sole_witness_in_a_wrong_tree")
# The columns that identify a row of a table.
KEYS = {
    "traffic": ("cluster", "namespace_id", "task_list", "task_type", "partition", "window_us"),
    "traffic_lists": ("cluster", "namespace_id", "task_list", "task_type", "window_us"),
    "fairness_keys": ("cluster", "namespace_id", "task_list", "task_type", "window_us", "fairness_key"),
    "fairness": ("cluster", "namespace_id", "task_list", "task_type", "window_us"),
    "placement": ("batch_size",),
    "placement_hosts": ("batch_size", "host"),
    "placement_spots": ("batch_size", "rank"),
    "placement_moves": ("batch_size", "change"),
    "placement_timetable": ("batch_size", "time_share"),
}
# The other tables, with the tests that compare every column with `oracle/backtest.py` or `histories_oracle.py`.
ELSEWHERE = {
    "verdicts": "below",
    "pairs": "below",
    "repair_plan": "below",
    "backtest": "test_backtest.py",
    "backtest_settings": "test_backtest.py",
    "backtest_timeline": "test_backtest.py",
    "workflows": "test_histories.py",
    "activities": "test_histories.py",
    "workflow_types": "test_histories.py",
    "activity_types": "test_histories.py",
    "waits": "public_export/test_tables.py",
    "history_traffic": "public_export/test_tables.py",
    "failures": "public_export/test_tables.py",
    "actions": "public_export/test_tables.py",
}


@pytest.fixture(scope="module")
def tasks(run: Run) -> list[Row]:
    return task_records(run.journal, damaged={(one.cluster, one.segment) for one in run.manifest.damaged})


def compare(run: Run, table: str, expected: list[Row]) -> None:
    """Check that the table has exactly these rows, in every column of the dictionary."""
    found = derived(Lake(run.lake), table)
    columns = {*TABLES[table].schema.names} | ({"namespace"} if "namespace_id" in TABLES[table].schema.names else set())

    def by_key(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
        named = {tuple(row[name] for name in KEYS[table]): row for row in rows}
        assert len(named) == len(rows)
        return named

    there, wanted = by_key(found), by_key(expected)
    assert there.keys() == wanted.keys(), sorted(map(str, there.keys() ^ wanted.keys()))[:5]
    assert expected
    for key, row in wanted.items():
        assert row.keys() == columns, row.keys() ^ columns
        assert there[key].keys() == columns
        for name, value in row.items():
            assert is_same(there[key][name], value), (table, key, name, there[key][name], value)


def is_same(found: Any, expected: Any) -> bool:
    """Whether both are equal, up to rounding; a set names the values of which any will do."""
    if isinstance(expected, set):
        return found in expected
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return bool(found == expected)


def test_every_derived_table_has_an_oracle() -> None:
    assert {*KEYS, *ELSEWHERE} == {name for name in TABLES if name not in BRONZE}


def test_traffic_backlogs_and_skew_agree_in_every_column(run: Run, tasks: list[Row]) -> None:
    expected = traffic.tables(tasks)
    assert {row["backlog"] is None for row in expected["traffic_lists"]} == {True, False}
    assert max(row["skew"] or 0.0 for row in expected["traffic_lists"]) > 1
    for table, rows in expected.items():
        compare(run, table, rows)


def test_shares_starved_keys_and_floods_agree_in_every_column(run: Run, tasks: list[Row]) -> None:
    expected = fairness.tables(tasks)
    assert any(row["is_starved"] for row in expected["fairness_keys"])
    assert any(row["flood_key"] for row in expected["fairness"])
    for table, rows in expected.items():
        compare(run, table, rows)


def test_placement_agrees_in_every_column(run: Run, tasks: list[Row]) -> None:
    for table, rows in placement.tables(tasks).items():
        compare(run, table, rows)


def test_the_verdicts_of_runs_without_a_defect_agree_in_every_column(run: Run) -> None:
    planted = {one.run_id for one in run.manifest.histories.planted}
    expected = [row for row in clusters.agreed(batches_of(run)) if row["run_id"] not in planted]
    found = {row["run_id"]: row for row in derived(Lake(run.lake), "verdicts") if row["run_id"] not in planted}
    assert found.keys() == {row["run_id"] for row in expected}
    for row in expected:
        # A drawing is for people: it names the current branch, and is there for several branches.
        drawing = found[row["run_id"]].pop("drawing")
        assert ("<- current" in drawing) if len(row["branches"]) > 1 else (drawing is None)
        assert {*row} | {"drawing"} == {*TABLES["verdicts"].schema.names, "namespace"}
        assert found[row["run_id"]] == row
    assert any(len(row["branches"]) > 1 for row in expected)


def test_the_pairs_of_clusters_agree_in_every_column(run: Run) -> None:
    records = batches_of(run)
    planted = run.manifest.histories.planted
    namespaces = {row["run_id"]: row["namespace_id"] for row in records}
    late = {one.run_id for one in planted if one.verdict == "late"}
    expected = clusters.pairs(clusters.copies_of(records), namespaces, late)
    rows = derived(Lake(run.lake), "pairs")
    assert {(row["namespace_id"], row["left"], row["right"]) for row in rows} == {*expected}
    # In runs with these defects, versions come from the branch, only one of two branches counts, or events that only
    # one cluster has count as a local run: the job may count each of their events otherwise.
    odd = {one.run_id for one in planted if one.defect in ODD}
    exact = 0
    for row in rows:
        assert row["namespace"] == row["namespace_id"]
        counts = expected[row["namespace_id"], row["left"], row["right"]]
        doubtful = [one for one in records if one["run_id"] in odd and one["namespace_id"] == row["namespace_id"]]
        events = sum(one["last_event_id"] - one["first_event_id"] + 1 for one in doubtful)
        runs = len({one["run_id"] for one in doubtful})
        columns = TABLES["pairs"].schema.names[3:]
        for name in columns:
            assert abs(row[name] - counts[name]) <= (runs if name.startswith("runs") else events), (name, row, counts)
        exact += all(row[name] == counts[name] for name in columns)
    assert exact >= len(rows) / 4


def test_a_send_of_the_repair_plan_has_events_that_its_target_lacks_and_its_source_has(run: Run) -> None:
    copies = clusters.copies_of(batches_of(run))
    kinds = {one.run_id: {kind for kind, _ in one.expected} for one in run.manifest.histories.planted}
    sent = set()
    for row in derived(Lake(run.lake), "repair_plan"):
        assert row.keys() == {*TABLES["repair_plan"].schema.names, "namespace"}
        events = [(event, row["version"]) for event in range(row["first_event_id"], row["last_event_id"] + 1)]
        held = copies[row["run_id"]]
        assert all(event in held[row["source"]] and event not in held.get(row["target"], {}) for event in events)
        assert any(item["version"] == row["version"] and item["event_id"] >= events[-1][0] for item in row["items"])
        assert row["kind"] in kinds[row["run_id"]]
        for event in events:
            assert (row["run_id"], row["target"], event) not in sent
            sent.add((row["run_id"], row["target"], event))
    # Every event that a cluster lacks in a run whose only defect is missing events is sent to it.
    for run_id, expected in kinds.items():
        if expected <= {"missing_events", "missing_run"} and run_id in copies:
            every = {event for copy in copies[run_id].values() for event in copy}
            lacking = {
                (run_id, name, each) for name in clusters.CLUSTERS for each in every - {*copies[run_id].get(name, {})}
            }
            late = {one.run_id for one in run.manifest.histories.planted if one.verdict == "late"}
            assert lacking <= sent or run_id in late


def batches_of(run: Run) -> list[Row]:
    """The batches of the journal's histories."""
    return clusters.history_records(run.journal, damaged={(one.cluster, one.segment) for one in run.manifest.damaged})
