"""The parts that all programs of `benchmarks.peers` share. They run in the environments of the peers.

A program is called with `add` or `drain`, the address of its server and the number of tasks. It prints a JSON object.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

AT_ONCE = 50


class Tally:
    """Counts executed tasks, and measures the seconds from the first to the last one."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._executed = 0
        self._first_s = 0.0
        self._lock = threading.Lock()
        self.is_done = threading.Event()

    def count(self) -> None:
        """Count an executed task."""
        with self._lock:
            if not self._executed:
                self._first_s = time.perf_counter()
            self._executed += 1
            if self._executed == self.tasks:
                show(time.perf_counter() - self._first_s)
                self.is_done.set()


def arguments() -> tuple[str, str, int]:
    """The phase, the address of the server, and the number of tasks."""
    what, address, tasks = sys.argv[1:4]
    return what, address, int(tasks)


def show(seconds: float) -> None:
    """Print the result for the parent process."""
    print(json.dumps({"seconds": seconds, "cpu_s": time.process_time()}), flush=True)


def end() -> None:
    """End the process at once, even if threads of a library still run."""
    os._exit(0)


def add_in_threads(tasks: int, add: Callable[[], object]) -> None:
    """Add tasks with a client that blocks, some at the same time; each add returns when the server has confirmed it."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        began_s = time.perf_counter()
        for _ in pool.map(lambda _: add(), range(tasks)):
            pass
        show(time.perf_counter() - began_s)


async def add_in_tasks(tasks: int, add: Callable[[], Awaitable[object]]) -> None:
    """Add tasks with an asynchronous client, some at the same time."""
    numbers = iter(range(tasks))

    async def adder() -> None:
        for _ in numbers:
            await add()

    began_s = time.perf_counter()
    await asyncio.gather(*(adder() for _ in range(AT_ONCE)))
    show(time.perf_counter() - began_s)
