"""`fairlead` in a thread of the test's process: a process of its own takes half a second of CPU, most of it imports."""

import asyncio
import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

import click

from fairlead.cli.commands import cli, run_command
from tests.cli.processes import ANSWER_S_MAX, Done


class _Command:
    """The command line with given arguments, in place of those of the process."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._arguments = arguments

    def main(self, **options: Any) -> Any:
        return cli.main(list(self._arguments), **options)


class _ByThread(io.TextIOBase):
    """A standard stream: what a thread with a command writes goes to that command's text, the rest where it did."""

    def __init__(self, before: TextIO) -> None:
        self.before = before
        self.texts: dict[int, io.StringIO] = {}

    def write(self, text: str) -> int:
        return self.texts.get(threading.get_ident(), self.before).write(text)

    def flush(self) -> None:
        self.before.flush()


@contextmanager
def _caught(name: str) -> Iterator[io.StringIO]:
    """Catch what this thread writes to a standard stream during the block; several threads may do so at once."""
    stream = getattr(sys, name)
    with _LOCK:
        if not isinstance(stream, _ByThread):
            stream = _ByThread(stream)
            setattr(sys, name, stream)
        text = stream.texts[threading.get_ident()] = io.StringIO()
    try:
        yield text
    finally:
        with _LOCK:
            del stream.texts[threading.get_ident()]
            if not stream.texts and getattr(sys, name) is stream:
                setattr(sys, name, stream.before)


_LOCK = threading.Lock()


async def run_in_thread(*arguments: str) -> Done:
    """Run `fairlead` until it ends, while the test continues."""

    def work() -> Done:
        with _caught("stdout") as out, _caught("stderr") as err:
            code = 0
            try:
                run_command(cast("click.Command", _Command(arguments)), "fairlead")
            except SystemExit as ended:
                code = int(str(ended.code))
            return Done(code, out.getvalue(), err.getvalue())

    async with asyncio.timeout(ANSWER_S_MAX):
        return await asyncio.to_thread(work)
