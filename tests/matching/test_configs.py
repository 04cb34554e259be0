import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import PartitionConfig, TaskList, TaskType
from fairlead.matching.configs import PartitionConfigs
from fairlead.settings import DynamicSettings
from tests.simulation.settings import ChangingSettings

TASK_LIST = TaskList("namespace", "orders", TaskType.ACTIVITY)
OTHER = TaskList("namespace", "payments", TaskType.ACTIVITY)
FROM_SETTINGS = {
    "matching.enableGetNumberOfPartitionsFromCache": False,
    "matching.numTasklistReadPartitions": 4,
    "matching.numTasklistWritePartitions": 3,
}


def config(version: int, read: int = 4, write: int = 4) -> PartitionConfig:
    return PartitionConfig(version, read, write)


def test_what_nobody_has_spoken_of_is_not_known() -> None:
    configs = PartitionConfigs(DynamicSettings())
    configs.accept(TASK_LIST, config(1))
    assert configs.find(OTHER) is None
    assert configs.find(TASK_LIST) == config(1)


def test_only_a_higher_version_is_accepted() -> None:
    """Seed 001, 'Migrating Configuration to the Database': the version is monotonic."""
    configs = PartitionConfigs(DynamicSettings())
    configs.accept(TASK_LIST, config(2, 8, 8))
    configs.accept(TASK_LIST, config(1, 4, 4))
    assert configs.find(TASK_LIST) == config(2, 8, 8)
    configs.accept(TASK_LIST, config(3, 8, 2))
    assert configs.find(TASK_LIST) == config(3, 8, 2)


def test_an_answer_that_contradicts_its_version_changes_nothing_and_fails_nothing() -> None:
    configs = PartitionConfigs(DynamicSettings())
    configs.accept(TASK_LIST, config(2, 8, 8))
    configs.accept(TASK_LIST, config(2, 4, 4))
    assert configs.find(TASK_LIST) == config(2, 8, 8)


def test_counts_that_come_from_a_host_s_settings_are_not_a_configuration() -> None:
    """Nobody would tell when they change: at version 0 no request is ever refused."""
    configs = PartitionConfigs(DynamicSettings())
    configs.accept(TASK_LIST, config(0, 4, 4))
    assert configs.find(TASK_LIST) is None


def test_a_refusal_is_believed_unless_it_is_older() -> None:
    configs = PartitionConfigs(DynamicSettings())
    configs.accept(TASK_LIST, config(2, 8, 8))
    assert configs.adopt(TASK_LIST, config(1, 4, 4)) == config(2, 8, 8)
    assert configs.adopt(TASK_LIST, config(2, 8, 4)) == config(2, 8, 4)
    assert configs.adopt(TASK_LIST, config(3, 8, 2)) == config(3, 8, 2)
    assert configs.find(TASK_LIST) == config(3, 8, 2)
    assert configs.adopt(OTHER, config(1, 2, 2)) == config(1, 2, 2)


def test_the_task_list_that_was_used_longest_ago_is_forgotten() -> None:
    configs = PartitionConfigs(DynamicSettings(), task_lists_max=3)
    names = [TaskList("namespace", name, TaskType.ACTIVITY) for name in "abcd"]
    for name in names[:3]:
        configs.accept(name, config(5))
    configs.find(names[0])
    configs.accept(names[3], config(5))
    assert [configs.find(name) for name in names] == [config(5), None, config(5), config(5)]
    # It asks the root, and so hears of it again, whatever the version was.
    configs.accept(names[1], config(1))
    assert configs.find(names[1]) == config(1)


def test_three_thousand_task_lists_are_remembered() -> None:
    """Facts, cadence-matching 2, 'Config provider'."""
    configs = PartitionConfigs(DynamicSettings())
    names = [TaskList("namespace", str(number), TaskType.ACTIVITY) for number in range(3001)]
    for name in names:
        configs.accept(name, config(1))
    assert configs.find(names[0]) is None
    assert all(configs.find(name) == config(1) for name in names[1:])


def test_without_the_database_the_settings_are_the_configuration() -> None:
    """Seed 000, 'Configuration': matching.enableGetNumberOfPartitionsFromCache says where the numbers are read."""
    configs = PartitionConfigs(DynamicSettings(overrides=FROM_SETTINGS))
    configs.accept(TASK_LIST, config(7, 2, 2))
    assert configs.find(TASK_LIST) == config(0, 4, 3)
    assert configs.adopt(TASK_LIST, config(8, 2, 2)) == config(0, 4, 3)


def test_a_task_list_that_is_switched_follows_at_once_both_ways() -> None:
    settings = ChangingSettings()
    configs = PartitionConfigs(settings)
    configs.accept(TASK_LIST, config(1, 2, 2))
    settings.change(FROM_SETTINGS)
    assert configs.find(TASK_LIST) == config(0, 4, 3)
    settings.change({})
    assert configs.find(TASK_LIST) == config(1, 2, 2)


@pytest.mark.sim
@given(
    changes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), min_size=1, max_size=6),
    heard=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40),
)
def test_whatever_is_lost_repeated_or_out_of_order_the_newest_that_was_heard_is_known(
    changes: list[tuple[int, int]], heard: list[tuple[int, bool]]
) -> None:
    """Facts, cadence-matching (b) 5: no observer regresses."""
    versions = [PartitionConfig(number + 1, write + drained, write) for number, (write, drained) in enumerate(changes)]
    configs = PartitionConfigs(DynamicSettings())
    newest = 0
    for index, is_refusal in heard:
        said = versions[index % len(versions)]
        newest = max(newest, said.version)
        if is_refusal:
            configs.adopt(TASK_LIST, said)
        else:
            configs.accept(TASK_LIST, said)
        assert configs.find(TASK_LIST) == versions[newest - 1]
    if not heard:
        assert configs.find(TASK_LIST) is None
