"""`fairlead admin scaler explain`: the decisions, their reasons, and the partitions that have not acknowledged them."""

import asyncio
import json

import pytest

from fairlead.cli.admin.scaler import explain_report, with_round_seconds
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import DecisionInfo, ExplainResponse
from fairlead.report import DualCell, Output, as_json, show
from fairlead.server import Server
from fairlead.settings import Plain
from tests.cli.admin.conftest import CHECKOUT, NAMED, Admin
from tests.server.test_server import IN_MEMORY, QUICK, client_of

ONE, FOUR = PartitionConfig(version=1, read=1, write=1), PartitionConfig(version=2, read=4, write=4)
UPSCALE = DecisionInfo(1_700_000_000.0, "upscale", 700.0, 200.0, 0.0, ONE, FOUR, "QPS 700 is above 200.")


async def test_a_disabled_scaler_is_reported_as_off(admin: Admin) -> None:
    await admin.fill(tasks=1)
    reported = await admin.ask("scaler", "explain", *NAMED)
    assert reported["headline"] == "off: matching.enableAdaptiveScaler is false for this task queue"
    assert reported["changes"] == []
    assert reported["behind"] == []


async def test_an_enabled_scaler_explains_its_decisions_and_manual_changes_are_refused() -> None:
    settings: dict[str, Plain] = {
        "matching.enableAdaptiveScaler": True,
        "matching.partitionUpscaleRPS": 5,
        "matching.partitionUpscaleSustainedDuration": "0s",
        "matching.adaptiveScalerUpdateInterval": "100ms",
        "matching.qpsTrackerInterval": "500ms",
        "matching.taskListMaximumWritePartitions": 3,
    }
    server = Server(IN_MEMORY, overrides={**QUICK, **settings})
    await server.start()
    async with client_of(server.address) as client:
        admin = Admin(server, client)
        for _ in range(10):
            await admin.fill(tasks=20)
            # The scaler measures rates over real time.
            await asyncio.sleep(0.1)
        await admin.drain(tasks=1)
        reported = await admin.ask("scaler", "explain", *NAMED)
        assert reported["changes"][-1]["action"] == "upscale"
        assert reported["changes"][-1]["before"] == {"version": 1, "read": 1, "write": 1}
        assert "QPS" in reported["changes"][-1]["reason"]
        assert reported["latest"]["is_enabled"] is True
        assert reported["latest"]["upscale_threshold_qps"] == 5 * reported["latest"]["configuration"]["write"]
        refused = await admin.run("tasklist", "up", *NAMED, "--nwp", "2")
        assert refused.code == 2
        assert "the adaptive scaler sets the number of partitions of 'checkout': switch it off with" in refused.line
    await server.stop()


def test_partitions_that_have_not_acknowledged_are_listed() -> None:
    answer = ExplainResponse(
        enabled=True, config=FOUR, latest=UPSCALE, changes=[UPSCALE], acknowledged={0: 2, 1: 2, 3: 1}
    )
    report = explain_report(CHECKOUT, answer)
    assert report.summary == "QPS 700 is above 200."
    latest, changes, behind = report.tables
    assert behind.rows == [(2, None, 2), (3, 1, 2)]
    assert changes.rows[0][:4] == (
        "2023-11-14 22:13:20Z",
        "upscale",
        DualCell("read 1, write 1 (v1)", {"version": 1, "read": 1, "write": 1}),
        DualCell("read 4, write 4 (v2)", {"version": 2, "read": 4, "write": 4}),
    )
    assert ("tasks per second", "700.0") in latest.rows


def test_a_waiting_scaler_shows_the_reason_of_its_wait() -> None:
    waiting = "the settings are the source of the counts"
    report = explain_report(CHECKOUT, ExplainResponse(False, ONE, UPSCALE, [UPSCALE], {0: 1}, waiting))
    assert report.summary == "on, but waiting: the settings are the source of the counts"
    assert report.tables[0].rows[0] == ("scaler", "on, waits")
    assert json.loads(as_json(report))["latest"]["waits_for"] == waiting


def test_a_scaler_that_has_just_started_is_reported_as_such() -> None:
    report = explain_report(CHECKOUT, ExplainResponse(True, ONE, None, [], {0: 1}))
    assert report.summary == "on, but has not decided since the root was loaded"
    assert report.tables[2].note == "All partitions use version 1."


def test_a_manual_change_is_shown_without_a_load() -> None:
    by_hand = DecisionInfo(1_700_000_000.0, "update", 0.0, 0.0, 0.0, ONE, FOUR, "Changed by hand.")
    reported = json.loads(as_json(explain_report(CHECKOUT, ExplainResponse(False, FOUR, None, [UPSCALE, by_hand], {}))))
    assert [change["qps"] for change in reported["changes"]] == [None, 700.0]
    assert reported["latest"] == {
        "is_enabled": False,
        "waits_for": "",
        "configuration": {"version": 2, "read": 4, "write": 4},
        **dict.fromkeys(("decided_at", "action", "qps", "upscale_threshold_qps", "downscale_threshold_qps")),
    }


@pytest.mark.parametrize(
    ("reported", "shown"),
    [
        ("700.0 QPS are above 200.0 for 44.9998 s of the 60 s that a change takes.", "for 45 s of the 60 s"),
        ("for 3.00049 s; partitions needed at 0.5 QPS each: 4", "for 3 s; partitions needed at 0.5 QPS each"),
        ("for 0.25 s of the 1.5 s", "for 0.2 s of the 1.5 s"),
        ("for 9.53674e-07 s of", "for 0 s of"),
        ("for 100000 s, but", "for 100,000 s, but"),
    ],
)
def test_seconds_are_shown_without_meaningless_digits(reported: str, shown: str) -> None:
    assert shown in with_round_seconds(reported)


def test_an_empty_table_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show(explain_report(CHECKOUT, ExplainResponse(True, ONE, None, [], {0: 1})), output=Output.TABLE, plot=None)
    shown = capsys.readouterr().out
    assert "Changes, the newest first\nNone since the root was loaded." in shown
    assert "acknowledged  " not in shown
