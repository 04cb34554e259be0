"""`fairlead pipeline all`, end to end: planted problems are found, reported and shown.

`tests/cli/test_demo.py` and `tests/pipeline/test_worker.py` run the jobs in processes of their own.
"""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from pyarrow import parquet

from fairlead.cli.pipeline.runner import EXIT_ALARM
from fairlead.pipeline.sources.faults import Fault
from fairlead.pipeline.synth.history_defects import DEFECTS
from fairlead.pipeline.synth.scores import OTHERS, score, score_names, table_of
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic import matching
from tests.pipeline.all_jobs import Run

# The first of these tests runs all jobs.
pytestmark = pytest.mark.timeout(1500)

# The fault with which each kind of damaged segment must be reported.
FAULTS = {
    "torn": Fault.TRUNCATED,
    "flipped": Fault.DAMAGED,
    "foreign": Fault.INCOMPLETE,
    "future": Fault.IMPLAUSIBLE_TIME,
    "newer": Fault.OTHER_SCHEMA,
}


@pytest.fixture(scope="module")
def text(run: Run) -> str:
    """The visible text of the page."""
    return re.sub(r"\s+", " ", re.sub(r"<style.*?</style>|<[^>]+>", " ", run.look.dom, flags=re.DOTALL))


def test_all_jobs_run_in_order_and_findings_set_the_exit_code(run: Run) -> None:
    assert list(run.summaries) == [
        "ingest", "traffic", "fairness", "backtest", "placement", "reconcile", "histories", "report",
    ]  # fmt: skip
    assert run.done.code == EXIT_ALARM
    alarms = run.done.err.splitlines()
    assert [line.split(": ")[1] for line in alarms] == ["ingest", "fairness", "reconcile", "histories"]


def test_every_damaged_segment_is_in_quarantine_and_no_other(run: Run, text: str) -> None:
    found = {(one["cluster"], one["name"]) for one in run.summaries["ingest"]["findings"]["quarantined"]}
    assert found == {(one.cluster, one.segment) for one in run.manifest.damaged}
    assert run.summaries["ingest"]["rows"] == {
        "task": run.manifest.task_records,
        "history": run.manifest.histories.records,
    }
    findings = run.summaries["ingest"]["findings"]
    assert set(findings["segments_duplicate"]) == {f"{one.cluster}/{one.segment}" for one in run.manifest.copied}
    assert (findings["unknown_fields"], findings["unknown_kinds"]) == (
        run.manifest.unknown_fields,
        run.manifest.unknown_kinds,
    )
    assert f"{len(run.manifest.damaged)} segments can't be read" in text
    assert all(one.segment in text for one in run.manifest.damaged)


def test_every_flood_that_starves_others_is_named_and_no_other(run: Run, text: str) -> None:
    found = {
        (one["cluster"], one["namespace_id"], one["task_list"], one["flood_key"])
        for one in run.summaries["fairness"]["findings"]["floods"]
    }
    harmful = [one for one in run.manifest.floods if one.flood.starves_others]
    assert found == {
        (one.cluster, one.flood.namespace_id, one.flood.task_queue, one.flood.fairness_key) for one in harmful
    }
    assert len(harmful) == 3
    for one in harmful:
        place = rf"{one.flood.task_queue} of {one.flood.namespace_id} \(\w+ tasks, {one.cluster}\)"
        assert re.search(rf"Key {one.flood.fairness_key} flooded {place}", text)


def test_every_planted_defect_is_found_and_nothing_else(run: Run, text: str) -> None:
    planted = run.manifest.histories.planted
    wrong = {one.run_id for one in planted if one.verdict == "wrong"}
    found = run.summaries["reconcile"]["findings"]
    counts = Counter(one.verdict for one in planted)
    assert found["verdicts"] == {"agreed": run.manifest.histories.runs - len(planted), **counts}
    expected = {kind for one in planted for kind, _ in one.expected}
    assert {kind for kind, count in found["kinds"].items() if count} == expected
    assert f"{len(wrong)} of {run.manifest.histories.runs:,} runs are wrong" in text
    # All run ids that are shown are planted ones, and every kind has its bar.
    shown = set(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", run.page.read_text()))
    assert len(shown & wrong) == 25
    assert all(kind.replace("_", " ") in text for kind in expected)


def test_a_table_has_recall_and_false_alarms_of_everything_that_was_planted(run: Run) -> None:
    rows = parquet.read_table(run.lake / "verdicts", columns=["run_id", "verdict", "findings"]).to_pylist()
    verdicts = {
        row["run_id"]: (
            row["verdict"],
            frozenset((one["kind"], one["cluster"]) for one in row["findings"] if one["state"] == "wrong"),
        )
        for row in rows
        if row["verdict"] != "agreed"
    }
    ingested = run.summaries["ingest"]["findings"]
    planted, found = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for damaged in run.manifest.damaged:
        planted[f"{damaged.damage}: {FAULTS[damaged.damage]}"].add(f"{damaged.cluster}/{damaged.segment}")
    names = {fault: f"{damage}: {fault}" for damage, fault in FAULTS.items()}
    for one in ingested["quarantined"]:
        found[names.get(one["fault"], one["fault"])].add(f"{one['cluster']}/{one['name']}")
    planted["copied: duplicate"] = {f"{one.cluster}/{one.segment}" for one in run.manifest.copied}
    found["copied: duplicate"] = set(ingested["segments_duplicate"])
    for name, counts in (
        ("unknown_fields", run.manifest.unknown_fields),
        ("unknown_kinds", run.manifest.unknown_kinds),
    ):
        planted[name], found[name] = (
            {f"{key}: {count}" for key, count in each.items()} for each in (counts, ingested[name])
        )
    scores = [*score_names(planted, found), *score(run.manifest.histories.planted, verdicts)]
    print(f"\n{table_of(scores)}")  # noqa: T201 - shown by pytest -s
    assert {one.defect for one in scores} == {*planted, *(defect.__name__ for defect in DEFECTS), OTHERS}
    assert [one for one in scores if one.recall < 1 or one.false_alarms] == []


def test_the_recommended_settings_are_what_the_server_loads(run: Run) -> None:
    clusters = run.summaries["backtest"]["findings"]["clusters"]
    assert sorted(clusters) == ["east", "north", "west"]
    for reported in clusters.values():
        settings = DynamicSettings(file=Path(reported["settings_file"]))
        assert settings.get(matching.ENABLE_ADAPTIVE_SCALER) is True
        assert settings.get(matching.PARTITION_UPSCALE_RPS) == reported["recommended"]["upscale_rps"]


def test_a_browser_shows_the_page_without_errors_or_requests(run: Run, text: str) -> None:
    assert (run.look.console, run.look.requests) == ([], [])
    assert run.summaries["report"]["findings"]["bytes"] < 5_000_000
    # Every section has a chart, not only text.
    for name in ("traffic", "fairness", "backtest", "placement", "clusters"):
        part = run.look.dom.partition(f'id="{name}"')[2].partition("<section")[0]
        assert "<svg" in part, name
    assert "recommended" in text
