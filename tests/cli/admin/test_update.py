"""`fairlead admin tasklist update-partition`: the guardrails, and the way down in two phases."""

import asyncio

from fairlead.core.partitions import TaskList, TaskType
from tests.cli.admin.conftest import NAMED, PARTITIONS, Admin

UP = ("tasklist", "update-partition", *NAMED)


async def config_of(admin: Admin) -> dict[str, int]:
    told = await admin.ask("tasklist", "describe", *NAMED)
    config: dict[str, int] = told["configuration"][0]
    return config


async def test_a_decrease_takes_two_phases_and_each_refusal_says_what_to_do(admin: Admin) -> None:
    """Seed 001, 'How Is the Number of Partitions Manually Configured?'"""
    await admin.fill(tasks=40)
    await admin.drain(tasks=8)
    at_once = await admin.run(*UP, "--num_read_partitions", "2", "--num_write_partitions", "2")
    assert at_once.code == 2
    assert "lower write to 2 first and leave read at 4, then wait until they are drained" in at_once.line

    lowered = await admin.run(*UP, "--num_write_partitions", "2")
    assert lowered.code == 0
    assert "Successfully updated (activity: read 4 -> 4, write 4 -> 2)" in lowered.out
    assert "then lower read" in lowered.out

    early = await admin.run(*UP, "--num_read_partitions", "2")
    assert early.code == 1
    assert "is not known to be drained at version 2: read can be lowered to 4 now; wait for the rest" in early.err

    await admin.drain(tasks=32)
    await asyncio.sleep(0.3)
    drained = await admin.run(*UP, "--num_read_partitions", "2")
    assert drained.code == 0, drained.err
    assert "Successfully updated (activity: read 4 -> 2, write 2 -> 2)" in drained.out
    assert await config_of(admin) == {"version": 3, "read": 2, "write": 2}


async def test_an_increase_takes_one_step_and_read_follows_write(admin: Admin) -> None:
    await admin.fill(tasks=1)
    await admin.drain(tasks=1)
    told = await admin.ask("tasklist", "up", *NAMED, "--nwp", "8")
    (row,) = told["updated"]
    assert (row["read_before"], row["read"], row["write"], row["version"]) == (4, 8, 8, 2)
    again = await admin.run(*UP, "--nrp", "8", "--nwp", "8")
    assert "Nothing to change" in again.out
    assert (await config_of(admin))["version"] == 2


async def test_nobody_polls_what_is_probably_another_name(admin: Admin) -> None:
    await admin.fill(tasks=1)
    refused = await admin.run(*UP, "--nrp", "8")
    assert refused.code == 2
    assert refused.line.startswith("no worker has polled 'checkout' for activity tasks of late, nothing was changed: ")
    assert refused.line.endswith("or use --force")
    assert (await config_of(admin))["read"] == PARTITIONS
    forced = await admin.run(*UP, "--nrp", "2", "--force")
    assert "Successfully updated (activity: read 4 -> 2, write 4 -> 2)" in forced.out


async def test_without_a_type_both_that_are_in_use_are_changed(admin: Admin) -> None:
    workflow = TaskList("default", "checkout", TaskType.WORKFLOW)
    await admin.fill(tasks=1)
    await admin.drain(tasks=1)
    one = await admin.ask("tasklist", "up", "--tasklist", "checkout", "--nwp", "3")
    assert [row["type"] for row in one["updated"]] == ["activity"]
    await admin.fill(tasks=1, task_list=workflow)
    refused = await admin.run("tasklist", "up", "--tasklist", "checkout", "--nwp", "2")
    assert "no worker has polled 'checkout' for workflow tasks" in refused.line
    assert (await config_of(admin))["write"] == 3
    await admin.drain(tasks=1, task_list=workflow)
    both = await admin.ask("tasklist", "up", "--tasklist", "checkout", "--nwp", "2")
    assert [(row["type"], row["write"]) for row in both["updated"]] == [("workflow", 2), ("activity", 2)]


async def test_what_makes_no_sense_is_refused(admin: Admin) -> None:
    await admin.fill(tasks=1)
    await admin.drain(tasks=1)
    for arguments, complaint in (
        ([], "nothing to change: give --num_read_partitions, --num_write_partitions or both"),
        (["--nrp", "0"], "0 is not in the range 1<=x<=10000"),
        (["--nrp", "4", "--nwp", "8"], "4 read partitions are fewer than 8 write partitions"),
    ):
        done = await admin.run(*UP, *arguments)
        assert (done.code, done.out) == (2, "")
        assert complaint in done.line
    assert (await config_of(admin))["version"] == 1
