"""Messages that change and push the partition configuration and the dispatch rules of a task queue."""

from typing import NamedTuple

from fairlead.core.partitions import Partition, PartitionConfig
from fairlead.matching.messages.base import Message
from fairlead.rpc.hosts.caller import Method


class RateRule(Message, frozen=True):
    """A rate limit that a call has set (None: no limit), with the caller, the time and the reason."""

    rate_per_s: float | None
    reason: str
    identity: str
    updated_s: float


class DispatchRules(Message, frozen=True):
    """Dispatch rules that API calls have set for a task queue. Without a rule, workers or settings set the value.

    Rates are for the whole task queue; the key rate is for a fairness key of weight 1.
    """

    version: int = 0
    queue_rate: RateRule | None = None
    key_rate: RateRule | None = None
    weights: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it


# The rules of a task queue for which no call has set any.
NO_RULES = DispatchRules()


class PushRequest(Message, frozen=True):
    """Push the root's configuration and rules in force to a partition."""

    partition: Partition
    config: PartitionConfig
    rules: DispatchRules = NO_RULES


class PushResponse(Message, frozen=True):
    """The versions that the partition uses after the push: those of the push, or higher ones."""

    version: int
    # -1: the host runs an older release, which uses the rules but does not report their version.
    rules_version: int = -1


class Versions(NamedTuple):
    """Versions of the partition configuration and of the dispatch rules that a partition uses."""

    config: int
    rules: int


class UpdateRequest(Message, frozen=True):
    """Change the number of partitions by hand: at the root, with the guardrails of `core.partitions.change`."""

    partition: Partition
    read: int
    write: int
    force: bool = False


class UpdateResponse(Message, frozen=True):
    """The configuration before and after the update.

    If `is_planned`, the settings are the source of the counts: `before` and `after` are the counts in the database,
    which take effect when the database becomes the source.
    """

    before: PartitionConfig
    after: PartitionConfig
    is_planned: bool = False


class RateChange(Message, frozen=True):
    """Set a rate limit, or remove it (None)."""

    rate_per_s: float | None
    reason: str = ""


class ConfigureRequest(Message, frozen=True):
    """Change the dispatch rules of a task queue, at its root. Rules that are left out stay."""

    partition: Partition
    identity: str = ""
    queue_rate: RateChange | None = None
    key_rate: RateChange | None = None
    set_weights: dict[str, float] = {}  # noqa: RUF012 - msgspec copies it
    unset_weights: list[str] = []  # noqa: RUF012 - msgspec copies it


class ConfigureResponse(Message, frozen=True):
    """The rules in force now."""

    rules: DispatchRules


PUSH = Method("matching.Push", PushRequest, PushResponse)
UPDATE = Method("matching.Update", UpdateRequest, UpdateResponse)
CONFIGURE = Method("matching.Configure", ConfigureRequest, ConfigureResponse)
