"""`fairlead admin tasklist tasks | purge`, against a running cluster."""

from tests.cli.admin.conftest import NAMED, PARTITIONS, Admin


async def test_the_waiting_tasks_are_listed_in_their_order_and_by_key(admin: Admin) -> None:
    await admin.fill(tasks=30, keys=3)
    reported = await admin.ask("tasklist", "tasks", *NAMED, "--limit", "1000")
    by_partition: dict[int, list[int]] = {}
    for row in reported["tasks"]:
        by_partition.setdefault(row["partition"], []).append(row["position"])
        assert row["workflow_id"] is None
        assert 0 <= row["age_s"] < 600
    assert 27 <= sum(map(len, by_partition.values())) <= 30
    assert all(positions == list(range(1, len(positions) + 1)) for positions in by_partition.values())
    of_key = await admin.ask("tasklist", "tasks", *NAMED, "--key", "key-1")
    assert {row["key"] for row in of_key["tasks"]} == {"key-1"}


async def test_a_purge_counts_first_and_removes_with_yes(admin: Admin) -> None:
    await admin.fill(tasks=20, keys=2)
    asked = await admin.run("tasklist", "purge", *NAMED)
    assert "give --yes to remove those of clients" in asked.out
    removed = (await admin.ask("tasklist", "purge", *NAMED, "--yes"))["purged"]["removed"]
    # A task that a partition is just forwarding to the root stays: at most one per partition.
    assert 20 - (PARTITIONS - 1) <= removed <= 20
    assert len((await admin.ask("tasklist", "tasks", *NAMED))["tasks"]) <= 20 - removed
