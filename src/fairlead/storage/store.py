"""A whole store: the task queues of matching, and the runs of history."""

from typing import Protocol

from fairlead.storage.history import HistoryStore
from fairlead.storage.tasks import TaskStore


class Store(TaskStore, Protocol):
    """Both contracts in one database, which is opened and closed as a whole."""

    @property
    def history(self) -> HistoryStore:
        """The history store: as durable as the task queues, and closed with them."""
        ...
