"""For tests that wait: an asynchronous test on virtual time, where every moment is exact and waiting costs nothing."""

from collections.abc import Awaitable, Callable
from functools import wraps

from tests.simulation.virtual_loop import run


def on_virtual_time(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run the test on a virtual event loop; what fails in the background, unseen by anybody, fails the test."""

    @wraps(test)
    def wrapper() -> None:
        async def main() -> None:
            await test()

        _, loop = run(main())
        assert loop.failures == []

    return wrapper
