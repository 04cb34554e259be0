"""A whole store: the task queues of the matching service, and the workflows of the history service beside them."""

from typing import Protocol

from fairlead.storage.contract import TaskStore
from fairlead.storage.history_contract import HistoryStore


class Store(TaskStore, Protocol):
    """Both in one database, which is opened and closed at once."""

    @property
    def history(self) -> HistoryStore:
        """The workflows. What it acknowledges is as durable as the rest, and it is closed with the rest."""
        ...
