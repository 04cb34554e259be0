"""The timer of a root's periodic work: ticks of the scaler, repairs of pushes, checks of draining partitions."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fairlead.aio.background import Background
from fairlead.core.scaling import Decision
from fairlead.settings import DynamicSettings, Scope
from fairlead.settings.dynamic import matching

# Minimum seconds between two checks of draining partitions; grows up to the check interval in the settings.
DRAIN_CHECK_S_MIN = 0.2


class RootTimer:
    """Runs the periodic work of a root with one timer; work that is still running is not started again.

    The scaler ticks while `is_tick_wanted`, pushes are repaired unless `is_quiet`, and the counts approach their
    target unless `has_approached`.
    """

    def __init__(
        self,
        *,
        settings: DynamicSettings,
        scope: Scope,
        background: Background,
        tick: Callable[[], Coroutine[Any, Any, Decision]],
        is_tick_wanted: Callable[[], bool],
        repair: Callable[[], Coroutine[Any, Any, None]],
        is_quiet: Callable[[], bool],
        approach: Callable[[], Coroutine[Any, Any, None]],
        has_approached: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._scope = scope
        self._background = background
        self._tick = tick
        self._is_tick_wanted = is_tick_wanted
        self._repair = repair
        self._is_quiet = is_quiet
        self._approach = approach
        self._has_approached = has_approached
        self._is_started = False
        self.handle: asyncio.TimerHandle | None = None
        self._tick_due_s = self._repair_due_s = 0.0
        self._drain_due_s, self._drain_pause_s = 0.0, DRAIN_CHECK_S_MIN
        self._ticking: asyncio.Task[Decision] | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._approaching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Set the timer for the first time; the repair is due at once."""
        self._is_started = True
        now_s = asyncio.get_running_loop().time()
        self._tick_due_s = now_s + self._settings.get(matching.ADAPTIVE_SCALER_UPDATE_INTERVAL, self._scope)
        self._repair_due_s = now_s
        self.arm()

    def stop(self) -> None:
        """Cancel the timer."""
        if self.handle is not None:
            self.handle.cancel()

    def check_counts_now(self) -> None:
        """Check the counts at once: their source, their target or the partitions above them may have changed."""
        if self._is_started and not self._background.is_ended:
            self._drain_due_s, self._drain_pause_s = asyncio.get_running_loop().time(), DRAIN_CHECK_S_MIN
            self.arm()

    def reset_drain_pause(self) -> None:
        """Reset the pause between checks of draining partitions to the shortest one."""
        self._drain_pause_s = DRAIN_CHECK_S_MIN

    def arm(self) -> None:
        """Set the timer for the work that is due first."""
        if not self._is_started or self._background.is_ended:
            return
        if self.handle is not None:
            self.handle.cancel()
        due_s = self._tick_due_s if self._is_quiet() else min(self._tick_due_s, self._repair_due_s)
        if not self._has_approached():
            due_s = min(due_s, self._drain_due_s)
        self.handle = asyncio.get_running_loop().call_at(due_s, self._wake, due_s)

    def _wake(self, now_s: float) -> None:
        """Start the work that is due."""
        now_s = max(now_s, asyncio.get_running_loop().time())
        check_s = self._settings.get(matching.PARTITION_CONFIG_CHECK_INTERVAL, self._scope)
        if now_s >= self._tick_due_s:
            self._tick_due_s = now_s + self._settings.get(matching.ADAPTIVE_SCALER_UPDATE_INTERVAL, self._scope)
            if self._is_tick_wanted() and (self._ticking is None or self._ticking.done()):
                self._ticking = self._background.begin(self._tick())
        if now_s >= self._repair_due_s:
            self._repair_due_s = now_s + check_s
            if not self._is_quiet() and (self._repairing is None or self._repairing.done()):
                self._repairing = self._background.begin(self._repair())
        if now_s >= self._drain_due_s and not self._has_approached():
            self._drain_due_s = now_s + self._drain_pause_s
            self._drain_pause_s = min(2 * self._drain_pause_s, max(DRAIN_CHECK_S_MIN, check_s))
            if self._approaching is None or self._approaching.done():
                self._approaching = self._background.begin(self._approach())
        self.arm()
