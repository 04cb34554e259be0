"""What a part of the demonstration is given."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a part says what it does, where its servers write their journals, and how long it may take."""

    console: Console
    journal: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class Part:
    """One thing to show. It starts the servers that it needs, and leaves none of them."""

    title: str
    run: Callable[[Stage], Coroutine[Any, Any, None]]
