"""The record of what changed the number of partitions of a task list, and why: for people, and for the metrics."""

from collections import deque
from dataclasses import replace

from fairlead.core.errors import FairleadError
from fairlead.core.partitions import PartitionConfig
from fairlead.core.scaling import Action, Decision
from fairlead.matching.messages import DecisionInfo
from fairlead.telemetry import PartitionMetrics

CHANGES_KEPT_MAX = 100
# Where a decision of the scaler has its action, a change by hand has this.
BY_HAND = "update"


class DecisionLog:
    """Keeps the last decision and the latest `CHANGES_KEPT_MAX` changes, and counts those of the scaler."""

    def __init__(self, counts: PartitionMetrics) -> None:
        self.latest: Decision | None = None
        self.counts = counts
        self._changes: deque[DecisionInfo] = deque(maxlen=CHANGES_KEPT_MAX)

    @property
    def changes(self) -> list[DecisionInfo]:
        """The latest changes, the newest last."""
        return list(self._changes)

    @property
    def latest_info(self) -> DecisionInfo | None:
        """The last decision, as it is told to others."""
        return None if self.latest is None else _info(self.latest)

    def note(self, decision: Decision) -> None:
        """The scaler has decided, and what it decided is in force."""
        self.latest = decision
        if decision.after == decision.before:
            return
        self._changes.append(_info(decision))
        self.counts.partition_upscale_per_tl += decision.action is Action.UPSCALE
        self.counts.partition_downscale_per_tl += decision.action is Action.DOWNSCALE
        self.counts.partition_drained_per_tl += decision.action is Action.DRAIN

    def note_failed(self, decision: Decision, error: FairleadError) -> Decision:
        """What the scaler decided could not be put into force: what was, stays."""
        self.counts.tasklist_partition_update_failed_per_tl += 1
        reason = f"{decision.reason} This {decision.action} was not done: {error}"
        self.latest = replace(decision, action=Action.HOLD, after=decision.before, reason=reason)
        return self.latest

    def note_by_hand(self, *, at_s: float, before: PartitionConfig, after: PartitionConfig, force: bool) -> None:
        """An operator has changed the configuration; the load played no part in it."""
        reason = "Changed by hand, without regard to what is stored." if force else "Changed by hand."
        self._changes.append(DecisionInfo(at_s, BY_HAND, 0.0, 0.0, 0.0, before, after, reason))


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
