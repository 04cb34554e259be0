"""Dynamic settings that bound the memory of one matching host."""

from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Int

_OURS = "Fairlead's own."

LOADED_PARTITIONS = Setting(
    key="matching.loadedPartitions",
    kind=Int(1, 10_000_000),
    default=20_000,
    reach=Reach.GLOBAL,
    about="Partitions that one host keeps loaded; above it, idle ones are unloaded; if none is idle, requests fail.",
    deviation=_OURS,
)
LOADED_PARTITIONS_PER_NAMESPACE = Setting(
    key="matching.loadedPartitionsPerNamespace",
    kind=Int(1, 10_000_000),
    default=10_000,
    reach=Reach.NAMESPACE,
    about="Partitions of one namespace that one host keeps loaded; above it, idle ones are unloaded, or requests fail.",
    deviation=_OURS,
)
WAITING_POLLS = Setting(
    key="matching.waitingPolls",
    kind=Int(1, 10_000_000),
    default=50_000,
    reach=Reach.GLOBAL,
    about="Polls that wait at one host for tasks of its partitions; further ones fail with RESOURCE_EXHAUSTED.",
    deviation=_OURS,
)
