import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.partitions import (
    NAME_CHARACTERS_MAX,
    PARTITION_NAME_CHARACTERS_MAX,
    PARTITIONS_MAX,
    RESERVED_PREFIX,
    InvalidName,
    Partition,
    TaskQueueId,
    TaskType,
    check_user_name,
    parse_partition_name,
    partition_name,
)

# Slashes, digits and the letters of the reserved prefix are frequent, because they could make names ambiguous.
tricky_text = st.text(alphabet=st.sampled_from(list("/_sy019ab:")), min_size=1, max_size=20)
any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60)
user_names = st.one_of(tricky_text, any_text).filter(lambda name: not name.startswith(RESERVED_PREFIX))
numbers = st.integers(0, PARTITIONS_MAX - 1)


def test_the_root_has_the_name_of_the_task_queue() -> None:
    """FL-4."""
    assert partition_name("orders", 0) == "orders"
    assert partition_name("orders", 7) == "/_sys/orders/7"


def test_a_partition_has_its_own_name() -> None:
    orders = TaskQueueId(namespace_id="n", name="orders", type=TaskType.ACTIVITY)
    assert Partition(orders, 0).name == "orders"
    assert Partition(orders, 12).name == "/_sys/orders/12"


@given(user_names, numbers)
def test_every_encoded_name_is_decoded_to_the_same_partition(name: str, number: int) -> None:
    assert parse_partition_name(partition_name(name, number)) == (name, number)


@given(st.tuples(user_names, numbers), st.tuples(user_names, numbers))
def test_two_partitions_never_share_a_name(one: tuple[str, int], other: tuple[str, int]) -> None:
    assert (partition_name(*one) == partition_name(*other)) == (one == other)


@given(st.one_of(tricky_text, tricky_text.map(lambda rest: RESERVED_PREFIX + rest)))
def test_every_decoded_name_is_encoded_to_the_same_name(text: str) -> None:
    try:
        name, number = parse_partition_name(text)
    except InvalidName:
        return
    assert partition_name(name, number) == text


@pytest.mark.parametrize("name", ["a/3", "/a", "a/", "/", "//", "/_sys", "_sys/a/3", "a/_sys/b/2", "1", "/_sysa/1"])
def test_the_name_of_a_task_queue_may_contain_slashes_and_digits(name: str) -> None:
    assert check_user_name(name) == name
    assert parse_partition_name(name) == (name, 0)
    assert parse_partition_name(f"/_sys/{name}/5") == (name, 5)


@pytest.mark.parametrize("name", ["/_sys/", "/_sys/a", "/_sys/a/1", "/_sys//", "/_sys/_sys/1"])
def test_a_user_cannot_use_a_reserved_name(name: str) -> None:
    """FL-4: users can't use names that begin with `/_sys/`."""
    with pytest.raises(InvalidName, match="kept for partitions"):
        check_user_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "/_sys/",
        "/_sys/a",
        "/_sys/a/",
        "/_sys//1",
        "/_sys/1",
        "/_sys/a/0",
        "/_sys/a/03",
        "/_sys/a/-1",
        "/_sys/a/+1",
        "/_sys/a/1_0",
        "/_sys/a/ 1",
        "/_sys/a/1\n",
        "/_sys/a/٣",
        "/_sys/a/²",
        "/_sys//_sys/a/1/2",
        f"/_sys/a/{PARTITIONS_MAX}",
    ],
)
def test_an_invalid_partition_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidName):
        parse_partition_name(name)


@pytest.mark.parametrize("digits", [5, 500, 4_299, 4_301, 100_000])
def test_a_partition_number_with_too_many_digits_is_rejected(digits: int) -> None:
    """Python itself raises a plain ValueError for 4,300 digits and more."""
    with pytest.raises(InvalidName):
        parse_partition_name(f"/_sys/a/{'9' * digits}")


def test_a_task_queue_with_the_longest_name_can_have_partitions() -> None:
    name = "x" * NAME_CHARACTERS_MAX
    highest = partition_name(name, PARTITIONS_MAX - 1)
    assert len(highest) == PARTITION_NAME_CHARACTERS_MAX
    assert parse_partition_name(highest) == (name, PARTITIONS_MAX - 1)


def test_a_name_that_is_too_long_is_rejected_by_every_function() -> None:
    name = "x" * (NAME_CHARACTERS_MAX + 1)
    with pytest.raises(InvalidName, match="1001 characters"):
        check_user_name(name)
    with pytest.raises(InvalidName):
        partition_name(name, 1)
    with pytest.raises(InvalidName):
        parse_partition_name(f"/_sys/{name}/1")


def test_an_empty_name_is_rejected() -> None:
    with pytest.raises(InvalidName, match="empty"):
        check_user_name("")
    with pytest.raises(InvalidName):
        parse_partition_name("")


@pytest.mark.parametrize("name", ["a\0b", "\0", "half \ud800 pair"])
def test_a_name_that_cannot_be_stored_is_rejected(name: str) -> None:
    with pytest.raises(InvalidName, match="can't be stored"):
        check_user_name(name)
    with pytest.raises(InvalidName):
        parse_partition_name(f"/_sys/{name}/1")


@pytest.mark.parametrize("number", [-1, PARTITIONS_MAX, 10**30])
def test_a_partition_number_out_of_range_is_rejected(number: int) -> None:
    with pytest.raises(InvalidName, match=str(number)):
        partition_name("a", number)
