from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing.recently_used import RecentlyUsed


def test_the_least_recently_used_entry_is_evicted() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 1)
    memory.put("b", 2)
    memory.get("a")
    memory.put("c", 3)

    assert [memory.get(key) for key in "abc"] == [1, None, 3]


def test_a_value_of_zero_is_kept_like_any_other() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 0)
    memory.put("b", 0)
    memory.get("a")
    memory.put("c", 0)

    assert [memory.get(key) for key in "abc"] == [0, None, 0]


def test_an_entry_can_be_forgotten_twice() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 1)
    memory.forget("a")
    memory.forget("a")

    assert memory.get("a") is None
    assert len(memory) == 0


@given(st.integers(1, 5), st.lists(st.integers(0, 9)))
def test_the_number_of_entries_is_bounded(entries_max: int, keys: list[int]) -> None:
    memory: RecentlyUsed[int, int] = RecentlyUsed(entries_max)
    for key in keys:
        memory.put(key, key)
        assert memory.get(key) == key
        assert len(memory) <= entries_max
