"""Decides which run of a workflow id is current after another cluster has started or extended a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.core.versions import (
    ArrivingRun,
    BecomeCurrent,
    CurrentExecution,
    ExecutionState,
    RunOrder,
    StayBehind,
    Suppression,
    resolve_current_run,
)
from fairlead.history.events import terminate
from fairlead.history.events.kinds import NEWER_RUN
from fairlead.history.ndc.buffered_events import own_version
from fairlead.history.shard.commit import Step, Written
from fairlead.history.shard.run_cache import LoadedRun
from fairlead.history.state import RunState, decode, encode
from fairlead.history.state.run import RUNNING
from fairlead.history.state.tasks import Reapply
from fairlead.storage.commit import Absent, CurrentWrite, IsRun
from fairlead.storage.history import CurrentRun

if TYPE_CHECKING:
    from fairlead.history.shard.shard import Shard

_REASON = "a newer run of the workflow came from another cluster"


def order_of(run: LoadedRun) -> RunOrder:
    """The run's position among the runs of its workflow id."""
    return RunOrder(run.state.last_version, run.state.last_event_task_id, run.key.run_id)


def execution_state_of(state: RunState) -> ExecutionState:
    """Whether a stored run is running, completed or a zombie."""
    if not state.is_open:
        return ExecutionState.COMPLETED
    return ExecutionState.ZOMBIE if state.is_zombie else ExecutionState.RUNNING


class CurrentRunResolution:
    """The new position of a replicated run, and of the run that was current before it."""

    def __init__(self, run: LoadedRun, before: LoadedRun | None, current: LoadedRun | None) -> None:
        """`before` is the run's stored state, None if it is new.

        `current` is the current run, None if it is this run.
        """
        self._run = run
        self._before = before
        self._current = current
        self._decision: BecomeCurrent | StayBehind = StayBehind(ExecutionState.ZOMBIE)

    def decide(self, shard: Shard, *, is_current: bool, rebuilt: bool) -> None:
        """Decide the position. `is_current` is true if the run was already current."""
        clusters = shard.services.clusters
        known = self._before if is_current else self._current
        state = self._run.state
        arriving = ArrivingRun(
            order_of(self._run),
            ExecutionState.RUNNING if state.is_open else ExecutionState.COMPLETED,
            stored=None if self._before is None else execution_state_of(self._before.state),
            rebuilt=rebuilt,
        )
        self._decision = resolve_current_run(
            arriving,
            current=None if known is None else CurrentExecution(order_of(known), execution_state_of(known.state)),
            here=clusters.here,
            clusters=clusters.versions,
        )
        state.live.is_zombie = self._decision.state is ExecutionState.ZOMBIE

    @property
    def to_flush(self) -> LoadedRun | None:
        """The current run, if it must be stopped, and its buffered events have a higher version than its last event."""
        current = self._current
        if current is None or self._suppression is None or not current.state.live.buffered:
            return None
        return current if own_version(current.state) > current.state.last_version else None

    @property
    def _suppression(self) -> Suppression | None:
        return self._decision.suppress if isinstance(self._decision, BecomeCurrent) else None

    @property
    def ids(self) -> int:
        """Upper bound of the number of ids that stopping the current run takes."""
        return 32 + (0 if self._current is None else len(self._current.state.live.buffered))

    def add_to(self, written: Written, shard: Shard) -> None:
        """Terminate the previous current run or make it a zombie, if that was decided."""
        current, suppression = self._current, self._suppression
        if current is None or suppression is None:
            return
        # Work on a copy: if the write fails, the existing run continues unchanged.
        stopped = LoadedRun(current.key, decode(encode(current.state)), current.db_version)
        if suppression is Suppression.MAKE_ZOMBIE:
            stopped.batches, stopped.bytes = [*current.batches], current.bytes
            stopped.state.live.is_zombie = True
            written.add_run(stopped)
            written.show(stopped.state)
            return
        transaction = shard.transaction(written.namespace, stopped.state)
        transaction.version = stopped.state.last_version
        terminate(transaction, reason=_REASON, identity=NEWER_RUN)
        transaction.add_task(Reapply(transaction.version))
        waiting = len(transaction.events) + transaction.buffered_count
        written.add_step(Step(stopped, transaction), first_id=shard.ids.take(waiting + 1))

    def current_write(self, present: CurrentRun | None) -> list[CurrentWrite]:
        """The write of the current-run row, if it changes; `present` is the stored row."""
        if not isinstance(self._decision, BecomeCurrent):
            return []
        state = self._run.state
        row = CurrentRun(
            *self._run.key,
            state.live.start_request_id,
            # The row does not distinguish paused from running, because both occupy the workflow id.
            RUNNING if state.is_open else state.status,
            state.last_version,
        )
        if row == present:
            return []
        return [CurrentWrite(*row, Absent() if present is None else IsRun(present.run_id))]
