import pytest

from fairlead.core.errors import GiveUp
from fairlead.core.versions import (
    EventBatch,
    EventNotInHistory,
    EventRange,
    Item,
    MalformedBatch,
    VersionHistory,
    cut_batches,
)

HISTORY = VersionHistory.from_pairs([(2, 1), (5, 2), (9, 11)])


def test_the_history_of_a_batch_is_truncated_to_its_last_event() -> None:
    """FL-62."""
    batch = EventBatch(EventRange(3, 4), 2, HISTORY)
    assert batch.history.to_pairs() == ((2, 1), (4, 2))
    assert batch == EventBatch(EventRange(3, 4), 2, VersionHistory.from_pairs([(2, 1), (4, 2)]))


@pytest.mark.parametrize(
    ("first", "last", "version", "message"),
    [
        (0, 2, 1, "events 0 to 2 is empty or begins before 1"),
        (4, 3, 2, "events 4 to 3 is empty"),
        (8, 10, 11, "history that ends at event 9"),
        (3, 4, 1, "at version 1 came with a history that has them at versions 2 to 2"),
        (2, 4, 2, "has them at versions 1 to 2"),
        (4, 7, 2, "has them at versions 2 to 11"),
    ],
)
def test_a_batch_that_does_not_match_its_history_is_rejected(first: int, last: int, version: int, message: str) -> None:
    with pytest.raises(MalformedBatch, match=message) as raised:
        EventBatch(EventRange(first, last), version, HISTORY)
    assert isinstance(raised.value, GiveUp)


def test_a_batch_can_be_built_from_single_events() -> None:
    batch = EventBatch.from_events([Item(3, 2), Item(4, 2), Item(5, 2)], HISTORY)
    assert batch == EventBatch(EventRange(3, 5), 2, HISTORY)
    assert batch.events.size == 3


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no events"),
        ([(3, 2), (5, 2)], "event 5 where event 4 should follow"),
        ([(3, 2), (3, 2)], "event 3 where event 4 should follow"),
        ([(4, 2), (3, 2)], "event 3 where event 5 should follow"),
        ([(5, 2), (6, 11)], "event 6 at version 11 after event 5 at version 2"),
    ],
)
def test_events_with_a_gap_or_of_several_versions_are_rejected(events: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(MalformedBatch, match=message):
        EventBatch.from_events([Item(*event) for event in events], HISTORY)


@pytest.mark.parametrize(
    ("first", "last", "batches"),
    [
        (1, 9, [(1, 2, 1), (3, 5, 2), (6, 9, 11)]),
        (2, 3, [(2, 2, 1), (3, 3, 2)]),
        (4, 4, [(4, 4, 2)]),
        (5, 8, [(5, 5, 2), (6, 8, 11)]),
    ],
)
def test_a_range_is_split_into_one_batch_for_each_version(
    first: int, last: int, batches: list[tuple[int, int, int]]
) -> None:
    cut = cut_batches(HISTORY, EventRange(first, last))
    assert [(*batch.events, batch.version) for batch in cut] == batches
    assert all(batch.history == HISTORY.truncate(batch.events.last) for batch in cut)


def test_a_range_outside_the_history_is_rejected() -> None:
    with pytest.raises(EventNotInHistory):
        cut_batches(HISTORY, EventRange(8, 10))
