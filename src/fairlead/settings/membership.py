"""The dynamic settings of the cluster's membership, which is kept in the store."""

from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Duration

_OURS = "Fairlead's own: membership is in the store, not gossiped."

MEMBER_EXPIRY = Setting(
    key="system.membershipExpiry",
    kind=Duration(0.1, 600.0),
    default=5.0,
    reach=Reach.GLOBAL,
    about="A host that was silent for this long is no longer in the ring.",
    deviation=_OURS,
)
HEARTBEAT_INTERVAL = Setting(
    key="system.membershipHeartbeatInterval",
    kind=Duration(0.01, 600.0),
    default=1.0,
    reach=Reach.GLOBAL,
    about="How often a host says that it is alive. A third of the expiry or less, so that one may be lost.",
    deviation=_OURS,
    not_above=MEMBER_EXPIRY,
)
REFRESH_INTERVAL = Setting(
    key="system.membershipRefreshInterval",
    kind=Duration(0.01, 600.0),
    default=1.0,
    reach=Reach.GLOBAL,
    about="How often a host looks which hosts there are.",
    deviation="Fairlead's own: membership is in the store. Temporal's ring is refreshed by gossip and every 10 s.",
)
