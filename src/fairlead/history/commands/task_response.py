"""A worker's response to a workflow task, with the state that the handlers of its commands share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import Message as AnyMessage
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import SearchAttributes
from temporalio.api.enums.v1 import CommandType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Outcome, Request

from fairlead.api.limits import LimitedSize
from fairlead.api.worker_versions import Version
from fairlead.history.events.transaction import Transaction


class UpdateAccepted(NamedTuple):
    """The event that accepts an update was written."""

    update_id: str
    event_id: int


class UpdateRejected(NamedTuple):
    """The workflow rejected an update; no event is written."""

    update_id: str
    failure: Failure


class UpdateCompleted(NamedTuple):
    """The event with an update's outcome was written."""

    update_id: str
    event_id: int
    outcome: Outcome


UpdateNews = UpdateAccepted | UpdateRejected | UpdateCompleted


def _no_warning(_kind: LimitedSize, _size: int, _command: CommandType.ValueType) -> None:
    pass


def _no_problem(_attributes: SearchAttributes) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class CommandDependencies:
    """Facts that command handlers need besides the run's state; they do not change while a response is processed.

    `namespace_ids` returns the id of a namespace by its name, None if there is no such namespace. `updates` are the
    requests that were delivered with the task, by their ids. `search_attributes_problem` returns the problem with
    search attributes, or None. `nexus_endpoints` maps the names of the existing endpoints in the response to their ids.
    The server's own endpoint has an empty id. `warn_of_size` is called with each size above a limit or a warning limit.
    """

    namespace: str
    namespace_ids: Callable[[str], str | None]
    updates: Mapping[str, Request] = field(default_factory=dict)
    search_attributes_problem: Callable[[SearchAttributes], str | None] = _no_problem
    warn_of_size: Callable[[LimitedSize, int, CommandType.ValueType], None] = _no_warning
    cross_namespace_commands: bool = False
    nexus_endpoints: Mapping[str, str] = field(default_factory=dict)
    # The version to which the run would move if it were not pinned, and the revision of the routing.
    declined_target: tuple[Version, int] | None = None


@dataclass(slots=True)
class TaskResponse:
    """The response, with the results of the commands handled so far."""

    transaction: Transaction
    dependencies: CommandDependencies
    completed_event_id: int
    identity: str
    messages: dict[str, Message]
    # Whether there are buffered events, which the worker has not seen; such a worker must not close the run.
    has_unseen: bool
    # The type of the command that is being handled; messages without a command count as PROTOCOL_MESSAGE.
    command_type: CommandType.ValueType = CommandType.COMMAND_TYPE_PROTOCOL_MESSAGE
    started_children: set[str] = field(default_factory=set)
    eager_activities: list[int] = field(default_factory=list)
    update_news: list[UpdateNews] = field(default_factory=list)
    needs_task: bool = False

    def add(self, command: Command, attributes: AnyMessage) -> HistoryEvent:
        """Write the event of a command, with the worker's user metadata and group markers."""
        return self.transaction.add(
            attributes,
            user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
            group_markers=command.event_group_markers,
        )
