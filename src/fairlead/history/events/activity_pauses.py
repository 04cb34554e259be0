"""Pauses of activities, by an operator or by a workflow rule. They write no events."""

from fairlead.history.events.transaction import Transaction
from fairlead.history.events.workflow_rules import pausing_rule
from fairlead.history.state.pending import ActivityProgress, PendingActivity


def pause_attempts(
    transaction: Transaction,
    progress: ActivityProgress,
    *,
    identity: str,
    reason: str,
    request_id: str = "",
    rule_id: str = "",
) -> None:
    """Begin no further attempts; a running attempt continues. `rule_id` is empty if an operator paused the activity."""
    progress.paused = True
    progress.paused_ns = transaction.now_ns
    progress.pause_identity = identity
    progress.pause_reason = reason
    progress.pause_request_id = request_id
    progress.pause_rule_id = rule_id
    if not progress.is_started:
        # Invalidates the tasks that exist already for the waiting attempt.
        progress.stamp += 1
    transaction.progressed(progress)
    transaction.show()


def pause_by_rule(transaction: Transaction, activity: PendingActivity, progress: ActivityProgress) -> bool:
    """Pause an activity if a rule of the namespace requires it; return whether it is paused."""
    if progress.paused or not transaction.workflow_rules:
        return False
    rule = pausing_rule(transaction.workflow_rules, transaction.state, activity, progress, transaction.now_ns)
    if rule is None:
        return False
    pause_attempts(
        transaction, progress, identity=rule.created_by_identity, reason=rule.description, rule_id=rule.spec.id
    )
    return True
