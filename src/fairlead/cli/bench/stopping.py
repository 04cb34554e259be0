"""A run that is stopped by a signal: it ends in order, so that its figures are told and its folder is removed."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

# How a shell says that a program was ended by a signal.
EXIT_BY_SIGNAL = 128

Answer = TypeVar("Answer")


class Stop:
    """Whether somebody wants the run to end, and the exit code that tells so."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._is_wanted = asyncio.Event()

    def ask(self, signal_number: int) -> None:
        """End the run."""
        self.exit_code = EXIT_BY_SIGNAL + signal_number
        self._is_wanted.set()

    async def bounds(self, running: Coroutine[Any, Any, None]) -> bool:
        """Run to the end, or until somebody wants it to end; True if it came to its own end."""
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


async def until_signal(run: Callable[[Stop], Coroutine[Any, Any, Answer]]) -> tuple[Answer, int | None]:
    """Run with SIGINT and SIGTERM as a wish to end; a second one ends it without an answer.

    Returns the answer, and the exit code of the signal, if one came.
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
