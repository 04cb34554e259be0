import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.errors import GiveUp
from fairlead.core.versions import EventNotInHistory, Item, MalformedHistory, VersionHistory
from tests.core.versions.world import expand, summarise


def history_of(*pairs: tuple[int, int]) -> VersionHistory:
    return VersionHistory.from_pairs(pairs)


@st.composite
def histories(draw: st.DrawFn) -> VersionHistory:
    size = draw(st.integers(1, 6))
    event_ids = sorted(draw(st.sets(st.integers(1, 30), min_size=size, max_size=size)))
    versions = sorted(draw(st.sets(st.integers(0, 30), min_size=size, max_size=size)))
    return history_of(*zip(event_ids, versions, strict=True))


def test_a_history_without_a_conflict_grows_with_its_events() -> None:
    """NDC-7: the example of the rule."""
    # T = 0: event 1 at version 1.
    history = history_of((1, 1))
    assert expand(history) == ((1, 1),)
    # T = 1: event 2 at version 1.
    history = history.append(event_id=2, version=1)
    assert history.to_pairs() == ((2, 1),)
    assert expand(history) == ((1, 1), (2, 1))
    # T = 2: event 3 at version 1.
    history = history.append(event_id=3, version=1)
    assert history.to_pairs() == ((3, 1),)
    assert expand(history) == ((1, 1), (2, 1), (3, 1))
    # T = 3: after a failover the namespace's version is 2; event 4 at version 2.
    history = history.append(event_id=4, version=2)
    assert history.to_pairs() == ((3, 1), (4, 2))
    assert expand(history) == ((1, 1), (2, 1), (3, 1), (4, 2))
    # T = 4: event 5 at version 2.
    history = history.append(event_id=5, version=2)
    assert history.to_pairs() == ((3, 1), (5, 2))
    assert expand(history) == ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "no items"),
        ([(0, 1)], "begins with event 0"),
        ([(1, -1)], "negative version -1"),
        ([(2, 1), (2, 2)], "event ids \\(2, 2\\).* do not rise"),
        ([(3, 1), (2, 2)], "event ids \\(3, 2\\).* do not rise"),
        ([(2, 1), (3, 1)], "versions \\(1, 1\\).* do not rise"),
        ([(2, 2), (3, 1)], "versions \\(2, 1\\).* do not rise"),
    ],
)
def test_items_out_of_order_are_rejected(pairs: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(MalformedHistory, match=message) as raised:
        VersionHistory.from_pairs(pairs)
    assert isinstance(raised.value, GiveUp)


@pytest.mark.parametrize("pairs", [[(1,)], [(1, 2, 3)], [(1, None)], [("1", 1)], [(1.0, 1)], [7], None])
def test_items_that_are_not_pairs_of_integers_are_rejected(pairs: object) -> None:
    with pytest.raises(MalformedHistory, match="pairs of whole numbers"):
        VersionHistory.from_pairs(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event_id", "version", "message"),
    [
        (5, 2, "event 5 can't follow event 5"),
        (4, 3, "event 4 can't follow event 5"),
        (6, 1, "event 6 has version 1, but event 5 before it has the higher version 2"),
    ],
)
def test_an_event_that_cannot_follow_is_rejected(event_id: int, version: int, message: str) -> None:
    history = history_of((3, 1), (5, 2))
    with pytest.raises(MalformedHistory, match=message):
        history.append(event_id=event_id, version=version)
    assert history == history_of((3, 1), (5, 2))


def test_several_events_can_be_appended_as_one_item() -> None:
    assert history_of((3, 1)).append(event_id=9, version=1) == history_of((9, 1))
    assert history_of((3, 1)).append(event_id=9, version=4) == history_of((3, 1), (9, 4))


@given(histories())
def test_a_history_agrees_with_the_list_of_its_events(history: VersionHistory) -> None:
    events = expand(history)
    assert summarise(events) == history
    assert history.last == events[-1]
    for event_id in range(-1, history.last.event_id + 3):
        for version in range(-1, history.last.version + 2):
            assert history.contains(event_id=event_id, version=version) == (Item(event_id, version) in events)
    for event_id, version in events:
        assert history.version_of(event_id) == version
        cut = history.truncate(event_id)
        assert expand(cut) == events[:event_id]
        assert VersionHistory(cut.items) == cut


@given(histories(), st.integers(1, 9), st.integers(0, 9))
def test_truncating_after_appending_gives_the_same_history(history: VersionHistory, more: int, newer: int) -> None:
    last = history.last
    longer = history.append(event_id=last.event_id + more, version=last.version + newer)
    assert VersionHistory(longer.items) == longer
    assert longer.last == (last.event_id + more, last.version + newer)
    assert longer.truncate(last.event_id) == history


@pytest.mark.parametrize("event_id", [-1, 0, 6])
def test_an_event_outside_the_history_has_no_version(event_id: int) -> None:
    history = history_of((3, 1), (5, 2))
    with pytest.raises(EventNotInHistory, match=f"event {event_id} is not in this history of events 1 to 5"):
        history.version_of(event_id)
    with pytest.raises(EventNotInHistory):
        history.truncate(event_id)


@given(histories())
def test_a_history_can_be_converted_to_tuples_and_back(history: VersionHistory) -> None:
    pairs = history.to_pairs()
    assert {type(pair) for pair in pairs} == {tuple}
    assert VersionHistory.from_pairs(pairs) == history
    assert VersionHistory.from_pairs([list(pair) for pair in pairs]) == history  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(history)) == history  # noqa: S301 - our own bytes
    assert len({history, VersionHistory.from_pairs(pairs)}) == 1


def test_the_history_of_the_first_event_equals_one_from_pairs() -> None:
    assert VersionHistory.beginning(12) == VersionHistory.from_pairs([(1, 12)])
    with pytest.raises(MalformedHistory, match="negative version -1"):
        VersionHistory.beginning(-1)
