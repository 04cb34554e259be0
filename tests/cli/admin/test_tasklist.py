"""`fairlead admin tasklist` as a user runs it, against a server by gRPC."""

import pytest

from fairlead.cli.admin.cluster import Described
from fairlead.cli.admin.tasklist import describe_report
from fairlead.cli.report import as_json
from fairlead.core.partitions import NAME_CHARACTERS_MAX, TaskList, TaskType
from tests.cli.admin.answers import CONFIG, described
from tests.cli.admin.conftest import CHECKOUT, NAMED, PARTITIONS, Admin
from tests.cli.processes import run

NOBODY = "127.0.0.1:1"


async def test_describe_shows_all_partitions_and_all_of_them_together(admin: Admin) -> None:
    """Facts, Cadence 4: 'Root only, not aggregated'; here it is."""
    await admin.fill(tasks=20)
    await admin.drain(tasks=4)
    told = await admin.ask("tasklist", "describe", *NAMED)
    assert told["configuration"] == {"version": 1, "read": PARTITIONS, "write": PARTITIONS}
    assert [row["partition"] for row in told["partitions"]] == list(range(PARTITIONS))
    assert {row["host"] for row in told["partitions"]} == {admin.server.address}
    assert sum(row["backlog"] for row in told["partitions"]) == 16
    assert told["headline"].startswith("16 tasks wait, the oldest for ")
    assert [row["identity"] for row in told["pollers"]] == ["worker-1"]
    assert {row["priority"] for row in told["levels"]} == {3}
    for row in told["levels"]:
        assert [len(row[level]) for level in ("ack_level", "read_level", "max_level")] == [2, 2, 2]
        assert all(isinstance(part, int) for part in row["max_level"])
    assert told["headline"].endswith(" out, over the last 30 s")
    assert told["parameters"] == {"task_list": "checkout", "type": "activity", "namespace": "default"}


async def test_describe_shows_people_a_table(admin: Admin) -> None:
    await admin.fill(tasks=8)
    done = await admin.run("tasklist", "desc", "--tl", "checkout", "--tlt", "activity")
    assert done.code == 0
    for heading in ("Configuration", "Partitions", "Levels <pass, id>", "Workers", "dispatches per s", "lease"):
        assert heading in done.out
    assert admin.server.address in done.out
    assert "No worker has polled in the last five minutes." in done.out


async def test_a_name_that_was_never_used_is_told_and_stays_unused(admin: Admin) -> None:
    done = await admin.run("tasklist", "describe", "--tasklist", "chekcout")
    assert done.code == 2
    assert done.line.startswith("no task list 'chekcout' for workflow tasks in namespace 'default': ")
    assert (await admin.ask("tasklist", "list"))["task_lists"] == []


async def test_list_shows_the_task_lists_of_a_namespace_or_of_all(admin: Admin) -> None:
    await admin.fill(tasks=20)
    await admin.fill(tasks=1, task_list=TaskList("billing", "invoices", TaskType.WORKFLOW))
    listed = (await admin.ask("tasklist", "list"))["task_lists"]
    assert [(row["namespace"], row["task_list"], row["type"]) for row in listed] == [
        ("billing", "invoices", "workflow"),
        ("default", "checkout", "activity"),
    ]
    assert listed[1]["partitions"] == PARTITIONS
    assert (await admin.ask("tasklist", "list"))["parameters"] == {"namespace": None}
    of_one = await admin.ask("tasklist", "list", "--namespace", "billing")
    assert [row["task_list"] for row in of_one["task_lists"]] == ["invoices"]


async def test_list_partition_shows_the_owner_of_each(admin: Admin) -> None:
    await admin.fill(tasks=1)
    rows = (await admin.ask("tasklist", "list-partition", *NAMED))["partitions"]
    assert [(row["partition"], row["name"]) for row in rows][:2] == [(0, "checkout"), (1, "/_sys/checkout/1")]
    assert {(row["host"], row["takes_tasks"]) for row in rows} == {(admin.server.address, True)}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--tasklist", "x" * (NAME_CHARACTERS_MAX + 1)], "task list name has 1001 characters, more than 1000"),
        (["--tasklist", "/_sys/x/1"], "begins with '/_sys/', which is kept for partitions"),
        (["--tasklist", ""], "task list name is empty"),
        (["--tasklist", "x", "--namespace", ""], "namespace has 0 characters: give 1 to 1000"),
        (["--tasklist", "x", "--namespace", "n" * 1001], "namespace has 1001 characters: give 1 to 1000"),
        (["--tasklist", "x", "--tasklisttype", "query"], "'query' is not one of"),
        ([], "Missing option '--tasklist'"),
    ],
)
async def test_bad_names_are_refused_before_anything_is_sent(arguments: list[str], complaint: str) -> None:
    """Nobody listens where this would be sent to; still it is the name that is complained of."""
    done = await run("admin", "--address", NOBODY, "tasklist", "describe", *arguments)
    assert (done.code, done.out) == (2, "")
    assert complaint in done.line


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--address", NOBODY], 1, f"no server answers at {NOBODY}: is it running, and is --address"),
        (["--address", "nowhere"], 2, "'--address': 'nowhere' is no address: write it as HOST:PORT"),
        (["--timeout", "soon"], 2, "'--timeout': 'soon' is no duration"),
        (["--timeout", "0s"], 2, "'--timeout': '0s' is not above 0 and at most 1h"),
    ],
)
async def test_a_cluster_that_can_not_be_asked_is_told_in_one_line(
    arguments: list[str], code: int, complaint: str
) -> None:
    done = await run("admin", *arguments, "tasklist", "list")
    assert (done.code, done.out) == (code, "")
    assert complaint in done.line


async def test_the_address_and_the_timeout_may_come_after_the_command(admin: Admin) -> None:
    """What is said last holds: nobody listens where the first would lead."""
    await admin.fill(tasks=1)
    for command in (["ring", "show"], ["tasklist", "list"], ["tasklist", "desc", *NAMED], ["fairness", "top", *NAMED]):
        done = await run("admin", "--address", NOBODY, *command, "--address", admin.server.address, "--timeout", "20s")
        assert done.code == 0, done.err
    wrong = await run("admin", "ring", "show", "--timeout", "soon")
    assert (wrong.code, "'--timeout': 'soon' is no duration" in wrong.line) == (2, True)


def test_one_task_waits_and_none_has_no_age() -> None:
    for tasks, said in ((1, "1 task waits, the oldest for 1.0 s; 0 polls wait; "), (0, "0 tasks wait; 0 polls wait; ")):
        found = Described(CONFIG, [described(0, tasks=tasks)], {})
        assert describe_report(CHECKOUT, found, now_s=0.0).summary.startswith(said)


async def test_the_address_may_come_from_the_environment() -> None:
    done = await run("admin", "ring", "show", environment={"FAIRLEAD_ADDRESS": NOBODY})
    assert f"no server answers at {NOBODY}" in done.line


def test_a_partition_that_does_not_answer_is_shown_with_the_reason() -> None:
    report = describe_report(
        CHECKOUT, Described(described(0).config, [described(0, tasks=7)], {1: "it is gone"}), now_s=0.0
    )
    (_, partitions, *_) = report.tables
    assert [row[0] for row in partitions.rows] == [0, 1]
    assert partitions.rows[1][1:] == (None,) * 8
    assert partitions.note == "Partition 1 did not answer: it is gone."
    assert '"backlog": 7' in as_json(report)
