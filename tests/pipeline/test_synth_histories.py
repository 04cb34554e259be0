"""Synthetic journals of histories: reproducible from the seed, readable, and wrong only where the manifest says."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from fairlead.journal import read_segment
from fairlead.pipeline.kernels.reconcile import Kind
from fairlead.pipeline.synth.histories import (
    GRACE_S,
    HistoryShape,
    WrongShape,
    read_manifest,
    write_histories,
)
from fairlead.pipeline.synth.history_defects import DEFECTS, LATE_US

RUNS = 600


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("histories")
    write_histories(folder, HistoryShape(runs=RUNS, seed=1))
    return folder


def read_all(journal: Path) -> dict[str, list[dict[str, Any]]]:
    return {
        folder.name: [record for path in sorted(folder.iterdir()) for record in read_segment(path)]
        for folder in sorted(journal.iterdir())
        if folder.is_dir()
    }


def test_the_same_seed_gives_the_same_bytes_and_another_seed_gives_others(journal: Path, tmp_path: Path) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    write_histories(tmp_path / "same", HistoryShape(runs=RUNS, seed=1))
    write_histories(tmp_path / "other", HistoryShape(runs=RUNS, seed=2))
    assert contents(tmp_path / "same") == contents(journal)
    assert contents(tmp_path / "other") != contents(journal)


def test_the_manifest_counts_the_written_records(journal: Path) -> None:
    manifest, records = read_manifest(journal), read_all(journal)
    assert set(records) == set(manifest.initial_versions) == {"east", "north", "west"}
    every = [record for batch in records.values() for record in batch]
    assert len(every) == manifest.records
    assert len({record["run_id"] for record in every}) == manifest.runs >= RUNS
    assert max(record["time_us"] for record in every) == manifest.now_us
    assert not list(journal.rglob("*.open"))


def test_every_defect_is_planted_and_every_kind_of_finding_is_among_them(journal: Path) -> None:
    planted = read_manifest(journal).planted
    assert {entry.defect for entry in planted} == {defect.__name__ for defect in DEFECTS}
    # Events that can't be compared are not a finding of a defect: they have their own verdict.
    assert {expected.kind for entry in planted for expected in entry.expected} == set(Kind) - {Kind.NOT_COMPARABLE}
    assert {entry.verdict for entry in planted} == {"wrong", "late", "not_comparable"}
    assert len({entry.run_id for entry in planted}) == len(planted)
    assert LATE_US < GRACE_S * 1e6


def test_runs_in_which_nothing_was_planted_have_the_same_events_in_all_clusters(journal: Path) -> None:
    spoilt = {entry.run_id for entry in read_manifest(journal).planted}
    events: dict[str, dict[str, dict[tuple[int, int], str | None]]] = defaultdict(lambda: defaultdict(dict))
    for cluster, records in read_all(journal).items():
        for record in records:
            if record["run_id"] in spoilt:
                continue
            digests = record.get("event_digests")
            for place, event_id in enumerate(range(record["first_event_id"], record["last_event_id"] + 1)):
                event = event_id, record["version"]
                events[record["run_id"]][cluster][event] = digests[place] if digests else None
    local = 0
    for run in events.values():
        copies = list(run.values())
        versions = {version for copy in copies for _, version in copy}
        local += versions == {0}
        assert len(copies) == (1 if versions == {0} else 3)
        for copy in copies:
            assert copy.keys() == copies[0].keys()
            assert all(None in (copy[event], copies[0][event]) or copy[event] == copies[0][event] for event in copy)
    assert local > 0


def test_the_histories_have_failovers_conflicts_and_all_kinds_of_runs(journal: Path) -> None:
    """Failovers, branches, continued runs, resets, repeated and deleted batches all occur."""
    records = [record for batch in read_all(journal).values() for record in batch]
    keys = Counter(
        (record["run_id"], record["branch_id"], record["first_event_id"], record["task_id"]) for record in records
    )
    versions = defaultdict(set)
    for record in records:
        versions[record["run_id"], record["first_event_id"]].add(record["version"])
    assert max(keys.values()) > 1
    assert max(len(record["items"]) for record in records) > 1
    assert max(map(len, versions.values())) > 1
    assert any(record.get("new_run_id") for record in records)
    assert any(record["tree_id"] != record["run_id"] for record in records)
    assert any(record.get("signals") for record in records)
    assert any("event_digests" not in record for record in records)


def test_journals_of_four_clusters_are_valid_too(tmp_path: Path) -> None:
    manifest = write_histories(tmp_path, HistoryShape(runs=50, clusters=("a", "b", "c", "d"), defects_each=1))
    assert set(read_all(tmp_path)) == {"a", "b", "c", "d"}
    assert Counter(entry.defect for entry in manifest.planted)["many_open"] == 2


@pytest.mark.parametrize(
    "shape", [{"runs": 0}, {"clusters": ("a", "b")}, {"clusters": ("a", "b", "b")}, {"span_s": 60.0}]
)
def test_an_impossible_shape_is_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(WrongShape):
        HistoryShape(**shape)


def test_a_folder_with_journals_is_not_written_to_again(journal: Path) -> None:
    before = read_manifest(journal)
    with pytest.raises(WrongShape, match="give an empty folder"):
        write_histories(journal, HistoryShape(runs=10, seed=9))
    assert read_manifest(journal) == before
