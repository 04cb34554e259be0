from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import FairTurns


def served(turns: FairTurns[str], count: int) -> list[str]:
    return [turns.next() for _ in range(count)]


def test_one_key_is_served_in_the_order_of_arrival() -> None:
    turns = FairTurns[str]()
    for item in ("a1", "a2", "a3"):
        turns.add("a", item)
    assert served(turns, 3) == ["a1", "a2", "a3"]


def test_a_key_with_one_item_waits_for_one_item_of_a_flooding_key_at_most() -> None:
    turns = FairTurns[str]()
    for number in range(600):
        turns.add("flood", f"f{number}")
    assert served(turns, 100) == [f"f{number}" for number in range(100)]
    turns.add("neighbour", "n")
    assert "n" in served(turns, 2)


def test_keys_that_all_wait_take_turns() -> None:
    turns = FairTurns[str]()
    for number in range(4):
        for key in "abc":
            turns.add(key, key)
            if number == 0:
                turns.add(key, key)
    order = served(turns, 15)
    assert [sorted(order[start : start + 3]) for start in range(0, 15, 3)] == [list("abc")] * 5


def test_a_key_that_comes_back_has_neither_credit_nor_debt() -> None:
    turns = FairTurns[str]()
    for _ in range(50):
        turns.add("a", "a")
    served(turns, 50)
    for _ in range(3):
        turns.add("b", "b")
        turns.add("a", "a")
    assert sorted(served(turns, 2)) == ["a", "b"]


@given(st.lists(st.sampled_from(["a", "b", "c", "next"]), max_size=200))
def test_every_item_is_served_once_and_keys_keep_their_order(steps: list[str]) -> None:
    turns = FairTurns[tuple[str, int]]()
    added: list[tuple[str, int]] = []
    out: list[tuple[str, int]] = []
    for number, step in enumerate(steps):
        if step != "next":
            added.append((step, number))
            turns.add(step, (step, number))
        elif len(turns):
            out.append(turns.next())
    while len(turns):
        out.append(turns.next())
    assert sorted(out) == sorted(added)
    for key in "abc":
        assert [item for item in out if item[0] == key] == [item for item in added if item[0] == key]
