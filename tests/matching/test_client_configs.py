import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import PartitionConfig, TaskQueueId, TaskType
from fairlead.matching.client_configs import PartitionConfigs

TASK_QUEUE = TaskQueueId("namespace", "orders", TaskType.ACTIVITY)
OTHER = TaskQueueId("namespace", "payments", TaskType.ACTIVITY)


def config(version: int, read: int = 4, write: int = 4) -> PartitionConfig:
    return PartitionConfig(version, read, write)


def test_an_unknown_task_queue_has_no_configuration() -> None:
    configs = PartitionConfigs()
    configs.accept(TASK_QUEUE, config(1))
    assert configs.find(OTHER) is None
    assert configs.find(TASK_QUEUE) == config(1)


def test_only_a_higher_version_is_accepted() -> None:
    """SC-7, FL-19."""
    configs = PartitionConfigs()
    configs.accept(TASK_QUEUE, config(2, 8, 8))
    configs.accept(TASK_QUEUE, config(1, 4, 4))
    assert configs.find(TASK_QUEUE) == config(2, 8, 8)
    configs.accept(TASK_QUEUE, config(3, 8, 2))
    assert configs.find(TASK_QUEUE) == config(3, 8, 2)


def test_a_response_with_other_counts_of_the_same_version_is_ignored() -> None:
    configs = PartitionConfigs()
    configs.accept(TASK_QUEUE, config(2, 8, 8))
    configs.accept(TASK_QUEUE, config(2, 4, 4))
    assert configs.find(TASK_QUEUE) == config(2, 8, 8)


def test_a_configuration_of_version_0_is_not_kept() -> None:
    """Version 0 means counts from a host's settings. No host reports when they change, so a client can't keep them."""
    configs = PartitionConfigs()
    configs.accept(TASK_QUEUE, config(0, 4, 4))
    assert configs.find(TASK_QUEUE) is None


def test_the_configuration_in_a_stale_config_error_is_used_unless_it_is_older() -> None:
    configs = PartitionConfigs()
    configs.accept(TASK_QUEUE, config(2, 8, 8))
    assert configs.adopt(TASK_QUEUE, config(1, 4, 4)) == config(2, 8, 8)
    assert configs.adopt(TASK_QUEUE, config(2, 8, 4)) == config(2, 8, 4)
    assert configs.adopt(TASK_QUEUE, config(3, 8, 2)) == config(3, 8, 2)
    assert configs.find(TASK_QUEUE) == config(3, 8, 2)
    assert configs.adopt(OTHER, config(1, 2, 2)) == config(1, 2, 2)


def test_the_least_recently_used_task_queue_is_evicted() -> None:
    configs = PartitionConfigs(task_queues_max=3)
    names = [TaskQueueId("namespace", name, TaskType.ACTIVITY) for name in "abcd"]
    for name in names[:3]:
        configs.accept(name, config(5))
    configs.find(names[0])
    configs.accept(names[3], config(5))
    assert [configs.find(name) for name in names] == [config(5), None, config(5), config(5)]
    # The client asks the root again, and accepts any version.
    configs.accept(names[1], config(1))
    assert configs.find(names[1]) == config(1)


def test_the_configurations_of_three_thousand_task_queues_are_kept() -> None:
    """FL-24."""
    configs = PartitionConfigs()
    names = [TaskQueueId("namespace", str(number), TaskType.ACTIVITY) for number in range(3001)]
    for name in names:
        configs.accept(name, config(1))
    assert configs.find(names[0]) is None
    assert all(configs.find(name) == config(1) for name in names[1:])


@pytest.mark.sim
@given(
    changes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=6),
    heard=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40),
)
def test_the_newest_received_configuration_is_kept_despite_loss_and_reordering(
    changes: list[tuple[int, int]], heard: list[tuple[int, bool]]
) -> None:
    """FL-19: a client never returns to an older version."""
    versions = [PartitionConfig(number + 1, write + drained, write) for number, (write, drained) in enumerate(changes)]
    configs = PartitionConfigs()
    newest = 0
    for index, is_refusal in heard:
        said = versions[index % len(versions)]
        newest = max(newest, said.version)
        if is_refusal:
            configs.adopt(TASK_QUEUE, said)
        else:
            configs.accept(TASK_QUEUE, said)
        assert configs.find(TASK_QUEUE) == versions[newest - 1]
    if not heard:
        assert configs.find(TASK_QUEUE) is None
