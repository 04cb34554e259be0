"""Runs the work of one backlog in the background."""

from collections.abc import Coroutine
from typing import Any, Protocol


class Runner(Protocol):
    """Runs coroutines; an unexpected error of one gives up the lease."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background."""
        ...
