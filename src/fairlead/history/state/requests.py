"""The ids of the requests that a run makes of others: the same however often, and in whatever cluster, each is made."""

from uuid import UUID, uuid5

from fairlead.history.state.pending import PendingChild, PendingExternal
from fairlead.history.state.run import RunState

_NAMES = UUID("6c1f3f0a-6e0c-4d5b-9a57-0f6f2f6a9d11")


def request_id_of(state: RunState, pending: PendingChild | PendingExternal) -> str:
    """The id of the one request that an initiated event leads to.

    On another branch the same event id is another event, so the version is in it. What a reset has taken over is the
    base run's: it may have been asked for already.
    """
    event_id = pending.initiated_event_id
    run_id = state.reset_base_run_id if event_id < state.reset_event_id else state.identity.run_id
    name = f"{run_id}:{event_id}:{pending.version}"
    # A child's is shown by its description, as Temporal's server makes it; a signal's is a UUID in its event.
    return name if isinstance(pending, PendingChild) else str(uuid5(_NAMES, name))
