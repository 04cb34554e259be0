"""The interface of the demonstration's parts."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console


@dataclass(frozen=True, slots=True)
class Stage:
    """The console, the journal folder and the duration of a part.

    `store` is the SQLite file of the first part's server; None for a server in memory.
    """

    console: Console
    journal: Path
    seconds: float
    store: Path | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the demonstration. It starts the servers that it needs, and stops them all."""

    title: str
    run: Callable[[Stage], Coroutine[Any, Any, None]]
