"""The dynamic setting of what becomes of a call that reaches a cluster where its namespace is not active."""

from enum import StrEnum

from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Choice


class Redirect(StrEnum):
    """What a passive cluster sends on to the active one: nothing, what clients ask for, or polls of workers as well."""

    NONE = "none"
    CALLS = "calls"
    ALL = "all"


REDIRECTION = Setting(
    key="frontend.redirection",
    kind=Choice(Redirect),
    default=Redirect.ALL,
    reach=Reach.NAMESPACE,
    about="What a passive cluster sends on to the active one: none, calls (all but polls and reads), or all but reads.",
    deviation="Fairlead's own, by namespace; Temporal's servers have it in dcRedirectionPolicy.",
)
