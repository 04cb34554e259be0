"""The dynamic setting of how long a cluster tries to take in what another one sends."""

from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.kinds import Int

ATTEMPTS_MAX = Setting(
    key="replication.attempts",
    kind=Int(1, 1_000),
    default=10,
    reach=Reach.GLOBAL,
    about="Attempts to take in a task of another cluster until it becomes a dead letter: 10 take about half a minute.",
    deviation="Fairlead's own; Temporal's servers go on for 80 attempts or 10 minutes.",
)
