"""The default store: one SQLite file. One thread writes it, and commits for many callers at once."""

from fairlead.storage.sqlite.file import CannotOpen
from fairlead.storage.sqlite.store import SqliteStore

__all__ = ["CannotOpen", "SqliteStore"]
