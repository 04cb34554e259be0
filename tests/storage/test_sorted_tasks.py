"""SortedTasks keeps the order of a plain sorted list, at a million tasks too."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.fairness import LEVEL_ZERO, Level
from fairlead.storage.memory import sorted_tasks
from fairlead.storage.memory.sorted_tasks import SortedTasks
from fairlead.storage.tasks import StoredTask

LEVELS = st.builds(Level, st.integers(0, 9), st.integers(0, 9))
ACTIONS = st.one_of(
    st.tuples(st.just("add"), LEVELS, st.just(0)),
    st.tuples(st.just("delete"), LEVELS, st.integers(1, 12)),
)


def task(level: Level) -> StoredTask:
    return StoredTask(level, "tenant", 1.0, b"")


@given(st.lists(ACTIONS, max_size=80), LEVELS, st.integers(1, 20))
def test_sorted_tasks_hold_the_same_as_a_sorted_list(
    actions: list[tuple[str, Level, int]], after: Level, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Short runs, so that they are split and emptied often.
        patch.setattr(sorted_tasks, "_RUN_TASKS_MAX", 4)
        tasks, model = SortedTasks(), list[Level]()
        for action, level, delete_limit in actions:
            assert (level in tasks) == (level in model)
            if action == "delete":
                gone = [stored for stored in model if stored <= level][:delete_limit]
                assert tasks.delete_through(level, delete_limit) == len(gone)
                model = model[len(gone) :]
            elif level not in model:
                tasks.add(task(level))
                model = sorted([*model, level])
            assert len(tasks) == len(model)
        above = [task(level) for level in model if level > after]
        assert list(tasks.after(after)) == above
        assert tasks.first_after(after, limit) == above[:limit]


def test_a_hundred_thousand_tasks_added_in_random_order_are_held_in_short_runs() -> None:
    levels = [Level(number // 10, number) for number in range(100_000)]
    random.Random(1).shuffle(levels)
    tasks = SortedTasks()
    for level in levels:
        tasks.add(task(level))
    assert [found.level for found in tasks.first_after(LEVEL_ZERO, 100_000)] == sorted(levels)[1:]
    assert max(len(run) for run in tasks._runs) <= sorted_tasks._RUN_TASKS_MAX
    assert tasks.delete_through(Level(5000, 0), 100_000) == 50_000
    assert len(tasks) == 50_000
