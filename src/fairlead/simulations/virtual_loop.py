"""An event loop on virtual time: waiting costs nothing, and the order of all steps follows from a seed.

Nothing here sleeps, reads a clock or does I/O. When no callback is ready, time jumps to the next timer. If there is no
timer either while the main task still waits, the run is deadlocked, which is an error. The seed decides the order of
callbacks that are ready in the same step; only a callback and the one that it schedules have a fixed order.

A *process* stands for a host: all callbacks scheduled from inside it belong to it. When it is killed, none of them runs
again, not even a `finally`.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Coroutine, Generator
from random import Random
from typing import Any, TypeVar

Response = TypeVar("Response")

STEPS_MAX = 5_000_000
# Seconds of virtual time after which code that doesn't stop counts as stuck.
STOP_S_MAX = 600.0
# Number of started tasks after which those that ended without an error are dropped from the list.
_TASKS_SWEPT_AT = 2_000
_TIMERS_SWEPT_MIN = 50


class Deadlock(AssertionError):
    """A task waits, and no callback or timer is left that could wake it."""


class TooManySteps(AssertionError):
    """The run does not end."""


class Process:
    """A host from one start to its crash; the loop checks `is_killed` before each of its callbacks."""

    __slots__ = ("is_killed", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False

    def context(self) -> contextvars.Context:
        """A context in which started code, and everything that it schedules, belongs to this process."""
        context = contextvars.Context()
        context.run(_PROCESS.set, self)
        return context


# The process of all code that belongs to no host: the store, the network, the test itself.
NOBODY = Process("nobody")
_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=NOBODY)


def current_process() -> Process:
    """The process whose code is running."""
    return _PROCESS.get()


class _Task(asyncio.Task[Any]):
    """Hashed by its number, not by its address, so that a set of tasks has the same order in every run."""

    def __init__(self, number: int, *arguments: Any, **options: Any) -> None:
        # Set before `super().__init__`, which adds the task to a set.
        self._number = number
        super().__init__(*arguments, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """Hashed by its number, as `_Task` is."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs ready callbacks in an order drawn from `order` (if None: first in, first out); only timers move the clock.

    The other features of `asyncio.BaseEventLoop` (sockets, threads, signals) raise errors here.
    """

    # Private attributes of the base class; all supported Python versions have both.
    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, order: Random | None = None, *, steps_max: int = STEPS_MAX) -> None:
        super().__init__()
        self._now_s = 0.0
        self._order = order
        self._steps_max = steps_max
        self.steps = 0
        # In order of creation: sets of asyncio tasks would be ordered by address.
        self._tasks: list[tuple[asyncio.Task[Any], Process]] = []
        self._tasks_swept_at = _TASKS_SWEPT_AT
        self._tasks_ever = 0
        self._futures_ever = 0
        self._timers_cancelled = 0
        # Callbacks of killed processes; they never run.
        self._not_due: list[asyncio.Handle] = []
        self.failures: list[str] = []
        self.set_exception_handler(self._note_failure)

    def time(self) -> float:
        """Seconds since the run began, in virtual time."""
        return self._now_s

    def create_task(  # type: ignore[override]
        self,
        coro: Generator[Any, None, Response] | Coroutine[Any, Any, Response],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Response]:
        """Start a task with a name that is the same in every run."""
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
        """A future whose position in a set is the same in every run."""
        self._futures_ever += 1
        return _Future(self._futures_ever, self)

    def spawn(self, process: Process, work: Coroutine[Any, Any, Response], name: str) -> asyncio.Task[Response]:
        """Run `work` inside `process`."""
        return self.create_task(work, name=name, context=process.context())

    def pending(self) -> list[tuple[asyncio.Task[Any], Process]]:
        """The tasks that have not ended, the oldest first."""
        return [(task, process) for task, process in self._tasks if not task.done()]

    def note_unseen(self) -> None:
        """Record the errors of tasks that are not awaited; errors in killed processes don't count."""
        for task, process in self._tasks:
            if _has_failed_unseen(task) and not process.is_killed:
                self.failures.append(f"{_describe(task, process)} failed unseen: {task.exception()!r}")

    def _run_once(self) -> None:
        """One step: run every callback that is ready at its beginning."""
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
            if handle._context.get(_PROCESS, NOBODY).is_killed:  # type: ignore[attr-defined] # noqa: SLF001
                self._not_due.append(handle)
            else:
                handle._run()  # noqa: SLF001 - as the base class does

    def revive(self) -> None:
        """Run the remaining callbacks of killed processes, after the run is over."""
        for _, process in self._tasks:
            process.is_killed = False
        self._ready.extend(self._not_due)
        self._not_due.clear()

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError("there is no I/O on virtual time")

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps, so no thread has to wake it."""

    def _timer_handle_cancelled(self, handle: object) -> None:  # noqa: ARG002 - the base class gives it
        """Drop cancelled timers when they are due, or when most timers are cancelled."""
        self._timers_cancelled += 1

    def waiting(self) -> str:
        """The tasks that have not ended, for an error."""
        pending = [_describe(task, process) for task, process in self.pending()]
        return f"{len(pending)} tasks wait:\n  " + "\n  ".join(pending[:40])

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Record an uncaught error: it is always a bug. asyncio passes here what it would otherwise log."""
        # Ignore these messages: `note_unseen` finds the errors at the end, even if garbage collection was late.
        if "never retrieved" in context["message"] or "was destroyed" in context["message"]:
            return
        self.failures.append(f"{context['message']}: {context.get('exception')!r}")


def run(
    main: Coroutine[Any, Any, Response], *, order: Random | None = None, steps_max: int = STEPS_MAX
) -> tuple[Response, VirtualLoop]:
    """Run `main` to its end on a new loop, then stop all tasks that it left; also return the loop, for its counters."""
    loop = VirtualLoop(order, steps_max=steps_max)
    try:
        answer = loop.run_until_complete(loop.create_task(main, name="main"))
        loop.note_unseen()
        return answer, loop
    finally:
        # Failures and steps after this point don't belong to the run.
        failures, steps = list(loop.failures), loop.steps
        try:
            _stop_everything(loop)
        finally:
            loop.failures, loop.steps = failures, steps
            loop.close()


def _stop_everything(loop: VirtualLoop) -> None:
    """End all tasks, also those of killed processes: otherwise they would run when they are garbage-collected."""
    loop.steps = 0
    loop.revive()
    for _ in range(10):
        pending = loop.pending()
        if not pending:
            return
        for task, _ in pending:
            task.cancel()
        loop.run_until_complete(asyncio.wait([task for task, _ in pending], timeout=STOP_S_MAX))
    raise Deadlock("after the stop, " + loop.waiting())


def _has_failed_unseen(task: asyncio.Task[Any]) -> bool:
    return task.done() and task._log_traceback  # noqa: SLF001 - nothing public tells


def _describe(task: asyncio.Task[Any], process: Process) -> str:
    stack = task.get_stack(limit=1)
    where = f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
    return f"{process.name} {task.get_name()}{where}" + (" (killed)" if process.is_killed else "")
