"""Workflow rules: rules of a namespace that pause activities before they begin."""

import asyncio
from datetime import timedelta
from typing import Any

import temporalio.api.workflowservice.v1 as api
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.rules.v1 import WorkflowRuleAction, WorkflowRuleSpec
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.common import RetryPolicy

from tests.history.reference_programs import SOON
from tests.sdk.stage import NAMESPACE, Stage, program

LONG_AGO = Timestamp(seconds=1)


@activity.defn
async def is_ruled() -> None:
    raise RuntimeError("again")


@workflow.defn
class Ruled:
    """Runs an activity that always fails, on the given task queue."""

    @workflow.run
    async def run(self, queue: str, interval_ms: int) -> None:
        policy = RetryPolicy(initial_interval=timedelta(milliseconds=interval_ms), backoff_coefficient=1)
        await workflow.execute_activity(
            is_ruled, task_queue=queue or None, start_to_close_timeout=SOON, retry_policy=policy
        )


def _spec(rule_id: str, *, query: str = "", predicate: str = "", **more: Any) -> WorkflowRuleSpec:
    pause = WorkflowRuleAction(activity_pause=WorkflowRuleAction.ActionActivityPause())
    spec = WorkflowRuleSpec(id=rule_id, visibility_query=query, actions=[pause], **more)
    spec.activity_start.predicate = predicate
    return spec


async def _create(stage: Stage, spec: WorkflowRuleSpec | None, **more: Any) -> Any:
    request = api.CreateWorkflowRuleRequest(namespace=NAMESPACE, spec=spec, **more)
    return await stage.outcome(stage.service.create_workflow_rule(request))


async def _delete(stage: Stage, rule_id: str) -> Any:
    request = api.DeleteWorkflowRuleRequest(namespace=NAMESPACE, rule_id=rule_id)
    return await stage.outcome(stage.service.delete_workflow_rule(request))


async def _describe(stage: Stage, rule_id: str) -> Any:
    request = api.DescribeWorkflowRuleRequest(namespace=NAMESPACE, rule_id=rule_id)
    return await stage.outcome(stage.service.describe_workflow_rule(request))


@program
async def workflow_rules_in_bad_requests(stage: Stage) -> None:
    service = stage.service
    for namespace in ("", "nowhere", NAMESPACE):
        for label, call in (
            ("created", service.create_workflow_rule(api.CreateWorkflowRuleRequest(namespace=namespace))),
            ("described", service.describe_workflow_rule(api.DescribeWorkflowRuleRequest(namespace=namespace))),
            ("deleted", service.delete_workflow_rule(api.DeleteWorkflowRuleRequest(namespace=namespace))),
            ("triggered", service.trigger_workflow_rule(api.TriggerWorkflowRuleRequest(namespace=namespace))),
        ):
            stage.note(f"{label} in '{namespace}'", await stage.outcome(call))
    stage.note("no id", await _create(stage, _spec("")))
    stage.note("a long id", await _create(stage, _spec("x" * 1001)))
    stage.note("unknown, described", await _describe(stage, "unknown"))
    stage.note("unknown, deleted", await _delete(stage, "unknown"))


@program
async def workflow_rules_are_kept(stage: Stage) -> None:
    """Rules are not checked when they are created: a predicate that can't be read matches nothing."""
    rules = {
        "first": _spec(stage.id("first"), predicate="ActivityType = 'nothing'"),
        "no trigger": WorkflowRuleSpec(id=stage.id("no trigger")),
        "unreadable": _spec(stage.id("unreadable"), query="((", predicate="Nothing = ("),
    }
    for label, spec in rules.items():
        stage.note(label, await _create(stage, spec, identity="somebody", description="why", request_id=label))
    stage.note("again", await _create(stage, rules["first"], request_id="first"))
    stage.note("described", await _describe(stage, stage.id("first")))
    answer = await stage.service.list_workflow_rules(api.ListWorkflowRulesRequest(namespace=NAMESPACE))
    mine = [rule for rule in answer.rules if rule.spec.id.startswith(f"{stage.name}/")]
    stage.note("listed", sorted(mine, key=lambda rule: rule.spec.id))
    stage.note("token", answer.next_page_token)
    for label, spec in rules.items():
        stage.note(f"{label} deleted", await _delete(stage, spec.id))
    stage.note("deleted again", await _delete(stage, stage.id("first")))


@program
async def workflow_rules_pause_activities(stage: Stage) -> Any:
    rule_id = stage.id("rule")
    mine = f"WorkflowId starts_with '{stage.name}/'"
    predicate = "(ActivityType = 'is_ruled' AND ActivityId != 'x') OR Nothing = 1"
    stage.note("expired", await _create(stage, _spec(stage.id("old"), predicate=predicate, expiration_time=LONG_AGO)))
    stage.note(
        "created",
        await _create(
            stage, _spec(rule_id, query=mine, predicate=predicate), identity="somebody", description="a reason"
        ),
    )
    # Servers know of a new rule after a while, so the first activity is paused at one of its attempts.
    retried = await stage.start(Ruled.run, "", 100, suffix="retried")

    async def is_paused(suffix: str) -> bool:
        pending = (await stage.describe(stage.id(suffix))).pending_activities
        return bool(pending) and pending[0].paused

    await stage.until_true(lambda: is_paused("retried"), "the pause")
    described = await stage.describe(retried.id)
    pending = described.pending_activities[0]
    stage.note("found by", described.workflow_execution_info.search_attributes.indexed_fields["TemporalPauseInfo"])
    stage.note("paused by", pending.pause_info)
    stage.note("state", pending.state)
    other_queue = f"{stage.queue}-{stage.name}"
    polling = asyncio.create_task(
        stage.service.poll_activity_task_queue(
            api.PollActivityTaskQueueRequest(
                namespace=NAMESPACE, task_queue=TaskQueue(name=other_queue), identity="a-worker"
            )
        )
    )
    first = await stage.start(Ruled.run, other_queue, 100, suffix="first")
    await stage.until_true(lambda: is_paused("first"), "the pause of a first attempt")
    stage.note("first attempt", (await stage.describe(first.id)).pending_activities[0])
    unpause = api.UnpauseActivityRequest(
        namespace=NAMESPACE, execution=WorkflowExecution(workflow_id=first.id), type="is_ruled"
    )
    stage.note("unpaused", await stage.outcome(stage.service.unpause_activity(unpause)))
    await stage.until_true(lambda: is_paused("first"), "the next pause")
    stage.note("paused again", (await stage.describe(first.id)).pending_activities[0].pause_info)
    for name in ("old", "rule"):
        stage.note(f"{name} deleted", await _delete(stage, stage.id(name)))
    polling.cancel()
    for handle in (retried, first):
        await handle.terminate("enough")
    return await stage.outcome(first.result())


@program
async def workflow_rules_by_attempt(stage: Stage) -> Any:
    """Tests each activity field of a predicate in a rule of its own."""
    predicates = {
        "attempts": "Attempts >= 3",
        "backoff": "BackoffInterval >= 1 AND ActivityType not starts_with 'x'",
        "queue": f"TaskQueue starts_with '{stage.queue}' AND StartedTime > '2020-01-01T00:00:00Z'",
    }
    for suffix, predicate in predicates.items():
        query = f"WorkflowId = '{stage.id(suffix)}' AND WorkflowType = 'Ruled' AND ExecutionStatus = 'Running'"
        spec = _spec(stage.id(suffix), query=query, predicate=predicate)
        stage.note(f"{suffix} created", await _create(stage, spec))
    handles = [await stage.start(Ruled.run, "", 1000, suffix=suffix) for suffix in predicates]
    for handle in handles:

        async def is_paused(workflow_id: str = handle.id) -> bool:
            pending = (await stage.describe(workflow_id)).pending_activities
            return bool(pending) and pending[0].paused

        await stage.until_true(is_paused, "the pause")
        pending = (await stage.describe(handle.id)).pending_activities[0]
        stage.note(f"{handle.id} paused", pending.pause_info)
        stage.note("has a few attempts", 2 <= pending.attempt <= 10)
    for suffix in predicates:
        stage.note(f"{suffix} deleted", await _delete(stage, stage.id(suffix)))
    for handle in handles:
        await handle.terminate("enough")
    return await stage.outcome(handles[0].result())
