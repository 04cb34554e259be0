"""Dynamic settings of the cluster's membership, which is kept in the store."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Duration

_OURS = "Fairlead's own: members are in the store, not gossiped."

MEMBER_EXPIRY = Setting(
    key="system.membershipExpiry",
    kind=Duration(0.1, 600.0),
    default=5.0,
    reach=Reach.GLOBAL,
    about="Time without a heartbeat after which a host leaves the ring.",
    deviation=_OURS,
)
HEARTBEAT_INTERVAL = Setting(
    key="system.membershipHeartbeatInterval",
    kind=Duration(0.01, 600.0),
    default=1.0,
    reach=Reach.GLOBAL,
    about="Time between a host's heartbeats. Choose a third of the expiry or less, so that one may be lost.",
    deviation=_OURS,
    not_above=MEMBER_EXPIRY,
)
