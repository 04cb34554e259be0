"""Quotas by host and namespace."""

from contextlib import ExitStack
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from temporalio.api.enums.v1 import ResourceExhaustedCause, ResourceExhaustedScope
from temporalio.api.errordetails.v1 import ResourceExhaustedFailure

from fairlead.api.errors import ApiError
from fairlead.frontend.quotas import Quotas, cost_of
from fairlead.frontend.quotas import quotas as module
from fairlead.settings import DynamicSettings

START, TERMINATE, POLL = (
    cost_of(name) for name in ("StartWorkflowExecution", "TerminateWorkflowExecution", "PollActivityTaskQueue")
)
LIST, UPDATE = cost_of("ListWorkflowExecutions"), cost_of("UpdateNamespace")


class World:
    """Quotas with a clock and settings of the test."""

    def __init__(self, hosts: int = 1, **settings: Any) -> None:
        self.now_s = 1000.0
        overrides = {f"frontend.{key.replace('__', '.')}": value for key, value in settings.items()}
        self.quotas = Quotas(
            DynamicSettings(overrides=overrides),
            clock=lambda: self.now_s,
            namespace_id=lambda name: f"id-of-{name}",
            hosts=lambda: hosts,
        )

    def passed(self, cost: Any, namespace: str, *, calls: int = 100, caller_type: str = "api") -> int:
        """Number of calls that are let through."""
        count = 0
        for _ in range(calls):
            try:
                self.quotas.check(cost, namespace, caller={"caller-type": caller_type})
            except ApiError:
                continue
            count += 1
        return count


def failure_of(error: ApiError) -> tuple[str, str]:
    """The cause and the scope of an error."""
    detail = ResourceExhaustedFailure()
    assert AnyMessage.FromString(error.detail).Unpack(detail)
    return (
        ResourceExhaustedCause.Name(detail.cause).removeprefix("RESOURCE_EXHAUSTED_CAUSE_"),
        ResourceExhaustedScope.Name(detail.scope).removeprefix("RESOURCE_EXHAUSTED_SCOPE_"),
    )


def test_without_settings_only_changes_of_namespaces_are_limited() -> None:
    world = World()
    assert world.passed(START, "a", calls=10_000) == 10_000
    assert world.passed(LIST, "a", calls=10_000) == 10_000
    assert world.passed(UPDATE, "a") == 10
    assert world.passed(UPDATE, "b") == 10


def test_a_namespace_has_a_burst_and_then_its_rate_regardless_of_other_namespaces() -> None:
    world = World(namespaceRPS=8)
    assert world.passed(START, "a") == 16
    assert world.passed(START, "b") == 16
    world.now_s += 1
    assert world.passed(START, "a") == 8


def test_important_calls_pass_when_others_have_used_the_quota() -> None:
    world = World(namespaceRPS=8, namespaceBurstRatio=1.0)
    assert world.passed(TERMINATE, "a") == 8
    assert world.passed(POLL, "a") == 0
    assert world.passed(START, "a") == 8


@pytest.mark.parametrize("limit", ["namespaceRPS", "rps"])
def test_operators_have_a_share_of_each_limit_that_others_can_not_use(limit: str) -> None:
    world = World(namespaceBurstRatio=1.0, **{limit: 100})
    assert world.passed(START, "a", calls=500) == 100
    assert world.passed(TERMINATE, "a", caller_type="operator") == 20
    assert world.passed(TERMINATE, "a", caller_type="background") == 0


def test_reads_of_worker_deployments_have_a_quota_that_all_hosts_share() -> None:
    read = cost_of("DescribeWorkerDeployment")
    assert {cost_of(name).bucket for name in ("ListWorkerDeployments", "DescribeWorkerDeploymentVersion")} == {
        read.bucket
    }
    world = World(hosts=2)
    assert world.passed(read, "a", calls=1_000) == 250
    assert world.passed(read, "b", calls=1_000) == 250
    assert world.passed(START, "a") == 100
    world.now_s += 1
    assert world.passed(read, "a") == 25
    limited = World(globalNamespaceWorkerDeploymentReadRPS=4, globalNamespaceWorkerDeploymentReadBurstRatio=1.0)
    assert limited.passed(read, "a") == 4
    with pytest.raises(ApiError) as refused:
        limited.quotas.check(read, "a")
    assert failure_of(refused.value) == ("RPS_LIMIT", "NAMESPACE")


def test_the_quota_of_all_hosts_for_changes_of_a_namespace_replaces_that_of_one_host() -> None:
    world = World(hosts=2, globalNamespaceRPS__namespaceReplicationInducingAPIs=4)
    # Each host gets two calls per second and a burst of ten times as many; the host's own limit of 20 allows no more.
    assert world.passed(UPDATE, "a") == 20


def test_lists_have_a_quota_of_their_own() -> None:
    world = World(namespaceRPS=8, namespaceRPS__visibility=4)
    assert world.passed(LIST, "a") == 4
    assert world.passed(START, "a") == 16


def test_a_quota_of_all_hosts_is_divided_and_replaces_that_of_one() -> None:
    world = World(hosts=4, namespaceRPS=1, globalNamespaceRPS=32)
    assert world.passed(START, "a") == 16
    assert World(hosts=2, rps=1, globalRPS=16).passed(START, "a") == 8


def test_the_error_says_which_limit_is_reached() -> None:
    world = World(namespaceRPS=1, namespaceBurstRatio=1.0)
    world.quotas.check(START, "a")
    with pytest.raises(ApiError, match="namespace rate limit exceeded") as raised:
        world.quotas.check(START, "a")
    assert failure_of(raised.value) == ("RPS_LIMIT", "NAMESPACE")
    world = World(rps=1)
    world.quotas.check(START, "a")
    with pytest.raises(ApiError, match="service rate limit exceeded") as raised:
        world.quotas.check(START, "b")
    assert failure_of(raised.value) == ("RPS_LIMIT", "SYSTEM")


def test_open_long_calls_are_limited_by_method_and_namespace() -> None:
    world = World(namespaceCount=3)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(world.quotas.open(POLL, "a"))
        with pytest.raises(ApiError, match="namespace concurrent poller limit exceeded: 3 calls") as raised:
            stack.enter_context(world.quotas.open(POLL, "a"))
        assert failure_of(raised.value) == ("CONCURRENT_LIMIT", "NAMESPACE")
        stack.enter_context(world.quotas.open(POLL, "b"))
        stack.enter_context(world.quotas.open(cost_of("PollWorkflowTaskQueue"), "a"))
    with world.quotas.open(POLL, "a"):
        assert world.quotas._of("a").open_calls == {"PollActivityTaskQueue": 1}
    assert world.quotas._of("a").open_calls == {}


def test_invented_namespaces_take_bounded_memory_and_open_calls_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "NAMESPACES_MAX", 10)
    world = World(namespaceRPS=8, namespaceCount=1)
    with world.quotas.open(POLL, "real"):
        for number in range(1000):
            world.quotas.check(START, f"invented-{number}")
        assert len(world.quotas._namespaces) == 10
        with pytest.raises(ApiError), world.quotas.open(POLL, "real"):
            pass
