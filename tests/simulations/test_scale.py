"""The simulated cluster: its work grows with hosts and with partitions, never with both multiplied."""

import pytest
from click.testing import CliRunner

from fairlead.simulations import simulate
from fairlead.simulations.scale import Findings, find


@pytest.fixture(scope="module")
def small() -> Findings:
    return find(seed=1, hosts=10, queues=20, per_queue=8, growing=2)


@pytest.fixture(scope="module")
def more_hosts() -> Findings:
    return find(seed=1, hosts=40, queues=20, per_queue=8, growing=2)


@pytest.fixture(scope="module")
def more_partitions() -> Findings:
    return find(seed=1, hosts=10, queues=80, per_queue=8, growing=2)


def test_each_host_sends_one_heartbeat_a_second_and_reads_all_members(small: Findings, more_hosts: Findings) -> None:
    found = [(one.quiet["heartbeats"], one.quiet["member_rows"]) for one in (small, more_hosts)]
    assert found == [pytest.approx((10, 100), rel=0.01), pytest.approx((40, 1_600), rel=0.01)]


def test_pushes_and_reports_do_not_depend_on_the_number_of_hosts(small: Findings, more_hosts: Findings) -> None:
    assert {name: small.quiet[name] for name in ("pushes", "reports")} == {
        name: more_hosts.quiet[name] for name in ("pushes", "reports")
    }


def test_pushes_and_reports_grow_with_the_number_of_partitions(small: Findings, more_partitions: Findings) -> None:
    for name in ("pushes", "reports"):
        assert more_partitions.quiet[name] / small.quiet[name] == pytest.approx(4, rel=0.15)


def test_a_growing_task_queue_saves_its_configuration_and_pushes_it_to_each_partition(
    small: Findings, more_hosts: Findings
) -> None:
    assert "saves" not in small.quiet
    assert small.saves >= 2
    assert small.pushes > small.saves * 8
    assert small.pushes < small.saves * 400
    assert (small.saves, small.pushes) == (more_hosts.saves, more_hosts.pushes)


def test_every_host_computes_one_ring_for_a_change(more_hosts: Findings) -> None:
    for change in more_hosts.changes:
        assert 38 <= change.rings <= 41


def test_a_change_checks_each_partition_once_for_any_number_of_hosts(more_hosts: Findings) -> None:
    for change in more_hosts.changes:
        assert 0 < change.partitions_moved < change.checks <= 160


def test_a_host_that_says_so_is_gone_at_once_and_a_crashed_one_when_its_heartbeat_expires(small: Findings) -> None:
    leaves, crashes, joins = small.changes
    assert (leaves.agreed_s, joins.agreed_s) == (0, 0)
    assert 4 <= crashes.agreed_s <= 7
    assert (leaves.nudges, crashes.nudges, joins.nudges) == (9, 0, 8)


def test_the_same_seed_gives_the_same_output() -> None:
    arguments = ["scale", "--hosts", "5", "--partitions", "100", "--output", "json"]
    first, second = (CliRunner().invoke(simulate, arguments, catch_exceptions=False) for _ in range(2))
    assert first.exit_code == 0
    assert first.output == second.output
