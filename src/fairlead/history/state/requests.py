"""The ids of the requests that a run sends to other runs. They are the same for every retry and in every cluster."""

from uuid import UUID, uuid5

from fairlead.history.state.pending import PendingChild, PendingExternal
from fairlead.history.state.run import RunState

_NAMES = UUID("6c1f3f0a-6e0c-4d5b-9a57-0f6f2f6a9d11")


def request_id_of(state: RunState, pending: PendingChild | PendingExternal) -> str:
    """The id of the request that an initiated event causes.

    The id includes the version, because on another branch the event id belongs to another event. For an event that a
    reset copied, it includes the base run's id, because the base run may have sent the request already.
    """
    event_id = pending.initiated_event_id
    run_id = state.reset_base_run_id if event_id < state.reset_event_id else state.identity.run_id
    name = f"{run_id}:{event_id}:{pending.version}"
    # The id of a child's request is shown in descriptions, so it has the format of Temporal's server; a signal's event
    # needs a UUID.
    return name if isinstance(pending, PendingChild) else str(uuid5(_NAMES, name))
