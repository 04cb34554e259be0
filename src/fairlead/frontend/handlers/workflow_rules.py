"""Workflow rules of a namespace: create, describe, list and delete. A setting enables them, as in Temporal's server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import temporalio.api.workflowservice.v1 as api
from temporalio.api.rules.v1 import WorkflowRule

from fairlead.api.errors import InvalidArgument, Unimplemented
from fairlead.api.namespaces import configured
from fairlead.api.times import SECOND_NS, from_timestamp, to_timestamp
from fairlead.api.workflow_rules import parsed_rule
from fairlead.frontend.validation.common import check_length
from fairlead.settings import Scope
from fairlead.settings.dynamic.limits import WORKFLOW_RULES_ENABLED, WORKFLOW_RULES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from google.protobuf.message import Message

    from fairlead.api.namespaces import Namespace
    from fairlead.frontend.gateway.context import Frontend, Handler
    from fairlead.rpc import Call

    Rules = dict[str, bytes]


async def create(frontend: Frontend, request: api.CreateWorkflowRuleRequest, _: Call) -> Message:
    """Add a rule. An expired one makes room for it."""
    namespace = await _enabled_namespace(frontend, request.namespace, "CreateWorkflowRule")
    if not request.HasField("spec"):
        raise InvalidArgument("Rule Specification is not set.")
    rule_id = _checked_id(frontend, request.spec.id)
    now_ns = int(frontend.clock() * SECOND_NS)
    limit = frontend.settings.get(WORKFLOW_RULES_MAX, Scope(namespace.id))
    rule = WorkflowRule(
        spec=request.spec,
        create_time=to_timestamp(now_ns),
        created_by_identity=request.identity,
        description=request.description,
    )

    def add(rules: Rules) -> Rules:
        if len(rules) >= limit:
            rules = _without_oldest_expired(rules, now_ns)
        if len(rules) >= limit:
            raise InvalidArgument(f"Workflow Rule limit exceeded. Max: {limit}")
        if rule_id in rules:
            raise InvalidArgument("Workflow Rule with this ID already exists.")
        return {**rules, rule_id: rule.SerializeToString(deterministic=True)}

    await _change(frontend, namespace, add)
    return api.CreateWorkflowRuleResponse(rule=rule)


async def describe(frontend: Frontend, request: api.DescribeWorkflowRuleRequest, _: Call) -> Message:
    """Describe a rule, as the store has it now."""
    namespace = await _enabled_namespace(frontend, request.namespace, "DescribeWorkflowRule")
    rule_id = _checked_id(frontend, request.rule_id)
    rules = (await frontend.namespaces.read_id(namespace.id)).workflow_rules
    return api.DescribeWorkflowRuleResponse(rule=parsed_rule(_found(rules, rule_id)))


async def delete(frontend: Frontend, request: api.DeleteWorkflowRuleRequest, _: Call) -> Message:
    """Remove a rule. Activities that it has paused stay paused."""
    namespace = await _enabled_namespace(frontend, request.namespace, "DeleteWorkflowRule")
    rule_id = _checked_id(frontend, request.rule_id)

    def remove(rules: Rules) -> Rules:
        _found(rules, rule_id)
        return {name: rule for name, rule in rules.items() if name != rule_id}

    await _change(frontend, namespace, remove)
    return api.DeleteWorkflowRuleResponse()


async def list_rules(frontend: Frontend, request: api.ListWorkflowRulesRequest, _: Call) -> Message:
    """List all rules in one page: there are few."""
    namespace = await _enabled_namespace(frontend, request.namespace, "ListWorkflowRules")
    rules = (await frontend.namespaces.read_id(namespace.id)).workflow_rules
    return api.ListWorkflowRulesResponse(rules=[parsed_rule(rule) for rule in rules.values()])


async def trigger(frontend: Frontend, request: api.TriggerWorkflowRuleRequest, _: Call) -> NoReturn:
    """Reject the request, as Temporal's server does with any settings."""
    await frontend.namespaces.find(request.namespace)
    raise _unsupported("TriggerWorkflowRule")


async def _enabled_namespace(frontend: Frontend, name: str, method: str) -> Namespace:
    namespace = await frontend.namespaces.find(name)
    if not frontend.settings.get(WORKFLOW_RULES_ENABLED, Scope(namespace.id)):
        raise _unsupported(method)
    return namespace


def _unsupported(method: str) -> Exception:
    return Unimplemented(f"method {method} not supported")


def _checked_id(frontend: Frontend, rule_id: str) -> str:
    check_length(frontend, rule_id, "Workflow Rule Id length exceeds limit.")
    if not rule_id:
        raise InvalidArgument("Workflow Rule ID is not set.")
    return rule_id


def _found(rules: Rules, rule_id: str) -> bytes:
    found = rules.get(rule_id)
    if found is None:
        raise InvalidArgument("Workflow Rule with this ID not Found.")
    return found


def _without_oldest_expired(rules: Rules, now_ns: int) -> Rules:
    expired = {
        name: from_timestamp(spec.expiration_time)
        for name, spec in ((name, parsed_rule(rule).spec) for name, rule in rules.items())
        if spec.HasField("expiration_time") and from_timestamp(spec.expiration_time) < now_ns
    }
    oldest = min(expired, key=expired.__getitem__, default=None)
    return {name: rule for name, rule in rules.items() if name != oldest}


async def _change(frontend: Frontend, namespace: Namespace, change: Callable[[Rules], Rules]) -> None:
    def changed(before: Namespace) -> Namespace:
        after = msgspec.structs.replace(before, workflow_rules=change(before.workflow_rules))
        return configured(before, after)

    await frontend.namespaces.change(namespace.id, changed)


METHODS: dict[str, Handler] = {
    "CreateWorkflowRule": create,
    "DescribeWorkflowRule": describe,
    "DeleteWorkflowRule": delete,
    "ListWorkflowRules": list_rules,
    "TriggerWorkflowRule": trigger,
}
DIFFERENCES = (
    (
        "WorkflowType STARTS_WITH in the query of a workflow rule selects the workflow types that begin with the text; "
        "Temporal's server selects those that the text begins with."
    ),
)
