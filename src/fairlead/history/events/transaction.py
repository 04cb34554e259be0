"""One step of a run: the events that it writes, the tasks that it adds, and the state after it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from google.protobuf.message import Message
from temporalio.api.common.v1 import Link, Principal
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.sdk.v1 import EventGroupMarker, UserMetadata

from fairlead.api.limits import DEFAULT_LIMITS, Limits
from fairlead.api.times import set_timestamp
from fairlead.api.varints import varint
from fairlead.history.events.apply import apply
from fairlead.history.events.kinds import FLUSHED_LAST, NEVER_BUFFERED, WORKER_MAY_IGNORE, field_of, kind_of
from fairlead.history.state.codec import decode, encode
from fairlead.history.state.errors import StartEventNeeded
from fairlead.history.state.pending import ActivityProgress, PendingActivity, PendingChild
from fairlead.history.state.run import RunIdentity, RunState
from fairlead.history.state.tasks import AnyTask, UpsertVisibility

# Tag of an event in a serialized `History`: field 1, a message.
_EVENT_TAG = b"\x0a"
NO_RULES: Mapping[str, bytes] = {}
# Bytes that each event adds to a batch in addition to its own size: tag, length and the task id, which is assigned
# last.
_EVENT_FRAME_BYTES = 8
_ACTIVITY_ENDS = frozenset(kind for kind in FLUSHED_LAST if "_ACTIVITY_" in EventType.Name(kind))
_CHILD_ENDS = frozenset(kind for kind in FLUSHED_LAST if "_CHILD_" in EventType.Name(kind))


class Batch(NamedTuple):
    """The events of one step as stored. `payload` is a serialized `History`; it is empty if there are no events."""

    first_event_id: int
    last_event_id: int
    payload: bytes

    def cut(self, events: Sequence[HistoryEvent]) -> "list[Batch]":
        """Split the batch by version, and before the start of a workflow task.

        Events that a reset copies may have older versions. A reset can begin only between two batches; if a workflow
        task was scheduled and started in one step, a reset may have to begin between these two events.
        """
        if not events:
            return [self]
        if events[0].version == events[-1].version:
            return _cut_before_start(self, events)
        parts = [list(part) for _, part in groupby(events, key=lambda event: event.version)]
        cut = [Batch(part[0].event_id, part[-1].event_id, History(events=part).SerializeToString()) for part in parts]
        return [*cut[:-1], *_cut_before_start(cut[-1], parts[-1])]


def _cut_before_start(batch: Batch, events: Sequence[HistoryEvent]) -> list[Batch]:
    last = events[-1]
    if len(events) == 1 or last.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED:
        return [batch]
    # In a serialized History, the events follow one another.
    started = History(events=[last]).SerializeToString()
    before = Batch(batch.first_event_id, last.event_id - 1, batch.payload[: -len(started)])
    return [before, Batch(last.event_id, last.event_id, started)]


def history_bytes(events: Sequence[HistoryEvent]) -> bytes:
    """Serialize a `History` by joining its serialized events: building the message first would copy all events."""
    parts: list[bytes] = []
    for event in events:
        encoded = event.SerializeToString()
        parts += (_EVENT_TAG, varint(len(encoded)), encoded)
    return b"".join(parts)


class Checkpoint(NamedTuple):
    """A point within a step to which the step can be rolled back."""

    state: bytes
    events: int
    tasks: int
    buffer: tuple[HistoryEvent, ...]


class Transaction:
    """Collects the changes of a step. A rollback replaces `state`: read it from the transaction after the step.

    `version` is the namespace's version, or the version of the run's last event if it is higher. `new_id` makes unique
    ids, `uniform` makes random numbers in [0, 1). `start_event` is the run's first event; a step that closes the run
    may need it (`needs_start_event`). `workflow_rules` are the serialized rules of the namespace, by their ids.
    """

    __slots__ = (
        "_buffer",
        "events",
        "has_progress",
        "limits",
        "new_id",
        "new_run",
        "now_ns",
        "principal",
        "retention_ns",
        "start_event",
        "state",
        "tasks",
        "uniform",
        "version",
        "workflow_rules",
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
        workflow_rules: Mapping[str, bytes] = NO_RULES,
        principal: Principal | None = None,
    ) -> None:
        """`principal` is the authenticated caller that causes the events; None if it is not known."""
        self.principal = principal
        self.state = state
        self.now_ns = now_ns
        self.version = version
        self.new_id = new_id
        self.uniform = uniform
        self.limits = limits
        self.retention_ns = retention_ns
        self.start_event = start_event
        self.workflow_rules = workflow_rules
        self.events: list[HistoryEvent] = []
        self.tasks: list[AnyTask] = []
        # The next run of the chain; written in the same commit.
        self.new_run: Transaction | None = None
        # Whether an activity's progress changed without an event.
        self.has_progress = False
        self._buffer: list[HistoryEvent] = []

    def add(
        self,
        attributes: Message,
        *,
        time_ns: int | None = None,
        user_metadata: UserMetadata | None = None,
        links: Collection[Link] = (),
        group_markers: Collection[EventGroupMarker] = (),
    ) -> HistoryEvent:
        """Write an event; the type of `attributes` determines its type. The id of a buffered event is 0.

        Events from outside the workflow are buffered: they are written after the events of the workflow's own commands
        in the same step, and only when no worker has a workflow task.
        """
        kind = kind_of(attributes)
        event = HistoryEvent(event_type=kind.event_type, version=self.version)
        set_timestamp(event.event_time, self.now_ns if time_ns is None else time_ns)
        getattr(event, kind.field).CopyFrom(attributes)
        # Check before each call: most events have none of these, and a call without values costs as much as one with
        # values.
        if kind.event_type in WORKER_MAY_IGNORE:
            event.worker_may_ignore = True
        if user_metadata is not None:
            event.user_metadata.CopyFrom(user_metadata)
        if links:
            event.links.extend(links)
        if group_markers:
            event.event_group_markers.extend(group_markers)
        if self.principal is not None:
            event.principal.CopyFrom(self.principal)
        if kind.event_type in NEVER_BUFFERED:
            self._append(event)
        else:
            self._buffer.append(event)
        return event

    def _append(self, event: HistoryEvent) -> None:
        event.event_id = self.state.next_event_id
        apply(self.state, event)
        self.events.append(event)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED:
            # The visibility row has the versioning override.
            self.show()

    @property
    def buffered_count(self) -> int:
        """Number of buffered events."""
        return len(self.state.live.buffered) + len(self._buffer)

    @property
    def unwritten_bytes(self) -> int:
        """Approximate number of bytes that the events of this step have added to the history so far."""
        return sum(event.ByteSize() + _EVENT_FRAME_BYTES for event in self.events)

    @property
    def excess(self) -> str:
        """The limit that an open run exceeds, in Temporal's words; empty if it may continue. Read it before `finish`.

        Compares the size before the step, and the number of events without buffered events.
        """
        state = self.state
        if not state.is_open:
            return ""
        if state.live.history_size_bytes > self.limits.history_size_max:
            return "Workflow history size exceeds limit."
        if state.next_event_id - 1 > self.limits.history_count_max:
            return "Workflow history count exceeds limit."
        return ""

    @property
    def is_long(self) -> bool:
        """Whether the step adds events to an open run above a warning limit; compares the same values as `excess`."""
        state, limits = self.state, self.limits
        if (
            state.live.history_size_bytes <= limits.history_size_warn
            and state.next_event_id - 1 <= limits.history_count_warn
        ):
            return False
        return state.is_open and bool(self.events or self._buffer)

    @property
    def last_event_name(self) -> str:
        """The type of the last event that the step adds, in Go's spelling; empty without events."""
        events = self._buffer or self.events
        if not events:
            return ""
        words = EventType.Name(events[-1].event_type).removeprefix("EVENT_TYPE_").split("_")
        return "".join(word.capitalize() for word in words)

    def flush(self) -> bool:
        """Write the buffered events in the order that workers expect; returns whether there were any."""
        live = self.state.live
        live.ending.clear()
        live.cancel_buffered = False
        if not live.buffered and not self._buffer:
            return False
        waiting = [*map(HistoryEvent.FromString, live.buffered), *self._buffer]
        live.buffered = []
        self._buffer = []
        if not self.state.is_open:
            return False
        for event in sorted(waiting, key=lambda event: event.event_type in FLUSHED_LAST):
            _wire(self.state, event)
            # A failover may have changed the namespace's version after the event was buffered.
            event.version = self.version
            self._append(event)
        return bool(waiting)

    def take_buffered(self, matches: Callable[[HistoryEvent], bool]) -> HistoryEvent | None:
        """Remove and return the first buffered event that matches."""
        live = self.state.live
        for position, stored in enumerate(live.buffered):
            event = HistoryEvent.FromString(stored)
            if matches(event):
                live.buffered = live.buffered[:position] + live.buffered[position + 1 :]
                return event
        for event in self._buffer:
            if matches(event):
                self._buffer.remove(event)
                return event
        return None

    def add_task(self, task: AnyTask) -> None:
        """Add a task to be executed after the commit."""
        self.tasks.append(task)

    def progressed(self, progress: ActivityProgress) -> None:
        """Record a change of an activity without an event, so that it is replicated to other clusters."""
        progress.changed_version = self.version
        progress.changes += 1
        self.has_progress = True

    def show(self) -> None:
        """Add the task that writes the visibility row, at most once per step."""
        task = UpsertVisibility(self.version)
        if task not in self.tasks:
            self.tasks.append(task)

    def checkpoint(self) -> Checkpoint:
        """Record the step so far, for `roll_back`."""
        return Checkpoint(encode(self.state), len(self.events), len(self.tasks), tuple(self._buffer))

    def roll_back(self, checkpoint: Checkpoint) -> None:
        """Return to the checkpoint: drop the new run, and restore buffered events that were taken after it.

        `state` is a new object afterwards.
        """
        self.state = decode(checkpoint.state)
        del self.events[checkpoint.events :]
        del self.tasks[checkpoint.tasks :]
        self._buffer = [*checkpoint.buffer]
        self.new_run = None

    def begin_new_run(self, run_id: str) -> "Transaction":
        """Begin the step of the next run; it has no events yet."""
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
            workflow_rules=self.workflow_rules,
            principal=self.principal,
        )
        return self.new_run

    def required_start_event(self) -> HistoryEvent:
        """The run's first event, from this step or from the caller; raises `StartEventNeeded` if there is neither."""
        if self.start_event is not None:
            return self.start_event
        if self.events and self.events[0].event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            return self.events[0]
        raise StartEventNeeded(
            f"run {self.state.identity.run_id} starts a new run: load its first event and repeat the step"
        )

    def finish(self, first_task_id: int = 0) -> Batch:
        """End the step: flush the buffer if no worker has a workflow task, assign task ids, and return the batch to
        store.

        Encode the state after this call: `finish` updates the history size and the buffered events.
        """
        live = self.state.live
        if not self.state.has_started_task or not self.state.is_open:
            self.flush()
        if self._buffer:
            live.buffered = [*live.buffered, *(event.SerializeToString() for event in self._buffer)]
            self._buffer = []
        if not self.events:
            return Batch(0, 0, b"")
        if first_task_id:
            for task_id, event in enumerate(self.events, start=first_task_id):
                event.task_id = task_id
            self.state.last_event_task_id = task_id
        payload = history_bytes(self.events)
        live.history_size_bytes += len(payload)
        return Batch(self.events[0].event_id, self.events[-1].event_id, payload)


def needs_start_event(state: RunState) -> bool:
    """Whether a step that closes this run may start the next run and so needs the first event."""
    origin = state.started
    return origin.retry_policy is not None or bool(origin.cron_schedule)


def _wire(state: RunState, event: HistoryEvent) -> None:
    """Set the started event id in an event that ends an activity or child: a buffered start has no id earlier."""
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
