"""Run asynchronous tests on virtual time: every moment is exact, and waiting costs nothing."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from fairlead.simulations.virtual_loop import run


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a virtual event loop; an error in the background that is not awaited fails the test."""

    @wraps(test)
    def wrapper(*arguments: Any, **named: Any) -> None:
        _, loop = run(test(*arguments, **named))
        assert loop.failures == []

    return wrapper
