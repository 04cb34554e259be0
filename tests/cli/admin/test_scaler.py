"""`fairlead admin scaler explain`: what was decided, why, and who does not know it yet."""

import asyncio

from fairlead.cli.admin.scaler import explain_report
from fairlead.core.partitions import PartitionConfig
from fairlead.matching.messages import DecisionInfo, ExplainAnswer
from fairlead.server import Server
from fairlead.settings import Plain
from tests.cli.admin.conftest import CHECKOUT, NAMED, Admin
from tests.test_server import IN_MEMORY, QUICK, client_of

ONE, FOUR = PartitionConfig(version=1, read=1, write=1), PartitionConfig(version=2, read=4, write=4)
UPSCALE = DecisionInfo(1_700_000_000.0, "upscale", 700.0, 200.0, 0.0, ONE, FOUR, "QPS 700 is above 200.")


async def test_a_scaler_that_is_off_says_so(admin: Admin) -> None:
    await admin.fill(tasks=1)
    told = await admin.ask("scaler", "explain", *NAMED)
    assert told["headline"] == "it is off: matching.enableAdaptiveScaler is false for this task list"
    assert told["changes"] == []
    assert told["behind"] == []


async def test_a_scaler_that_is_on_explains_its_decisions_and_keeps_hands_off() -> None:
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
            await asyncio.sleep(0.1)
        await admin.drain(tasks=1)
        told = await admin.ask("scaler", "explain", *NAMED)
        assert told["changes"][-1]["action"] == "upscale"
        assert "(v1)" in told["changes"][-1]["before"]
        assert "QPS" in told["changes"][-1]["reason"]
        facts = {row["what"]: row["is"] for row in told["latest"]}
        assert facts["scaler"] == "on"
        assert facts["adds partitions above"].endswith(" a second")
        refused = await admin.run("tasklist", "up", *NAMED, "--nwp", "2")
        assert refused.code == 2
        assert "the adaptive scaler governs the partitions of 'checkout': switch it off with" in refused.line
    await server.stop()


def test_who_has_not_acknowledged_is_told() -> None:
    answer = ExplainAnswer(
        enabled=True, config=FOUR, latest=UPSCALE, changes=[UPSCALE], acknowledged={0: 2, 1: 2, 3: 1}
    )
    report = explain_report(CHECKOUT, answer)
    assert report.summary == "QPS 700 is above 200."
    latest, changes, behind = report.tables
    assert behind.rows == [(2, None, 2), (3, 1, 2)]
    assert changes.rows[0][:4] == (
        "2023-11-14 22:13:20Z",
        "upscale",
        "read 1, write 1 (v1)",
        "read 4, write 4 (v2)",
    )
    assert ("tasks a second", "700.0") in latest.rows


def test_a_scaler_that_has_just_begun_says_so() -> None:
    report = explain_report(CHECKOUT, ExplainAnswer(True, ONE, None, [], {0: 1}))
    assert report.summary == "it is on, and has not decided anything yet since the root was loaded"
    assert report.tables[2].note == "All partitions go by version 1."
