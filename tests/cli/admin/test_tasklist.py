"""`fairlead admin tasklist` as a user runs it, against a server by gRPC."""

import msgspec
import pytest

from fairlead.cli.admin.cluster import Described
from fairlead.cli.admin.tasklist import describe_report
from fairlead.core.partitions import NAME_CHARACTERS_MAX, PartitionCounts, TaskQueueId, TaskType
from fairlead.matching.messages import CountsInfo
from fairlead.report import as_json
from tests.cli.admin.conftest import CHECKOUT, NAMED, PARTITIONS, Admin
from tests.cli.admin.responses import CONFIG, described
from tests.cli.processes import run
from tests.cli.thread import run_in_thread

NOBODY = "127.0.0.1:1"


async def test_describe_shows_each_partition_and_the_total(admin: Admin) -> None:
    """FL-28, TQ-9."""
    await admin.fill(tasks=20)
    await admin.drain(tasks=4)
    reported = await admin.ask("tasklist", "describe", *NAMED)
    assert reported["configuration"] == {"version": 1, "read": PARTITIONS, "write": PARTITIONS}
    assert [row["partition"] for row in reported["partitions"]] == list(range(PARTITIONS))
    assert {row["host"] for row in reported["partitions"]} == {admin.server.address}
    assert sum(row["backlog"] for row in reported["partitions"]) == 16
    assert reported["headline"].startswith("16 tasks wait, the oldest for ")
    assert [row["identity"] for row in reported["pollers"]] == ["worker-1"]
    assert {row["priority"] for row in reported["levels"]} == {3}
    for row in reported["levels"]:
        assert [len(row[level]) for level in ("ack_level", "read_level", "max_level")] == [2, 2, 2]
        assert all(isinstance(part, int) for part in row["max_level"])
    assert reported["headline"].endswith(" out, over the last 30 s")
    assert reported["parameters"] == {"task_queue": "checkout", "type": "activity", "namespace": "default"}


async def test_describe_prints_a_table_by_default(admin: Admin) -> None:
    await admin.fill(tasks=8)
    done = await admin.run("tasklist", "desc", "--tl", "checkout", "--tlt", "activity")
    assert done.code == 0
    for heading in ("Configuration", "Partitions", "Levels <pass, id>", "Workers", "dispatches per s", "lease"):
        assert heading in done.out
    assert admin.server.address in done.out
    assert "No worker has polled in the last five minutes." in done.out


async def test_describing_an_unused_name_reports_that_and_does_not_create_it(admin: Admin) -> None:
    done = await admin.run("tasklist", "describe", "--tasklist", "chekcout")
    assert done.code == 2
    assert done.line.startswith("no task queue 'chekcout' for workflow tasks in namespace 'default': ")
    assert (await admin.ask("tasklist", "list"))["task_queues"] == []


async def test_list_shows_the_task_queues_of_a_namespace_or_of_all(admin: Admin) -> None:
    await admin.fill(tasks=20)
    await admin.fill(tasks=1, task_queue=TaskQueueId("billing", "invoices", TaskType.WORKFLOW))
    listed = (await admin.ask("tasklist", "list"))["task_queues"]
    assert [(row["namespace"], row["task_queue"], row["type"]) for row in listed] == [
        ("billing", "invoices", "workflow"),
        ("default", "checkout", "activity"),
    ]
    assert listed[1]["partitions"] == PARTITIONS
    assert (await admin.ask("tasklist", "list"))["parameters"] == {"namespace": None}
    of_one = await admin.ask("tasklist", "list", "--namespace", "billing")
    assert [row["task_queue"] for row in of_one["task_queues"]] == ["invoices"]


async def test_list_partition_shows_the_owner_of_each(admin: Admin) -> None:
    await admin.fill(tasks=1)
    rows = (await admin.ask("tasklist", "list-partition", *NAMED))["partitions"]
    assert [(row["partition"], row["name"]) for row in rows][:2] == [(0, "checkout"), (1, "/_sys/checkout/1")]
    assert {(row["host"], row["takes_tasks"]) for row in rows} == {(admin.server.address, True)}


async def test_list_partition_shows_draining_partitions_beyond_the_current_counts(admin: Admin) -> None:
    await admin.fill(tasks=20)
    await admin.ask("tasklist", "update-partition", *NAMED, "--nrp", "1", "--nwp", "1", "--force")
    reported = await admin.ask("tasklist", "list-partition", *NAMED)
    assert [(row["partition"], row["takes_tasks"]) for row in reported["partitions"]] == [
        *((0, True), (1, False), (2, False), (3, False))
    ]
    assert reported["headline"] == "1 partition, new tasks go to 1; 3 more are drained; version 2"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tasklist", "x" * (NAME_CHARACTERS_MAX + 1)], "task queue name has 1001 characters, more than 1000"),
        (["--tasklist", "/_sys/x/1"], "begins with '/_sys/', which is kept for partitions"),
        (["--tasklist", ""], "task queue name is empty"),
        (["--tasklist", "x", "--namespace", ""], "namespace has 0 characters: give 1 to 1000"),
        (["--tasklist", "x", "--namespace", "n" * 1001], "namespace has 1001 characters: give 1 to 1000"),
        (["--tasklist", "x", "--tasklisttype", "query"], "'query' is not one of"),
        ([], "Missing option '--tasklist'"),
    ],
)
async def test_an_invalid_name_is_refused_before_any_request_is_sent(arguments: list[str], complaint: str) -> None:
    """The address has no server: the error must be about the name, not about the connection."""
    done = await run_in_thread("admin", "--address", NOBODY, "tasklist", "describe", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.line


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--address", NOBODY], 1, f"no server answers at {NOBODY}: is it running, and is --address"),
        (["--address", "nowhere"], 2, "'--address': 'nowhere' is not an address: write it as HOST:PORT"),
        (["--timeout", "soon"], 2, "'--timeout': 'soon' is not a duration"),
        (["--timeout", "0s"], 2, "'--timeout': '0s' is not above 0 and at most 1h"),
    ],
)
async def test_an_unreachable_cluster_is_reported_in_one_line(arguments: list[str], code: int, complaint: str) -> None:
    done = await run_in_thread("admin", *arguments, "tasklist", "list")
    assert (done.code, done.out) == (code, "")
    assert complaint in done.line


async def test_the_address_and_the_timeout_may_come_after_the_command(admin: Admin) -> None:
    """The last value wins: the first address has no server."""
    await admin.fill(tasks=1)
    for command in (["ring", "show"], ["tasklist", "list"], ["tasklist", "desc", *NAMED], ["fairness", "top", *NAMED]):
        later = ("--address", admin.server.address, "--timeout", "20s")
        done = await run_in_thread("admin", "--address", NOBODY, *command, *later)
        assert done.code == 0, done.err
    wrong = await run_in_thread("admin", "ring", "show", "--timeout", "soon")
    assert (wrong.code, "'--timeout': 'soon' is not a duration" in wrong.line) == (2, True)


def test_one_task_is_singular_and_an_empty_backlog_has_no_age() -> None:
    for tasks, said in ((1, "1 task waits, the oldest for 1.0 s; 0 polls wait; "), (0, "0 tasks wait; 0 polls wait; ")):
        found = Described(CONFIG, [described(0, tasks=tasks)], {})
        assert describe_report(CHECKOUT, found, now_s=0.0).summary.startswith(said)


def test_both_sources_of_the_counts_are_shown_and_the_partitions_beyond_them() -> None:
    counts = CountsInfo(True, PartitionCounts(2, 2), PartitionCounts(4, 4), [4, 5])
    root = msgspec.structs.replace(described(0), counts=counts)
    found = Described(CONFIG, [root, described(4, tasks=3)], {})
    (_, sources, partitions, *_) = describe_report(CHECKOUT, found, now_s=0.0).tables
    assert sources.rows == [("database", 4, 4, False), ("settings", 2, 2, True)]
    assert "Above the counts and being drained: 2 partitions (4, 5)." in sources.note
    assert [row[0] for row in partitions.rows] == [0, 4]


async def test_the_address_may_come_from_the_environment() -> None:
    done = await run("admin", "ring", "show", environment={"FAIRLEAD_ADDRESS": NOBODY})
    assert f"no server answers at {NOBODY}" in done.line


def test_a_partition_that_does_not_respond_is_shown_with_the_reason() -> None:
    report = describe_report(
        CHECKOUT, Described(described(0).config, [described(0, tasks=7)], {1: "it is gone"}), now_s=0.0
    )
    (_, _, partitions, *_) = report.tables
    assert [row[0] for row in partitions.rows] == [0, 1]
    assert partitions.rows[1][1:] == (None,) * 8
    assert partitions.note == "Partition 1 did not answer: it is gone."
    assert '"backlog": 7' in as_json(report)
