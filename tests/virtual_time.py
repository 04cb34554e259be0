"""For tests that wait: an asynchronous test on virtual time, where every moment is exact and waiting costs nothing."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from tests.simulation.virtual_loop import run


def on_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on a virtual event loop; what fails in the background, unseen by anybody, fails the test."""

    @wraps(test)
    def wrapper(*arguments: Any, **named: Any) -> None:
        _, loop = run(test(*arguments, **named))
        assert loop.failures == []

    return wrapper
