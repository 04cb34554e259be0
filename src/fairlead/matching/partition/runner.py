"""Runs the work of one backlog in the background."""

from collections.abc import Coroutine
from typing import Any, Protocol


class Runner(Protocol):
    """Runs coroutines; if one ends with an unexpected error, the lease is given up."""

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background."""
        ...
