"""Updates of a run that are only in memory, and the callers that wait for their outcomes.

Until a worker accepts an update, the history has no event of it. The update waits here for a workflow task, and the
worker that gets the task accepts or rejects it. After the acceptance, only its waiting callers are here.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from temporalio.api.enums.v1 import ResourceExhaustedCause
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage as Stage
from temporalio.api.errordetails.v1 import WorkflowNotReadyFailure
from temporalio.api.failure.v1 import Failure
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Outcome, Request

from fairlead.aio.admission import end_turn
from fairlead.api.error_details import exhausted, packed
from fairlead.api.errors import FailedPrecondition, NotFound
from fairlead.core.errors import FairleadError, RetryElsewhere
from fairlead.history.commands import UpdateAccepted, UpdateNews, UpdateRejected
from fairlead.history.state import Limits, RunState, outcomes
from fairlead.history.state.errors import workflow_closing

ADMITTED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
ACCEPTED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
COMPLETED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


class UpdateMoved(RetryElsewhere):
    """Another host owns the run now. If the request is sent again, that host finds the update or admits it."""


class UpdateStatus(NamedTuple):
    """The stage of an update. `was_accepted` is False if the outcome is a rejection."""

    stage: Stage.ValueType
    outcome: Outcome | None = None
    was_accepted: bool = True


class UpdatePhase(IntEnum):
    """How far an update without an outcome has come."""

    WAITING = 1  # It waits for a workflow task.
    SENT = 2  # A worker has it.
    ACCEPTED = 3  # The worker has accepted it.


class Update:
    """An update without an outcome.

    `request` is None if an event contains it, or the worker has accepted the update.
    """

    __slots__ = ("_changed", "_error", "_waiting", "phase", "request", "status", "update_id")

    def __init__(self, update_id: str, request: Request | None, phase: UpdatePhase) -> None:
        self.update_id = update_id
        self.request = request
        self.phase = phase
        self.status = UpdateStatus(ACCEPTED if phase is UpdatePhase.ACCEPTED else ADMITTED)
        self._error: FairleadError | None = None
        self._changed = asyncio.Event()
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the update."""
        return self._waiting > 0

    async def wait(self, stage: Stage.ValueType, timeout_s: float) -> UpdateStatus:
        """Wait until the update reaches `stage`, at most `timeout_s`; return its status then."""
        with self._awaited():
            end_s = asyncio.get_running_loop().time() + timeout_s
            while self._error is None and self.status.stage < stage:
                left_s = end_s - asyncio.get_running_loop().time()
                end_turn()
                try:
                    async with asyncio.timeout(left_s):
                        await self._changed.wait()
                except TimeoutError:
                    break
            if self._error is not None:
                raise self._error
            return self.status

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def move(self, status: UpdateStatus) -> None:
        """Set the status, and wake the waiting callers."""
        self.status = status
        self._notify()

    def abort(self, error: FairleadError) -> None:
        """End the update with an error for the waiting callers."""
        self._error = error
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class UpdateRegistry:
    """The updates of one run that have no outcome yet. Callers must hold the lock of its workflow id."""

    __slots__ = ("_updates",)

    def __init__(self) -> None:
        # In order of admission.
        self._updates: dict[str, Update] = {}

    @property
    def is_idle(self) -> bool:
        """Whether this registry can be dropped: no caller waits, and the history has all updates."""
        return not any(update.is_awaited or _is_in_memory(update) for update in self._updates.values())

    @property
    def has_unsent(self) -> bool:
        """Whether updates wait for a workflow task."""
        return any(
            update.phase is UpdatePhase.WAITING and update.request is not None for update in self._updates.values()
        )

    def requests(self) -> Mapping[str, Request]:
        """The requests of the updates that are not accepted yet, by update id."""
        return {update.update_id: update.request for update in self._updates.values() if update.request is not None}

    def find(self, state: RunState, update_id: str) -> Update | None:
        """An update without an outcome; None if the update is unknown or has an outcome."""
        update = self._updates.get(update_id)
        record = state.updates.get(update_id)
        if update is not None or record is None or record.completed_event_id or not state.is_open:
            return update
        phase = UpdatePhase.ACCEPTED if record.accepted_event_id else UpdatePhase.WAITING
        update = self._updates[update_id] = Update(update_id, None, phase)
        return update

    def admit(self, state: RunState, request: Request, limits: Limits) -> Update:
        """Admit a new update; raise an API error if the run has reached its limits of updates."""
        on_their_way = sum(not record.completed_event_id for record in state.updates.values())
        only_here = sum(update_id not in state.updates for update_id in self._updates)
        if 0 < limits.updates_in_flight_max <= on_their_way + only_here:
            raise exhausted(
                f"limit on number of concurrent in-flight updates has been reached ({limits.updates_in_flight_max})",
                ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT,
            )
        if 0 < limits.updates_max <= len(state.updates) + only_here:
            raise FailedPrecondition(f"limit on number of total updates has been reached ({limits.updates_max})")
        update_id = request.meta.update_id
        update = self._updates[update_id] = Update(update_id, request, UpdatePhase.WAITING)
        return update

    def attach(self, update: Update, request: Request) -> None:
        """Add the callbacks of another request to an update that no worker has accepted."""
        if update.request is not None and update.request.request_id != request.request_id:
            known = list(update.request.completion_callbacks)
            update.request.completion_callbacks.extend(
                callback for callback in request.completion_callbacks if callback not in known
            )

    def to_send(self, sequencing_event_id: int, *, resend: bool = False) -> list[Message]:
        """The update messages to send with a workflow task; with `resend`, also messages that another worker got."""
        messages = []
        for update in self._updates.values():
            if update.phase is UpdatePhase.WAITING or (resend and update.phase is UpdatePhase.SENT):
                update.phase = UpdatePhase.SENT
                if update.request is not None:
                    messages.append(_message(update.update_id, update.request, sequencing_event_id))
        return messages

    def on_news(self, news: UpdateNews) -> None:
        """Update the registry, because an acceptance, rejection or outcome of an update is durable."""
        update = self._updates.get(news.update_id)
        if update is None:
            return
        if isinstance(news, UpdateAccepted):
            update.phase = UpdatePhase.ACCEPTED
            update.request = None
            update.move(UpdateStatus(ACCEPTED))
            return
        del self._updates[news.update_id]
        if isinstance(news, UpdateRejected):
            update.move(UpdateStatus(COMPLETED, Outcome(failure=news.failure), was_accepted=False))
        else:
            update.move(UpdateStatus(COMPLETED, news.outcome))

    def reject_unprocessed(self) -> None:
        """Reject the sent updates that a completed workflow task ignored, because its worker does not support updates.

        Don't call this for a workflow task heartbeat: the worker may still respond to the updates later.
        """
        for update in self._take(UpdatePhase.SENT):
            update.move(UpdateStatus(COMPLETED, Outcome(failure=_unprocessed()), was_accepted=False))

    def on_task_failed(self, *, was_rejected: bool = False) -> None:
        """Send the updates of a failed or timed-out workflow task again with the next task.

        `was_rejected` is true if the server rejected the worker's completion of the task. The worker would complete the
        task in the same way again, so its updates are aborted.
        """
        if was_rejected:
            for update in self._take(UpdatePhase.SENT):
                update.abort(
                    not_ready("Unable to perform workflow execution update due to unexpected workflow task failure.")
                )
        for update in self._updates.values():
            if update.phase is UpdatePhase.SENT:
                update.phase = UpdatePhase.WAITING

    def on_closed(self, state: RunState) -> None:
        """End all updates, because the run has closed. If a new run follows, callers may send them to it."""
        for update in self._take(UpdatePhase.ACCEPTED):
            update.move(closed_before_outcome())
        for update in self._take(UpdatePhase.WAITING, UpdatePhase.SENT):
            update.abort(
                workflow_closing() if state.new_run_id else NotFound("workflow update was aborted by closing workflow")
            )

    def abandon(self) -> None:
        """Abort all updates, because another host owns the run."""
        for update in self._take(*UpdatePhase):
            update.abort(UpdateMoved(f"another host owns the run of update {update.update_id!r} now: send it again"))

    def _take(self, *phases: UpdatePhase) -> list[Update]:
        taken = [update for update in self._updates.values() if update.phase in phases]
        for update in taken:
            del self._updates[update.update_id]
        return taken


def not_ready(message: str) -> FailedPrecondition:
    """The API error for a request that the workflow can't handle in its present state."""
    return FailedPrecondition(message, packed(WorkflowNotReadyFailure()))


def closed_before_outcome() -> UpdateStatus:
    """The outcome of an accepted update whose run has closed: callers that saw the acceptance need an outcome."""
    return UpdateStatus(COMPLETED, outcomes.closed_before_outcome(), was_accepted=False)


def _is_in_memory(update: Update) -> bool:
    return update.phase is not UpdatePhase.ACCEPTED and update.request is not None


def _message(update_id: str, request: Request, sequencing_event_id: int) -> Message:
    message = Message(id=f"{update_id}/request", protocol_instance_id=update_id, event_id=sequencing_event_id)
    message.body.Pack(request)
    return message


def _unprocessed() -> Failure:
    return outcomes.server_failure(
        "UnprocessedUpdate",
        "Workflow Update is rejected because it wasn't processed by worker. Probably, Workflow Update is not "
        "supported by the worker.",
    )
