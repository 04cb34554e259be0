from typing import NamedTuple


class Level(NamedTuple):
    """The position of a task in its backlog: pass first, then id. Stores keep tasks in this order.

    Two tasks never have the same id, so two tasks never have the same level.
    """

    pass_number: int
    task_id: int

    def __str__(self) -> str:
        return f"<{self.pass_number}, {self.task_id}>"


# Below every task: passes begin at 0 and ids at 1.
LEVEL_ZERO = Level(0, 0)
