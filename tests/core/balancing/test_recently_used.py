from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.balancing.recently_used import RecentlyUsed


def test_the_entry_used_longest_ago_makes_room() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 1)
    memory.put("b", 2)
    memory.get("a")
    memory.put("c", 3)

    assert [memory.get(key) for key in "abc"] == [1, None, 3]


def test_a_remembered_zero_is_not_nothing() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 0)
    memory.put("b", 0)
    memory.get("a")
    memory.put("c", 0)

    assert [memory.get(key) for key in "abc"] == [0, None, 0]


def test_what_is_forgotten_is_gone_and_forgetting_twice_is_harmless() -> None:
    memory: RecentlyUsed[str, int] = RecentlyUsed(2)
    memory.put("a", 1)
    memory.forget("a")
    memory.forget("a")

    assert memory.get("a") is None
    assert len(memory) == 0


@given(st.integers(1, 5), st.lists(st.integers(0, 9)))
def test_it_never_holds_more_than_its_bound(entries_max: int, keys: list[int]) -> None:
    memory: RecentlyUsed[int, int] = RecentlyUsed(entries_max)
    for key in keys:
        memory.put(key, key)
        assert memory.get(key) == key
        assert len(memory) <= entries_max
