"""Settings of the connections of SDKs, with the names of Temporal's server."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Duration

CONNECTION_AGE_MAX = Setting(
    key="frontend.keepAliveMaxConnectionAge",
    kind=Duration(0.0, 86_400.0),
    default=0.0,
    reach=Reach.GLOBAL,
    about="Age of a connection at which its client is asked to open another one, give or take a tenth; 0: never.",
    deviation="Temporal's default is 5m; here a connection ends by itself when its certificate ends or is withdrawn.",
)
CONNECTION_AGE_GRACE = Setting(
    key="frontend.keepAliveMaxConnectionAgeGrace",
    kind=Duration(1.0, 86_400.0),
    default=70.0,
    reach=Reach.GLOBAL,
    about="Time for the open calls of a connection that has reached its maximum age; then it is closed.",
)
