"""An event loop on virtual time: waiting costs nothing, and everything that happens follows from a seed.

Nothing here sleeps, reads a clock or does any I/O. When nothing is ready, time jumps to the next timer; when there is
no timer either, whoever still waits would wait for ever, and that is an error. Callbacks that are ready in the same
step run in an order that the seed decides: what one of them schedules always runs after it, and nothing else about
their order is promised to the code under test.

A *process* is what a host would be: everything that is scheduled from inside it belongs to it, and when it is killed
none of that ever runs again, not even a `finally`.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Coroutine, Generator
from random import Random
from typing import Any, TypeVar

Answer = TypeVar("Answer")

STEPS_MAX = 5_000_000
# How long code that was told to stop may go on, in virtual time, before it counts as stuck.
STOP_S_MAX = 600.0
# The tasks that ended well are forgotten whenever so many were started.
_TASKS_SWEPT_AT = 2_000
_TIMERS_SWEPT_MIN = 50


class Deadlock(AssertionError):
    """Somebody waits, and nothing is left that could happen."""


class TooManySteps(AssertionError):
    """The run does not come to an end."""


class Process:
    """A host's life from start to crash; `is_killed` is checked before anything of it runs."""

    __slots__ = ("is_killed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False

    def context(self) -> contextvars.Context:
        """What to run in so that it belongs to this process, and all that follows from it."""
        context = contextvars.Context()
        context.run(_PROCESS.set, self)
        return context


# What belongs to no host: the store, the network, the test itself.
NOBODY = Process("nobody")
_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=NOBODY)


def current_process() -> Process:
    """Whose code is running."""
    return _PROCESS.get()


class _Task(asyncio.Task[Any]):
    """Hashed by its number, not by its address: so that a set of these has the same order in every run."""

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        # First: asyncio puts it into a set as soon as it is there.
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """Likewise."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in an order that `order` decides, on a clock that only timers move; without it, first come first.

    What `asyncio.BaseEventLoop` offers besides (sockets, threads, signals) does not work here, and says so.
    """

    # Of the base class, where they are private; both are the same in all Pythons that are supported.
    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, order: Random | None = None, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self._now_s = 0.0
        self._order = order
        self._steps_max = steps_max
        self.steps = 0
        # In the order in which they were created: sets of tasks have the order of their addresses.
        self._tasks: list[tuple[asyncio.Task[Any], Process]] = []
        self._tasks_swept_at = _TASKS_SWEPT_AT
        self._tasks_ever = 0
        self._futures_ever = 0
        self._timers_cancelled = 0
        # What would have run in processes that were killed.
        self._buried: list[asyncio.Handle] = []
        self.failures: list[str] = []
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        """Seconds since the run began, in virtual time."""
        return self._now_s

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, Answer] | Coroutine[Any, Any, Answer],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Answer]:
        """Start a task, with a name that is the same in every run."""
        self._tasks_ever += 1
        label = name or getattr(coro, "__qualname__", "task")
        name = f"{self._tasks_ever:06}-{label}"
        task = _Task(self._tasks_ever, coro, loop=self, name=name, context=context)
        self._tasks.append((task, _PROCESS.get() if context is None else context.get(_PROCESS, NOBODY)))
        if len(self._tasks) >= self._tasks_swept_at:
            self._tasks = [one for one in self._tasks if not one[0].done() or _has_failed_unseen(one[0])]
            self._tasks_swept_at = len(self._tasks) + _TASKS_SWEPT_AT
        return task

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose place in a set is the same in every run."""
        self._futures_ever += 1
        return _Future(self._futures_ever, self)

    def spawn(self, process: Process, work: Coroutine[Any, Any, Answer], name: str) -> asyncio.Task[Answer]:
        """Run `work` inside `process`."""
        return self.create_task(work, name=name, context=process.context())

    def pending(self) -> list[tuple[asyncio.Task[Any], Process]]:
        """The tasks that have not ended, the oldest first."""
        return [(task, process) for task, process in self._tasks if not task.done()]

    def note_unseen(self) -> None:
        """Count the errors by which tasks ended and at which nobody has looked; those of the killed can't be seen."""
        for task, process in self._tasks:
            if _has_failed_unseen(task) and not process.is_killed:
                self.failures.append(f"{_describe(task, process)} failed unseen: {task.exception()!r}")

    def _run_once(self) -> None:
        """One step: everything that is ready when it begins."""
        scheduled, ready = self._scheduled, self._ready
        if self._timers_cancelled > len(scheduled) // 2 + _TIMERS_SWEPT_MIN:
            scheduled[:] = [timer for timer in scheduled if not timer.cancelled()]
            heapq.heapify(scheduled)
            self._timers_cancelled = 0
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)
        if not ready:
            if not scheduled:
                raise Deadlock(f"nothing is ready and no timer runs at {self._now_s:.3f} s, but {self.waiting()}")
            self._now_s = max(self._now_s, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now_s:
            ready.append(heapq.heappop(scheduled))
        batch = list(ready)
        ready.clear()
        if self._order is not None and len(batch) > 1:
            self._order.shuffle(batch)
        self.steps += len(batch)
        if self.steps > self._steps_max:
            ready.extend(batch)
            raise TooManySteps(f"{self.steps} steps by {self._now_s:.3f} s, and {self.waiting()}")
        for handle in batch:
            if handle.cancelled():
                continue
            if handle._context.get(_PROCESS, NOBODY).is_killed:  # type: ignore[attr-defined]
                self._buried.append(handle)
            else:
                handle._run()

    def revive(self) -> None:
        """Let the killed come to their end after all, when the run is over."""
        for _, process in self._tasks:
            process.is_killed = False
        self._ready.extend(self._buried)
        self._buried.clear()

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError("there is no I/O on virtual time")

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""

    def _timer_handle_cancelled(self, handle: object) -> None:
        """Cancelled timers go when their time has come, or when most of them are."""
        self._timers_cancelled += 1

    def waiting(self) -> str:
        pending = [_describe(task, process) for task, process in self.pending()]
        return f"{len(pending)} tasks wait:\n  " + "\n  ".join(pending[:40])

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error that nobody catches is a bug, wherever it was raised. Called with what asyncio would have logged."""
        # Those are found at the end, whether they have been collected by then or not.
        if "never retrieved" in context["message"] or "was destroyed" in context["message"]:
            return
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")


def run(
    main: Coroutine[Any, Any, Answer], *, order: Random | None = None, steps_max: int = STEPS_MAX
) -> tuple[Answer, VirtualLoop]:
    """Run `main` to its end on a new loop, then stop all that it left behind; also the loop, to ask how it went."""
    loop = VirtualLoop(order, steps_max=steps_max)
    try:
        answer = loop.run_until_complete(loop.create_task(main, name="main"))
        loop.note_unseen()
        return answer, loop
    finally:
        # What happens from here on is no part of the run.
        failures, steps = list(loop.failures), loop.steps
        try:
            _stop_everything(loop)
        finally:
            loop.failures, loop.steps = failures, steps
            loop.close()


def _stop_everything(loop: VirtualLoop) -> None:
    """Let every task end, those of killed processes too: what is left unfinished would run when it is collected."""
    loop.steps = 0
    loop.revive()
    for _ in range(10):
        pending = loop.pending()
        if not pending:
            return
        for task, _ in pending:
            task.cancel()
        loop.run_until_complete(asyncio.wait([task for task, _ in pending], timeout=STOP_S_MAX))
    raise Deadlock("told to stop, " + loop.waiting())


def _has_failed_unseen(task: asyncio.Task[Any]) -> bool:
    return task.done() and task._log_traceback


def _describe(task: asyncio.Task[Any], process: Process) -> str:
    stack = task.get_stack(limit=1)
    where = f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
    return f"{process.name} {task.get_name()}{where}" + (" (killed)" if process.is_killed else "")
