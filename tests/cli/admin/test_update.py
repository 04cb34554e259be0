"""`fairlead admin tasklist update-partition`: its guardrails, and a decrease in two phases."""

import asyncio

import pytest

from fairlead.cli.admin.update import update_report
from fairlead.core.partitions import PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.messages import UpdateResponse
from tests.cli.admin.conftest import NAMED, PARTITIONS, Admin
from tests.patience import PATIENCE_S

UP = ("tasklist", "update-partition", *NAMED)


async def config_of(admin: Admin) -> dict[str, int]:
    reported = await admin.ask("tasklist", "describe", *NAMED)
    config: dict[str, int] = reported["configuration"]
    return config


async def test_a_decrease_takes_two_phases_and_each_error_says_what_to_do(admin: Admin) -> None:
    """SC-3, TQ-9."""
    await admin.fill(tasks=40)
    await admin.drain(tasks=8)
    at_once = await admin.run(*UP, "--num_read_partitions", "2", "--num_write_partitions", "2")
    assert at_once.code == 2
    assert "lower write to 2 first and leave read at 4, then wait until they are drained" in at_once.line

    lowered = await admin.run(*UP, "--num_write_partitions", "2")
    assert lowered.code == 0
    assert "Successfully updated (activity: read 4 -> 4, write 4 -> 2)" in lowered.out
    assert "Partitions 2 to 3 are drained now." in lowered.out
    second = "fairlead admin tasklist update-partition --tasklist checkout --tasklisttype activity "
    assert f"  {second}--num_read_partitions 2\n" in lowered.out

    early = await admin.run(*UP, "--num_read_partitions", "2")
    assert early.code == 1
    assert "is not known to be drained at version 2: read can be lowered to 4 now; wait for the rest" in early.err

    await admin.drain(tasks=32)
    async with asyncio.timeout(PATIENCE_S):
        # The partitions count as drained once the deletion of their last tasks is reported.
        while (drained := await admin.run(*UP, "--num_read_partitions", "2")).code:
            assert "is not known to be drained" in drained.err
    assert "Successfully updated (activity: read 4 -> 2, write 2 -> 2)" in drained.out
    assert "drained now" not in drained.out
    assert await config_of(admin) == {"version": 3, "read": 2, "write": 2}


async def test_an_increase_of_write_raises_read_in_the_same_step(admin: Admin) -> None:
    await admin.fill(tasks=1)
    await admin.drain(tasks=1)
    reported = await admin.ask("tasklist", "up", *NAMED, "--nwp", "8")
    (row,) = reported["updated"]
    assert row == {
        "type": "activity",
        "before": {"version": 1, "read": 4, "write": 4},
        "after": {"version": 2, "read": 8, "write": 8},
    }
    again = await admin.run(*UP, "--nrp", "8", "--nwp", "8")
    assert "Nothing to change" in again.out
    assert (await config_of(admin))["version"] == 2


async def test_a_task_queue_without_pollers_is_refused_as_a_probable_typing_error(admin: Admin) -> None:
    await admin.fill(tasks=1)
    refused = await admin.run(*UP, "--nrp", "8")
    assert refused.code == 2
    assert refused.line.startswith("no worker has polled 'checkout' for activity tasks recently, nothing was changed: ")
    assert refused.line.endswith("or use --force")
    assert (await config_of(admin))["read"] == PARTITIONS
    forced = await admin.run(*UP, "--nrp", "2", "--force")
    assert "Successfully updated (activity: read 4 -> 2, write 4 -> 2)" in forced.out


async def test_without_a_type_both_types_in_use_are_changed(admin: Admin) -> None:
    workflow = TaskQueueId("default", "checkout", TaskType.WORKFLOW)
    await admin.fill(tasks=1)
    await admin.drain(tasks=1)
    one = await admin.ask("tasklist", "up", "--tasklist", "checkout", "--nwp", "3")
    assert [row["type"] for row in one["updated"]] == ["activity"]
    await admin.fill(tasks=1, task_queue=workflow)
    refused = await admin.run("tasklist", "up", "--tasklist", "checkout", "--nwp", "2")
    assert "no worker has polled 'checkout' for workflow tasks" in refused.line
    assert (await config_of(admin))["write"] == 3
    await admin.drain(tasks=1, task_queue=workflow)
    both = await admin.ask("tasklist", "up", "--tasklist", "checkout", "--nwp", "2")
    assert [(row["type"], row["after"]["write"]) for row in both["updated"]] == [("workflow", 2), ("activity", 2)]


@pytest.mark.parametrize("named", [("--tasklist", "chekcout"), ("--tasklist", "checkout", "--tlt", "workflow")])
async def test_force_does_not_create_an_unknown_task_queue(admin: Admin, named: tuple[str, ...]) -> None:
    await admin.fill(tasks=1)
    refused = await admin.run("tasklist", "up", *named, "--nrp", "8", "--force")
    assert (refused.code, refused.out) == (2, "")
    assert refused.line.startswith("no task queue 'ch")
    forced = await admin.ask("tasklist", "up", "--tasklist", "checkout", "--nrp", "8", "--nwp", "8", "--force")
    assert [row["type"] for row in forced["updated"]] == ["activity"]
    listed = (await admin.ask("tasklist", "list"))["task_queues"]
    assert [(row["task_queue"], row["type"]) for row in listed] == [("checkout", "activity")]


async def test_very_many_partitions_are_allowed_with_a_warning(admin: Admin) -> None:
    await admin.fill(tasks=1)
    many = await admin.run(*UP, "--nrp", "1001", "--nwp", "1", "--force")
    assert many.code == 0
    assert many.line.startswith("warning: 1,001 partitions are many")


def updated(before: PartitionConfig, after: PartitionConfig) -> str:
    task_queue = TaskQueueId("orders", "check out", TaskType.WORKFLOW)
    return update_report("orders", "check out", [(task_queue, UpdateResponse(before, after))]).tables[0].note


def test_a_second_phase_is_suggested_only_after_write_was_lowered() -> None:
    eight, two = PartitionConfig(1, 8, 8), PartitionConfig(2, 8, 2)
    assert updated(two, eight) == updated(eight, PartitionConfig(2, 2, 2)) == ""
    # Only read was raised: no second phase follows.
    assert updated(PartitionConfig(1, 2, 2), two) == ""
    note = updated(eight, two)
    assert "--tasklist 'check out' --tasklisttype workflow --namespace orders --num_read_partitions 2" in note
    assert updated(eight, PartitionConfig(2, 8, 7)).startswith("Partition 7 is drained now.")


async def test_invalid_counts_are_refused(admin: Admin) -> None:
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
