"""Dynamic setting for calls that reach a cluster in which their namespace is not active."""

from enum import StrEnum

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Choice


class Redirect(StrEnum):
    """Calls that a passive cluster forwards to the active one: none, those of clients, or workers' polls as well."""

    NONE = "none"
    CALLS = "calls"
    ALL = "all"


REDIRECTION = Setting(
    key="frontend.redirection",
    kind=Choice(Redirect),
    default=Redirect.ALL,
    reach=Reach.NAMESPACE,
    about="Calls that a passive cluster forwards: none; calls (all but polls and reads); or all (all but reads).",
    deviation="Fairlead's own, set by namespace; Temporal's servers have dcRedirectionPolicy in their static file.",
)
