"""A worker's answer to a workflow task while it is carried out: what the handlers of its commands share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import Message as AnyMessage
from temporalio.api.command.v1 import Command
from temporalio.api.common.v1 import SearchAttributes
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.protocol.v1 import Message
from temporalio.api.update.v1 import Outcome, Request

from fairlead.history.events.transaction import Transaction
from fairlead.history.state.versioning import Version


class UpdateAccepted(NamedTuple):
    """An update's acceptance is in the history."""

    update_id: str
    event_id: int


class UpdateRejected(NamedTuple):
    """The workflow refused an update; nothing is written."""

    update_id: str
    failure: Failure


class UpdateCompleted(NamedTuple):
    """An update's outcome is in the history."""

    update_id: str
    event_id: int
    outcome: Outcome


UpdateNews = UpdateAccepted | UpdateRejected | UpdateCompleted


def _no_problem(_attributes: SearchAttributes) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What handlers need to know beyond the run: it does not change while an answer is carried out.

    `namespace_ids` finds the id of a namespace by its name, None if there is none. `updates` are the requests that
    were delivered with the task, by their ids. `search_attributes_problem` says what is wrong with search attributes.
    `nexus_endpoints` has the ids of the endpoints that the answer names, those that there are.
    """

    namespace: str
    namespace_ids: Callable[[str], str | None]
    updates: Mapping[str, Request] = field(default_factory=dict)
    search_attributes_problem: Callable[[SearchAttributes], str | None] = _no_problem
    cross_namespace_commands: bool = False
    nexus_endpoints: Mapping[str, str] = field(default_factory=dict)
    # The version that the run would go to if it were not pinned to another, and by which revision of the routing.
    declined_target: tuple[Version, int] | None = None


@dataclass(slots=True)
class Answer:
    """The answer, with what its commands have done so far."""

    transaction: Transaction
    surroundings: Surroundings
    completed_event_id: int
    identity: str
    messages: dict[str, Message]
    # Whether there is something that the worker has not seen: then it must not end the run.
    has_unseen: bool
    started_children: set[str] = field(default_factory=set)
    eager_activities: list[int] = field(default_factory=list)
    update_news: list[UpdateNews] = field(default_factory=list)
    needs_task: bool = False

    def add(self, command: Command, attributes: AnyMessage) -> HistoryEvent:
        """Write the event of a command, with what the worker says about it."""
        return self.transaction.add(
            attributes,
            user_metadata=command.user_metadata if command.HasField("user_metadata") else None,
            group_markers=command.event_group_markers,
        )
