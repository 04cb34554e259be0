"""The log of changes of a task queue's partition counts and their reasons, for operators and for the metrics."""

from collections import deque
from dataclasses import replace

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling import Action, Decision
from fairlead.matching.messages import DecisionInfo
from fairlead.telemetry import PartitionMetrics

CHANGES_KEPT_MAX = 100
# Action in the log for a change by hand; changes by the scaler have the scaler's action.
BY_HAND = "update"
# Actions in the log for changes towards the counts of their source.
FROM_SETTINGS = "settings"
FROM_DATABASE = "database"


class DecisionLog:
    """Keeps the last decision and the latest `CHANGES_KEPT_MAX` changes, and counts the changes by the scaler."""

    def __init__(self, counts: PartitionMetrics, *, began_s: float = 0.0) -> None:
        # When the log began: the store does not keep the changes.
        self.began_s = began_s
        self.latest: Decision | None = None
        self.counts = counts
        self._changes: deque[DecisionInfo] = deque(maxlen=CHANGES_KEPT_MAX)

    @property
    def changes(self) -> list[DecisionInfo]:
        """The latest changes, the newest last."""
        return list(self._changes)

    @property
    def latest_info(self) -> DecisionInfo | None:
        """The last decision, as a message."""
        return None if self.latest is None else _info(self.latest)

    def note(self, decision: Decision) -> None:
        """Record a decision of the scaler that is in force."""
        self.latest = decision
        if decision.after == decision.before:
            return
        self._changes.append(_info(decision))
        self.counts.partition_upscale_per_tl += decision.action is Action.UPSCALE
        self.counts.partition_downscale_per_tl += decision.action is Action.DOWNSCALE
        self.counts.partition_drained_per_tl += decision.action is Action.DRAIN

    def note_failed(self, decision: Decision, error: FairleadError) -> Decision:
        """Record a decision that could not be put into force, as a decision to hold."""
        self.counts.tasklist_partition_update_failed_per_tl += 1
        reason = f"{decision.reason} This {decision.action} was not done: {error}"
        self.latest = replace(decision, action=Action.HOLD, after=decision.before, reason=reason)
        return self.latest

    def note_by_hand(self, *, at_s: float, before: PartitionConfig, after: PartitionConfig, force: bool) -> None:
        """Record a change by an operator, independent of the load."""
        reason = "Changed by hand, without the check that partitions are drained." if force else "Changed by hand."
        self._changes.append(DecisionInfo(at_s, BY_HAND, 0.0, 0.0, 0.0, before, after, reason))

    def note_source(
        self, *, at_s: float, before: PartitionConfig, after: PartitionConfig, is_from_settings: bool
    ) -> None:
        """Record a change of the counts towards the counts of their source, independent of the load."""
        action = FROM_SETTINGS if is_from_settings else FROM_DATABASE
        reason = "The settings ask for it." if is_from_settings else "The counts in the database ask for it."
        self._changes.append(DecisionInfo(at_s, action, 0.0, 0.0, 0.0, before, after, reason))


def _info(decision: Decision) -> DecisionInfo:
    return DecisionInfo(
        at_s=decision.at_s,
        action=decision.action.value,
        qps=decision.qps,
        upscale_threshold_qps=decision.upscale_threshold_qps,
        downscale_threshold_qps=decision.downscale_threshold_qps,
        before=decision.before,
        after=decision.after,
        reason=decision.reason,
    )
