"""One step of a run: the events it writes, the tasks that follow from them, and the state after it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.sdk.v1 import EventGroupMarker, UserMetadata

from fairlead.history.events.apply import apply
from fairlead.history.events.kinds import FLUSHED_LAST, NEVER_BUFFERED, WORKER_MAY_IGNORE, field_of, kind_of
from fairlead.history.state.codec import decode, encode
from fairlead.history.state.errors import StartEventNeeded
from fairlead.history.state.limits import DEFAULT_LIMITS, Limits
from fairlead.history.state.pending import ActivityProgress, PendingActivity, PendingChild
from fairlead.history.state.run import RunIdentity, RunState
from fairlead.history.state.tasks import AnyTask, UpsertVisibility
from fairlead.history.state.times import to_timestamp

_ACTIVITY_ENDS = frozenset(kind for kind in FLUSHED_LAST if "_ACTIVITY_" in EventType.Name(kind))
_CHILD_ENDS = frozenset(kind for kind in FLUSHED_LAST if "_CHILD_" in EventType.Name(kind))


class Batch(NamedTuple):
    """The events of one step as they are stored: `payload` is a serialized `History`, empty if there are none."""

    first_event_id: int
    last_event_id: int
    payload: bytes

    def cut_by_version(self, events: Sequence[HistoryEvent]) -> "list[Batch]":
        """The same as one batch for each version: where a reset writes events anew, these may be older ones."""
        if not events or events[0].version == events[-1].version:
            return [self]
        parts = [list(part) for _, part in groupby(events, key=lambda event: event.version)]
        return [Batch(part[0].event_id, part[-1].event_id, History(events=part).SerializeToString()) for part in parts]


class Checkpoint(NamedTuple):
    """A moment within a step to which it can go back."""

    state: bytes
    events: int
    tasks: int
    buffer: tuple[HistoryEvent, ...]


class Transaction:
    """Collects what a step does. `state` may be another object after a rollback: read it here when the step is over.

    `version` is the namespace's, or the run's last one if that is higher. `new_id` makes unique ids, `uniform` numbers
    in [0, 1). `start_event` is the run's first event; a step that ends the run may need it (`needs_start_event`).
    """

    __slots__ = (
        "_buffer",
        "events",
        "has_progress",
        "limits",
        "new_id",
        "new_run",
        "now_ns",
        "retention_ns",
        "start_event",
        "state",
        "tasks",
        "uniform",
        "version",
    )

    def __init__(
        self,
        state: RunState,
        *,
        now_ns: int,
        version: int,
        new_id: Callable[[], str],
        uniform: Callable[[], float] = lambda: 0.0,
        limits: Limits = DEFAULT_LIMITS,
        retention_ns: int = 0,
        start_event: HistoryEvent | None = None,
    ) -> None:
        self.state = state
        self.now_ns = now_ns
        self.version = version
        self.new_id = new_id
        self.uniform = uniform
        self.limits = limits
        self.retention_ns = retention_ns
        self.start_event = start_event
        self.events: list[HistoryEvent] = []
        self.tasks: list[AnyTask] = []
        # The run that takes over from this one, to be written in the same commit.
        self.new_run: Transaction | None = None
        # Whether activities have come further without an event.
        self.has_progress = False
        self._buffer: list[HistoryEvent] = []

    def add(
        self,
        attributes: Message,
        *,
        time_ns: int | None = None,
        user_metadata: UserMetadata | None = None,
        links: Iterable[Link] = (),
        group_markers: Iterable[EventGroupMarker] = (),
    ) -> HistoryEvent:
        """Write an event with these attributes, which say its type; its id is 0 if it has to wait first.

        Whatever comes from outside of the workflow is written after what the workflow itself does in the same step,
        and not before the end of the workflow task that a worker has.
        """
        kind = kind_of(attributes)
        event = HistoryEvent(
            event_type=kind.event_type,
            event_time=to_timestamp(self.now_ns if time_ns is None else time_ns),
            version=self.version,
            worker_may_ignore=kind.event_type in WORKER_MAY_IGNORE,
            user_metadata=user_metadata,
            links=links,
            event_group_markers=group_markers,
            **{kind.field: attributes},  # type: ignore[arg-type]
        )
        if kind.event_type in NEVER_BUFFERED:
            self._append(event)
        else:
            self._buffer.append(event)
        return event

    def _append(self, event: HistoryEvent) -> None:
        event.event_id = self.state.next_event_id
        apply(self.state, event)
        self.events.append(event)

    @property
    def buffered_count(self) -> int:
        """How many events wait."""
        return len(self.state.live.buffered) + len(self._buffer)

    def flush(self) -> bool:
        """Write the events that waited, in the order in which workers expect them; whether there were any."""
        live = self.state.live
        waiting = [*map(HistoryEvent.FromString, live.buffered), *self._buffer]
        live.buffered = []
        self._buffer = []
        live.ending.clear()
        live.cancel_buffered = False
        if not self.state.is_open:
            return False
        for event in sorted(waiting, key=lambda event: event.event_type in FLUSHED_LAST):
            _wire(self.state, event)
            # The namespace may have moved since the event came in; it is written now.
            event.version = self.version
            self._append(event)
        return bool(waiting)

    def take_buffered(self, matches: Callable[[HistoryEvent], bool]) -> HistoryEvent | None:
        """Remove the first waiting event that matches, as if it had not happened."""
        live = self.state.live
        for place, stored in enumerate(live.buffered):
            event = HistoryEvent.FromString(stored)
            if matches(event):
                live.buffered = live.buffered[:place] + live.buffered[place + 1 :]
                return event
        for event in self._buffer:
            if matches(event):
                self._buffer.remove(event)
                return event
        return None

    def add_task(self, task: AnyTask) -> None:
        """Leave something to be done after the step."""
        self.tasks.append(task)

    def progressed(self, progress: ActivityProgress) -> None:
        """An activity has come further, and no event says so: other clusters are to hear of it all the same."""
        progress.changed_version = self.version
        progress.changes += 1
        self.has_progress = True

    def show(self) -> None:
        """Let the visibility row be written anew, once a step."""
        task = UpsertVisibility(self.version)
        if task not in self.tasks:
            self.tasks.append(task)

    def checkpoint(self) -> Checkpoint:
        """Remember how everything is now."""
        return Checkpoint(encode(self.state), len(self.events), len(self.tasks), tuple(self._buffer))

    def roll_back(self, checkpoint: Checkpoint) -> None:
        """Make everything as it was, the new run undone; waiting events that were taken since are there again.

        `state` is another object from here on.
        """
        self.state = decode(checkpoint.state)
        del self.events[checkpoint.events :]
        del self.tasks[checkpoint.tasks :]
        self._buffer = [*checkpoint.buffer]
        self.new_run = None

    def begin_new_run(self, run_id: str) -> "Transaction":
        """The step of the run that takes over; its events are not yet there."""
        identity = self.state.identity
        new = RunIdentity(identity.namespace_id, identity.workflow_id, run_id, run_id, self.new_id())
        state = RunState(new)
        state.live.watchers = [*self.state.live.watchers]
        self.new_run = Transaction(
            state,
            now_ns=self.now_ns,
            version=self.version,
            new_id=self.new_id,
            uniform=self.uniform,
            limits=self.limits,
            retention_ns=self.retention_ns,
        )
        return self.new_run

    def required_start_event(self) -> HistoryEvent:
        """The first event, which is in this very step, or was to be brought along."""
        if self.start_event is not None:
            return self.start_event
        if self.events and self.events[0].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            return self.events[0]
        raise StartEventNeeded(f"run {self.state.identity.run_id} goes on in a new run: load its first event first")

    def finish(self, first_task_id: int = 0) -> Batch:
        """End the step: write what need not wait, number the events, and give what is to be stored.

        Call `encode` on the state afterwards: it counts the size of the history, and keeps what waits.
        """
        live = self.state.live
        if not self.state.has_started_task or not self.state.is_open:
            self.flush()
        live.buffered = [*live.buffered, *(event.SerializeToString() for event in self._buffer)]
        self._buffer = []
        if not self.events:
            return Batch(0, 0, b"")
        if first_task_id:
            for place, event in enumerate(self.events):
                event.task_id = first_task_id + place
            self.state.last_event_task_id = self.events[-1].task_id
        payload = History(events=self.events).SerializeToString()
        live.history_size_bytes += len(payload)
        return Batch(self.events[0].event_id, self.events[-1].event_id, payload)


def needs_start_event(state: RunState) -> bool:
    """Whether a step that ends this run may go on in another: then it is to be given the first event."""
    origin = state.started
    return origin.retry_policy is not None or bool(origin.cron_schedule)


def _wire(state: RunState, event: HistoryEvent) -> None:
    """Name the start that an end belongs to: its event has no id before it is written, and that was just now."""
    if event.event_type not in FLUSHED_LAST:
        return
    attributes = getattr(event, field_of(event.event_type))
    begun: PendingActivity | PendingChild | None = None
    if event.event_type in _ACTIVITY_ENDS:
        begun = state.activities.get(attributes.scheduled_event_id)
    elif event.event_type in _CHILD_ENDS:
        begun = state.children.get(attributes.initiated_event_id)
    if begun is not None:
        attributes.started_event_id = begun.started_event_id
