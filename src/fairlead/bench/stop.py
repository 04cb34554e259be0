"""Stops a run cleanly on a signal, so that its results are printed and its folder is removed."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

# A shell's exit code for a signal is this plus the signal's number.
EXIT_BY_SIGNAL = 128

Response = TypeVar("Response")


class Stop:
    """A request to stop the run, and the exit code for it."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._is_wanted = asyncio.Event()

    def ask(self, signal_number: int) -> None:
        """Ask the run to stop."""
        self.exit_code = EXIT_BY_SIGNAL + signal_number
        self._is_wanted.set()

    async def bounds(self, running: Coroutine[Any, Any, None]) -> bool:
        """Run until done or asked to stop; return True if the run was completed."""
        work, asked = asyncio.ensure_future(running), asyncio.ensure_future(self._is_wanted.wait())
        try:
            await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            return False
        finally:
            for task in (work, asked):
                task.cancel()
            await asyncio.gather(work, asked, return_exceptions=True)


async def until_signal(run: Callable[[Stop], Coroutine[Any, Any, Response]]) -> tuple[Response, int | None]:
    """Run; the first SIGINT or SIGTERM asks the run to stop, a second one cancels it without a result.

    Returns the result, and the exit code of the signal, if one came.
    """
    stop, loop, main = Stop(), asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None  # noqa: S101 - a coroutine runs in a task

    def asked(number: int) -> None:
        if stop.exit_code is not None:
            main.cancel()
        stop.ask(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, asked, number)
    try:
        return await run(stop), stop.exit_code
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
