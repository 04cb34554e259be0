"""`fairlead pipeline all`, end to end, as a user runs it: what was planted is found, told and shown."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.pipeline.synth.journals import JournalManifest, read_manifest
from fairlead.settings import DynamicSettings, matching
from tests.pipeline.browser import Look, look_at

# All jobs are run by the first of the tests.
pytestmark = pytest.mark.timeout(1500)

FAIRLEAD = (sys.executable, "-m", "fairlead", "pipeline")
SEED = 4


class Run:
    """One run of `all` over made-up journals."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.lake = folder / "journal", folder / "lake"
        self.page = folder / "page.html"
        subprocess.run([*FAIRLEAD, "synth", "--journal", self.journal, "--seed", str(SEED)], check=True)
        self.manifest: JournalManifest = read_manifest(self.journal)
        histories = self.manifest.histories
        versions = [f"--initial-version={name}={version}" for name, version in histories.initial_versions.items()]
        where = ("--journal", self.journal, "--lake", self.lake, "--report", self.page)
        self.done = subprocess.run(
            [*FAIRLEAD, "all", *where, f"--increment={histories.increment}", *versions, "-o", "json"],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        self.summaries: dict[str, dict[str, Any]] = {one["job"]: one for one in json.loads(self.done.stdout)}
        self.look: Look = look_at(self.page, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("all"))


@pytest.fixture(scope="module")
def text(run: Run) -> str:
    """What a person reads on the page."""
    return re.sub(r"\s+", " ", re.sub(r"<style.*?</style>|<[^>]+>", " ", run.look.dom, flags=re.DOTALL))


def test_all_jobs_run_in_order_and_what_must_be_looked_at_is_an_exit_code(run: Run) -> None:
    assert list(run.summaries) == [
        "ingest", "traffic", "fairness", "backtest", "placement", "reconcile", "histories", "report",
    ]  # fmt: skip
    assert run.done.returncode == 3
    alarms = run.done.stderr.splitlines()
    assert [line.split(": ")[1] for line in alarms] == ["ingest", "fairness", "reconcile"]


def test_every_damaged_segment_is_in_quarantine_and_no_other(run: Run, text: str) -> None:
    found = {(one["cluster"], one["name"]) for one in run.summaries["ingest"]["findings"]["quarantined"]}
    assert found == {(one.cluster, one.segment) for one in run.manifest.damaged}
    assert run.summaries["ingest"]["rows"] == {
        "task": run.manifest.task_records,
        "history": run.manifest.histories.records,
    }
    assert "3 segments can't be read" in text
    assert all(one.segment in text for one in run.manifest.damaged)


def test_every_flood_that_starves_others_is_named_and_no_other(run: Run, text: str) -> None:
    found = {
        (one["cluster"], one["namespace_id"], one["task_list"], one["flood_key"])
        for one in run.summaries["fairness"]["findings"]["floods"]
    }
    harmful = [one for one in run.manifest.floods if one.flood.starves_others]
    assert found == {
        (one.cluster, one.flood.namespace_id, one.flood.task_list, one.flood.fairness_key) for one in harmful
    }
    assert len(harmful) == 3
    for one in harmful:
        assert re.search(
            rf"Key {one.flood.fairness_key} flooded {one.flood.task_list} \(\w+ tasks, {one.cluster}\)", text
        )


def test_every_planted_defect_is_found_and_nothing_else(run: Run, text: str) -> None:
    planted = run.manifest.histories.planted
    wrong = {one.run_id for one in planted if one.verdict == "wrong"}
    found = run.summaries["reconcile"]["findings"]
    assert found["verdicts"] == {
        "agreed": run.manifest.histories.runs - len(planted),
        "late": len(planted) - len(wrong),
        "wrong": len(wrong),
    }
    expected = {kind for one in planted for kind, _ in one.expected}
    assert {kind for kind, count in found["kinds"].items() if count} == expected
    assert f"{len(wrong)} of {run.manifest.histories.runs:,} runs are wrong" in text
    # As many as are shown are those that were planted, and every kind has its bar.
    shown = set(re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}", run.page.read_text()))
    assert len(shown & wrong) == 25
    assert all(kind.replace("_", " ") in text for kind in expected)


def test_the_recommended_settings_are_what_the_server_loads(run: Run) -> None:
    clusters = run.summaries["backtest"]["findings"]["clusters"]
    assert sorted(clusters) == ["east", "north", "west"]
    for told in clusters.values():
        settings = DynamicSettings(file=Path(told["settings_file"]))
        assert settings.get(matching.ENABLE_ADAPTIVE_SCALER) is True
        assert settings.get(matching.PARTITION_UPSCALE_RPS) == told["recommended"]["upscale_rps"]


def test_a_browser_shows_the_page_without_a_complaint_and_asks_nobody(run: Run, text: str) -> None:
    assert (run.look.console, run.look.requests) == ([], [])
    assert run.summaries["report"]["findings"]["bytes"] < 5_000_000
    # Drawn, not only written: every part has its picture.
    for name in ("traffic", "fairness", "backtest", "placement", "clusters"):
        part = run.look.dom.partition(f'id="{name}"')[2].partition("<section")[0]
        assert "<svg" in part, name
    assert "recommended" in text
