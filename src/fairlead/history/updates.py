"""Updates of a run that only memory knows, and who waits for them.

Until a worker has accepted an update, no event tells of it: it waits here for a workflow task, goes to the worker with
it, and comes back accepted or rejected. From then on the history knows it, and here are only those who wait.
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

from fairlead.core.errors import FairleadError, RetryElsewhere
from fairlead.history.commands import UpdateAccepted, UpdateNews, UpdateRejected
from fairlead.history.refusals import Refused, exhausted, failed_precondition, not_found, refused
from fairlead.history.state import RunState
from fairlead.rpc import Code

IN_FLIGHT_MAX = 10
TOTAL_MAX = 2_000

ADMITTED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ADMITTED
ACCEPTED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_ACCEPTED
COMPLETED = Stage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED


class UpdateMoved(RetryElsewhere):
    """Another host has the run now: the same request again finds the update there, or begins it anew."""


class UpdateStatus(NamedTuple):
    """How far an update has come. `was_accepted` tells an outcome of the workflow from a refusal."""

    stage: Stage.ValueType
    outcome: Outcome | None = None
    was_accepted: bool = True


class Place(IntEnum):
    """Where an update is that has no outcome yet."""

    WAITING = 1  # For a workflow task.
    SENT = 2  # With a worker.
    ACCEPTED = 3  # In the history.


class Update:
    """One update on its way. `request` is None if an event tells the worker of it, or the worker has it already."""

    __slots__ = ("_changed", "_error", "_waiting", "place", "request", "status", "update_id")

    def __init__(self, update_id: str, request: Request | None, place: Place) -> None:
        self.update_id = update_id
        self.request = request
        self.place = place
        self.status = UpdateStatus(ACCEPTED if place is Place.ACCEPTED else ADMITTED)
        self._error: FairleadError | None = None
        self._changed = asyncio.Event()
        self._waiting = 0

    @property
    def is_awaited(self) -> bool:
        """Whether somebody wants to know what becomes of it."""
        return self._waiting > 0

    async def wait(self, stage: Stage.ValueType, timeout_s: float) -> UpdateStatus:
        """How far it has come when it has come to `stage`, or when the time is over."""
        with self._awaited():
            end_s = asyncio.get_running_loop().time() + timeout_s
            while self._error is None and self.status.stage < stage:
                left_s = end_s - asyncio.get_running_loop().time()
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
        """Tell those who wait how far it has come."""
        self.status = status
        self._tell()

    def abort(self, error: FairleadError) -> None:
        """Tell those who wait that nothing will come of it."""
        self._error = error
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class UpdateRegistry:
    """The updates of one run that are on their way. To be used with the lock of its workflow id."""

    __slots__ = ("_updates",)

    def __init__(self) -> None:
        # In the order in which they came.
        self._updates: dict[str, Update] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost with this registry: what is accepted is in the history as well."""
        return not any(update.is_awaited or _is_in_memory(update) for update in self._updates.values())

    @property
    def has_unsent(self) -> bool:
        """Whether updates wait for a workflow task."""
        return any(update.place is Place.WAITING and update.request is not None for update in self._updates.values())

    def requests(self) -> Mapping[str, Request]:
        """The requests of those that are not accepted yet."""
        return {update.update_id: update.request for update in self._updates.values() if update.request is not None}

    def find(self, state: RunState, update_id: str) -> Update | None:
        """An update that has no outcome yet; None if it is not known, or has one."""
        update = self._updates.get(update_id)
        record = state.updates.get(update_id)
        if update is not None or record is None or record.completed_event_id or not state.is_open:
            return update
        place = Place.ACCEPTED if record.accepted_event_id else Place.WAITING
        update = self._updates[update_id] = Update(update_id, None, place)
        return update

    def admit(self, state: RunState, request: Request) -> Update:
        """Let an update in that is not known; refused where there are as many as there may be."""
        on_their_way = sum(not record.completed_event_id for record in state.updates.values())
        only_here = sum(update_id not in state.updates for update_id in self._updates)
        if on_their_way + only_here >= IN_FLIGHT_MAX:
            raise exhausted(
                f"limit on number of concurrent in-flight updates has been reached ({IN_FLIGHT_MAX})",
                ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_CONCURRENT_LIMIT,
            )
        if len(state.updates) + only_here >= TOTAL_MAX:
            raise failed_precondition(f"limit on number of total updates has been reached ({TOTAL_MAX})")
        update_id = request.meta.update_id
        update = self._updates[update_id] = Update(update_id, request, Place.WAITING)
        return update

    def to_send(self, sequencing_event_id: int, *, resend: bool = False) -> list[Message]:
        """The messages for a worker that is given a workflow task; `resend` those too that another one was given."""
        messages = []
        for update in self._updates.values():
            if update.place is Place.WAITING or (resend and update.place is Place.SENT):
                update.place = Place.SENT
                if update.request is not None:
                    messages.append(_message(update.update_id, update.request, sequencing_event_id))
        return messages

    def on_news(self, news: UpdateNews) -> None:
        """What the worker said of an update is durable."""
        update = self._updates.get(news.update_id)
        if update is None:
            return
        if isinstance(news, UpdateAccepted):
            update.place = Place.ACCEPTED
            update.request = None
            update.move(UpdateStatus(ACCEPTED))
            return
        del self._updates[news.update_id]
        if isinstance(news, UpdateRejected):
            update.move(UpdateStatus(COMPLETED, Outcome(failure=news.failure), was_accepted=False))
        else:
            update.move(UpdateStatus(COMPLETED, news.outcome))

    def reject_unprocessed(self) -> None:
        """The worker has answered, and said nothing of some that it was given: it does not know of updates.

        Not to be called where it only keeps its claim on the run alive: then it may say so later.
        """
        for update in self._take(Place.SENT):
            update.move(UpdateStatus(COMPLETED, Outcome(failure=_unprocessed()), was_accepted=False))

    def on_task_failed(self, *, was_refused: bool = False) -> None:
        """The task with which some were given to a worker has failed, or its time ran out: the next one takes them.

        `was_refused`: the worker did answer, and the server could not carry it out. It would answer the same again,
        so nothing comes of those.
        """
        if was_refused:
            for update in self._take(Place.SENT):
                update.abort(
                    not_ready("Unable to perform workflow execution update due to unexpected workflow task failure.")
                )
        for update in self._updates.values():
            if update.place is Place.SENT:
                update.place = Place.WAITING

    def on_closed(self, state: RunState) -> None:
        """The run has ended: nothing comes of any. Where another run goes on, the same request may be made of that."""
        for update in self._take(Place.ACCEPTED):
            update.move(closed_before_outcome())
        for update in self._take(Place.WAITING, Place.SENT):
            update.abort(
                _closing() if state.new_run_id else not_found("workflow update was aborted by closing workflow")
            )

    def abandon(self) -> None:
        """The run is another host's."""
        for update in self._take(*Place):
            update.abort(UpdateMoved(f"update {update.update_id!r} waits at another host now: ask again"))

    def _take(self, *places: Place) -> list[Update]:
        taken = [update for update in self._updates.values() if update.place in places]
        for update in taken:
            del self._updates[update.update_id]
        return taken


def not_ready(message: str) -> Refused:
    """Nothing comes of a request while the workflow is as it is."""
    return refused(Code.FAILED_PRECONDITION, message, WorkflowNotReadyFailure())


def closed_before_outcome() -> UpdateStatus:
    """How an accepted update ends whose run has ended: whoever knows of the acceptance waits for an outcome."""
    failure = _server_failure(
        "AcceptedUpdateCompletedWorkflow",
        "Workflow Update failed because the Workflow completed before the Update completed.",
    )
    return UpdateStatus(COMPLETED, Outcome(failure=failure), was_accepted=False)


def _is_in_memory(update: Update) -> bool:
    return update.place is not Place.ACCEPTED and update.request is not None


def _message(update_id: str, request: Request, sequencing_event_id: int) -> Message:
    message = Message(id=f"{update_id}/request", protocol_instance_id=update_id, event_id=sequencing_event_id)
    message.body.Pack(request)
    return message


def _closing() -> Refused:
    return exhausted(
        "workflow operation can not be applied because workflow is closing",
        ResourceExhaustedCause.RESOURCE_EXHAUSTED_CAUSE_BUSY_WORKFLOW,
    )


def _unprocessed() -> Failure:
    return _server_failure(
        "UnprocessedUpdate",
        "Workflow Update is rejected because it wasn't processed by worker. Probably, Workflow Update is not "
        "supported by the worker.",
    )


def _server_failure(kind: str, message: str) -> Failure:
    failure = Failure(message=message, source="Server")
    failure.application_failure_info.type = kind
    failure.application_failure_info.non_retryable = True
    return failure
