"""The number of workflow rules of a namespace is bounded, and the setting that enables them is off by default."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.rules.v1 import WorkflowRuleSpec
from temporalio.api.workflowservice.v1 import (
    CreateWorkflowRuleRequest,
    ListWorkflowRulesRequest,
)
from temporalio.service import RPCError, RPCStatusCode, WorkflowService

from fairlead.settings.dynamic.limits import WORKFLOW_RULES_ENABLED, WORKFLOW_RULES_MAX
from fairlead.testing import FairleadServer

NAMESPACE = "default"


@pytest_asyncio.fixture
async def service() -> AsyncIterator[WorkflowService]:
    settings = {WORKFLOW_RULES_ENABLED.key: True, WORKFLOW_RULES_MAX.key: 2}
    async with FairleadServer.start(dynamic_config=settings) as server:
        yield (await server.connect()).workflow_service


async def create(service: WorkflowService, rule_id: str, *, expires_s: int = 0) -> None:
    spec = WorkflowRuleSpec(id=rule_id, expiration_time=Timestamp(seconds=expires_s) if expires_s else None)
    await service.create_workflow_rule(CreateWorkflowRuleRequest(namespace=NAMESPACE, spec=spec))


async def names(service: WorkflowService) -> set[str]:
    answer = await service.list_workflow_rules(ListWorkflowRulesRequest(namespace=NAMESPACE))
    return {rule.spec.id for rule in answer.rules}


async def test_a_new_rule_replaces_the_oldest_expired_one_at_the_limit(service: WorkflowService) -> None:
    await create(service, "expired later", expires_s=200)
    await create(service, "expired first", expires_s=100)
    await create(service, "new")
    assert await names(service) == {"expired later", "new"}


async def test_a_rule_above_the_limit_is_refused(service: WorkflowService) -> None:
    await create(service, "one")
    await create(service, "two")
    with pytest.raises(RPCError, match=r"Workflow Rule limit exceeded\. Max: 2"):
        await create(service, "three")
    assert await names(service) == {"one", "two"}


async def test_rules_are_off_by_default() -> None:
    async with FairleadServer.start() as server:
        service = (await server.connect()).workflow_service
        with pytest.raises(RPCError, match="method CreateWorkflowRule not supported") as raised:
            await create(service, "one")
        assert raised.value.status is RPCStatusCode.UNIMPLEMENTED
