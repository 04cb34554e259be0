"""Dynamic setting for the attempts to apply a replication task of another cluster."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Int

ATTEMPTS_MAX = Setting(
    key="replication.attempts",
    kind=Int(1, 1_000),
    default=10,
    reach=Reach.GLOBAL,
    about="Attempts to apply a task of another cluster before it becomes a dead letter; 10 take about half a minute.",
    deviation="Fairlead's own; Temporal's servers retry for 80 attempts or 10 minutes.",
)
