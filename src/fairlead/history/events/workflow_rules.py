"""Workflow rules of a namespace: finds the rule that pauses an activity before an attempt.

A rule selects workflows by a query and activities by a predicate. Both are list filters over the fields below. As in
Temporal's server, a rule is not validated when it is created. An invalid rule matches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.rules.v1 import WorkflowRule

from fairlead.api.errors import ApiError
from fairlead.api.search.literals import parse_time
from fairlead.api.search.statuses import STATUS_NAMES
from fairlead.api.search.syntax import All, Comparison, Either, Name, Node, Number, Parentheses, Range, String
from fairlead.api.times import SECOND_NS, from_timestamp
from fairlead.api.workflow_rules import parsed_rule
from fairlead.core.errors import FixRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlead.history.state.pending import ActivityProgress, PendingActivity
    from fairlead.history.state.run import RunState

    Value = str | int
    Facts = Mapping[str, Value | None]

# Fields with times, which rules write as in RFC 3339.
_TIMES = frozenset(("StartTime", "StartedTime"))
_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,  # type: ignore[operator]
    "<=": lambda left, right: left <= right,  # type: ignore[operator]
    ">": lambda left, right: left > right,  # type: ignore[operator]
    ">=": lambda left, right: left >= right,  # type: ignore[operator]
}
# Comparisons that texts support; all others need numbers or times.
_TEXT_COMPARISONS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "STARTS_WITH": lambda left, right: left.startswith(right),
    "NOT STARTS_WITH": lambda left, right: not left.startswith(right),
}


class UnreadableRule(FixRequest):
    """A query or predicate has a field, an operator or a value that rules don't have."""


def pausing_rule(
    rules: Mapping[str, bytes],
    state: RunState,
    activity: PendingActivity,
    progress: ActivityProgress,
    now_ns: int,
) -> WorkflowRule | None:
    """The first rule that pauses the activity, or None."""
    for payload in rules.values():
        rule = parsed_rule(payload)
        spec = rule.spec
        if spec.HasField("expiration_time") and from_timestamp(spec.expiration_time) < now_ns:
            continue
        if not spec.HasField("activity_start") or not any(each.HasField("activity_pause") for each in spec.actions):
            continue
        try:
            is_matched = (
                not spec.visibility_query or matches(spec.visibility_query, _workflow_facts(state))
            ) and matches(spec.activity_start.predicate, _activity_facts(activity, progress))
        except (UnreadableRule, ApiError):
            continue
        if is_matched:
            return rule
    return None


def matches(text: str, facts: Facts) -> bool:
    """Whether a query or predicate is true for these fields; raises `UnreadableRule` if it is invalid."""
    # Import here, because building the parser takes 0.1 s.
    from fairlead.api.search.grammar import parse_statement  # noqa: PLC0415

    if not text.strip():
        raise UnreadableRule("the predicate is empty: name a field")
    statement = parse_statement(text.strip())
    if statement.where is None or statement.group_by or statement.order_by or statement.has_limit:
        raise UnreadableRule("only a condition is allowed")
    return _evaluate(statement.where, facts)


def _workflow_facts(state: RunState) -> Facts:
    return {
        "WorkflowId": state.identity.workflow_id,
        "WorkflowType": state.started.workflow_type,
        "ExecutionStatus": STATUS_NAMES[state.status],
        "StartTime": state.started.started_ns,
    }


def _activity_facts(activity: PendingActivity, progress: ActivityProgress) -> Facts:
    # The first attempt has no backoff, so all comparisons with it are false.
    backoff_s = (progress.due_ns - progress.ended_ns) // SECOND_NS if progress.ended_ns else None
    return {
        "ActivityId": activity.activity_id,
        "ActivityType": activity.activity_type,
        "TaskQueue": activity.task_queue,
        "Attempts": progress.counted_attempt,
        "BackoffInterval": backoff_s,
        "StartedTime": progress.started_ns,
    }


def _evaluate(node: Node, facts: Facts) -> bool:
    """Evaluate from left to right, as far as necessary.

    An unknown field raises an error only if it is reached.
    """
    match node:
        case All():
            return all(_evaluate(part, facts) for part in node.parts)
        case Either():
            return any(_evaluate(part, facts) for part in node.parts)
        case Parentheses():
            return _evaluate(node.inner, facts)
        case Comparison():
            return _compare(node, facts)
        case Range():
            return _is_between(node, facts) != node.is_negated
    raise UnreadableRule(f"{node.kind} is not supported in rules")


def _compare(node: Comparison, facts: Facts) -> bool:
    name = _name(node.left, facts)
    fact, value = facts[name], _value(name, node.right)
    if fact is None:
        return False
    if isinstance(fact, str) and isinstance(value, str) and node.operator in _TEXT_COMPARISONS:
        return _TEXT_COMPARISONS[node.operator](fact, value)
    if isinstance(fact, int) and isinstance(value, int) and node.operator in _COMPARISONS:
        return _COMPARISONS[node.operator](fact, value)
    raise UnreadableRule(f"{name} can't be compared with this value by {node.operator}")


def _is_between(node: Range, facts: Facts) -> bool:
    name = _name(node.left, facts)
    low, high, fact = _value(name, node.low), _value(name, node.high), facts[name]
    if name not in _TIMES or not isinstance(low, int) or not isinstance(high, int) or not isinstance(fact, int):
        raise UnreadableRule(f"BETWEEN is for times, not for {name}")
    return low <= fact <= high


def _name(node: Node, facts: Facts) -> str:
    if not isinstance(node, Name) or node.text not in facts:
        raise UnreadableRule("a field is unknown in rules")
    return node.text


def _value(name: str, node: Node) -> Value:
    if name in _TIMES and isinstance(node, String):
        time_ns = parse_time(node.text)
        if time_ns is not None:
            return time_ns
    elif isinstance(node, String) and name not in _TIMES:
        return node.text
    elif isinstance(node, Number) and node.text.isdecimal() and name not in _TIMES:
        return int(node.text)
    raise UnreadableRule(f"{name} is compared with a value of another type")
