import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.core.routing import BATCH_SIZE_MAX, InvalidBatchSize, basic_key, check_batch_size, spread_key

QUEUE = TaskQueueId("ns", "queue", TaskType.ACTIVITY)


def test_the_basic_key_joins_namespace_partition_name_and_type() -> None:
    """MC-6: the key has the name of partition 3, not of the task queue."""
    assert basic_key(Partition(QUEUE, 0)) == "ns:queue:2"
    assert basic_key(Partition(QUEUE, 3)) == "ns:/_sys/queue/3:2"
    assert basic_key(Partition(TaskQueueId("ns", "queue", TaskType.WORKFLOW), 0)) == "ns:queue:1"


def test_partition_25_with_batch_size_8_is_index_1_of_batch_3() -> None:
    """MC-7: the example of the rule."""
    assert spread_key(Partition(QUEUE, 25), 8) == ("ns:queue:3:2", 1)


def test_the_key_of_batch_0_omits_the_batch_number() -> None:
    """MC-9."""
    assert [spread_key(Partition(QUEUE, number), 8) for number in (0, 7, 8)] == [
        ("ns:queue:2", 0),
        ("ns:queue:2", 7),
        ("ns:queue:1:2", 0),
    ]


@given(number=st.integers(0, 5000), batch_size=st.integers(1, BATCH_SIZE_MAX))
def test_a_batch_holds_as_many_consecutive_partitions_as_its_size(number: int, batch_size: int) -> None:
    batch = number // batch_size
    first = spread_key(Partition(QUEUE, batch * batch_size), batch_size)
    own = spread_key(Partition(QUEUE, number), batch_size)

    assert own.key == first.key
    assert own.host_index == number - batch * batch_size
    assert spread_key(Partition(QUEUE, (batch + 1) * batch_size), batch_size).key != own.key


@given(batch_size=st.integers(1, BATCH_SIZE_MAX))
def test_the_key_of_the_root_is_the_same_for_every_batch_size(batch_size: int) -> None:
    assert spread_key(Partition(QUEUE, 0), batch_size) == (basic_key(Partition(QUEUE, 0)), 0)


@pytest.mark.parametrize("batch_size", [-1, BATCH_SIZE_MAX + 1])
def test_a_batch_size_out_of_range_is_rejected(batch_size: int) -> None:
    with pytest.raises(InvalidBatchSize, match=str(batch_size)) as raised:
        check_batch_size(batch_size)
    assert isinstance(raised.value, FixRequest)


def test_a_batch_size_in_range_is_returned() -> None:
    assert [check_batch_size(size) for size in (0, BATCH_SIZE_MAX)] == [0, BATCH_SIZE_MAX]
