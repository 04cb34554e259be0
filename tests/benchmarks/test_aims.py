"""The aims of the benchmarks, and the summary of `make bench`."""

from pathlib import Path

import pytest

from benchmarks import peers, suite
from benchmarks.aims import AIMS_FILE, Aim, collected, show_aims
from benchmarks.peers import PEERS, Figures
from benchmarks.workflows import ROWS


def test_an_aim_is_missed_only_by_more_than_noise() -> None:
    assert not Aim("rate", measured=81, aim=100).is_missed
    assert Aim("rate", measured=79, aim=100).is_missed
    assert not Aim("latency", measured=9.9, aim=8, better="less").is_missed
    assert Aim("latency", measured=10.1, aim=8, better="less").is_missed
    assert Aim("ratio", measured=1.4, aim=1.25, better="less", reached_min=0.9).is_missed


def test_programs_leave_their_aims_for_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "aims.jsonl"
    monkeypatch.setenv(AIMS_FILE, str(file))
    met, missed = Aim("one", 2, 1), Aim("another", 1, 2, reached_min=0.9)
    assert show_aims([met]) == []
    assert show_aims([missed]) == ["another: 1, the aim is at least 2"]
    assert collected(file) == [met, missed]
    assert "MISSED" in capsys.readouterr().out


def test_a_program_without_aims_has_none_to_collect(tmp_path: Path) -> None:
    assert collected(tmp_path / "aims.jsonl") == []


def test_a_program_that_fails_without_a_missed_aim_may_have_crashed() -> None:
    assert suite.verdict(0, [Aim("one", 2, 1)]) == "met"
    assert suite.verdict(1, [Aim("one", 1, 2)]) == "MISSED"
    assert suite.verdict(1, [Aim("one", 2, 1)]) == "MISSED OR FAILED"


def test_a_figure_of_workflows_can_have_two_aims() -> None:
    row = next(row for row in ROWS if row.name == "result_ms_p50")
    beside, alone = row.aims(10.0, 15.0, is_unsynced=False)
    assert (beside.measured, beside.aim, beside.is_missed) == (1.5, 2.0, True)
    assert (alone.measured, alone.aim, alone.is_missed) == (10.0, 8.0, False)


def test_the_public_client_is_compared_with_every_measured_peer() -> None:
    ours, slow, fast, absent = PEERS[0], PEERS[3], PEERS[4], PEERS[5]
    found = [
        (ours, Figures(100, 100)),
        (PEERS[1], Figures(1, 1)),
        (slow, Figures(50, 50)),
        (fast, Figures(50, 200)),
        (absent, Figures(skipped="pip can't install it")),
    ]
    aims = peers.aims(found)
    assert [aim.is_missed for aim in aims] == [False, False, False, True]
    assert {aim.title.rpartition("times ")[2] for aim in aims} == {slow.name, fast.name}
