"""Dynamic settings of authorization, with the names and defaults of Temporal's server."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Bool

EXPOSE_AUTHORIZER_ERRORS = Setting(
    key="frontend.exposeAuthorizerErrors",
    kind=Bool(),
    default=False,
    reach=Reach.GLOBAL,
    about="Whether callers that are refused get the reason; if not, they only learn that they are not authorized.",
)
