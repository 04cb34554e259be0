"""The rate limits that pages name, and what set them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.taskqueue.v1 import RateLimit
from temporalio.api.workflowservice.v1 import UpdateTaskQueueConfigRequest
from temporalio.client import Client
from temporalio.common import Priority
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from fairlead.console.findings import Cause
from tests.console.stuck_workflows import Waiting, fail
from tests.console.web import Visitor, running_console
from tests.patience import until

LIMITED = {"name": "limited", "type": "activity"}
# Tasks a second of each fairness key: one in more than two hours. A call rounds it to 32 bits, which changes nothing.
RATE = 2.0**-13
SETTINGS = """matching.fairnessKeyRps:
- value: 0.0001220703125
  constraints:
    taskQueueName: limited
    taskType: activity
"""


async def held_by_key(visitor: Visitor) -> dict[str, Any]:
    """The page of the task queue, as soon as its tasks wait for the limit of a key."""
    found: dict[str, Any] = {}

    async def is_held() -> bool:
        reply = await visitor.get("task-queue.json", **LIMITED)
        if b"no task queue" in reply.body:
            # The task queue exists from its first poll or task.
            return False
        assert reply.status == 200, reply.body
        found.update(json.loads(reply.body))
        return bool(found["held"]["cause"] == "key limit")

    await until(is_held)
    return found


@pytest.mark.parametrize("by_call", [False, True])
async def test_every_page_names_the_limit_of_a_key_and_what_set_it(tmp_path: Path, by_call: bool) -> None:
    file = tmp_path / "dynamic.yaml"
    file.write_text("" if by_call else SETTINGS)
    async with running_console(dynamic_file=file) as (server, visitor):
        assert server.frontend_address is not None
        client = await Client.connect(server.frontend_address)
        for number in range(3):
            key = Priority(fairness_key="tenant")
            await client.start_workflow(
                Waiting.run, "limited/fail", id=f"w-{number}", task_queue="workflows", priority=key
            )
        if by_call:
            await limit_keys(server.frontend_address)
        workflows = Worker(
            client, task_queue="workflows", workflows=[Waiting], workflow_runner=UnsandboxedWorkflowRunner()
        )
        activities = Worker(client, task_queue=LIMITED["name"], activities=[fail])
        source = (
            "set with UpdateTaskQueueConfig by me, because: too fast"
            if by_call
            else "set by the dynamic setting matching.fairnessKeyRps, settings file, line 2 for taskQueueName limited, "
            "taskType activity"
        )
        async with workflows, activities:
            page = await held_by_key(visitor)
            assert page["key_rate_per_s"] == RATE
            assert page["key_rate_source"] == source
            assert source in page["held"]["sentence"]
            lanes = await visitor.data("fairness", **LIMITED)
            assert (lanes["key_rate_per_s"], lanes["key_rate_source"]) == (RATE, source)

            async def is_listed() -> bool:
                rows = (await visitor.data("task-queues", search="limited"))["rows"]
                causes = [(row["held"] or {}).get("cause") for row in rows if row["type"] == "activity"]
                return causes == ["key limit"]

            await until(is_listed)
            causes = await asyncio.gather(*(visitor.data("stuck", id=f"w-{number}") for number in range(3)))
            held = [one["findings"][0] for one in causes if one["findings"][0]["cause"] == Cause.KEY_LIMIT]
            assert held
            assert source in dict(held[0]["evidence"])["Fairness key"]


async def limit_keys(address: str) -> None:
    """Limit each fairness key with a call."""
    client = await Client.connect(address)
    await client.workflow_service.update_task_queue_config(
        UpdateTaskQueueConfigRequest(
            namespace="default",
            identity="me",
            task_queue=LIMITED["name"],
            task_queue_type=2,  # type: ignore[arg-type]
            update_fairness_key_rate_limit_default=UpdateTaskQueueConfigRequest.RateLimitUpdate(
                rate_limit=RateLimit(requests_per_second=RATE), reason="too fast"
            ),
        )
    )
