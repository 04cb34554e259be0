"""Clients describe, list and configure task queues; the error messages are those of Temporal's server."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkerVersionCapabilities
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import (
    BuildIdTaskReachability,
    DescribeTaskQueueMode,
    RateLimitSource,
    TaskQueueKind,
    TaskQueueType,
)
from temporalio.api.taskqueue.v1 import PollerInfo, RateLimit, TaskQueue, TaskQueueVersionSelection
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    ListTaskQueuePartitionsRequest,
    UpdateTaskQueueConfigRequest,
)

from fairlead.core.partitions import TaskQueueId, TaskType
from fairlead.matching.client import MatchingClient
from fairlead.matching.messages import NewTask, QueueKind
from fairlead.server import LocalCluster
from fairlead.settings import DynamicSettings, Plain
from tests.frontend.served import DEFAULT_ID, Serving, code_and_message, needs_command_line, serving

ACTIVITY = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
WORKFLOW = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
ENHANCED = DescribeTaskQueueMode.DESCRIBE_TASK_QUEUE_MODE_ENHANCED
STICKY = TaskQueueKind.TASK_QUEUE_KIND_STICKY
ORDERS = TaskQueueId(DEFAULT_ID, "orders", TaskType.ACTIVITY)
FOUR: dict[str, Plain] = {"matching.numTasklistReadPartitions": 4, "matching.numTasklistWritePartitions": 4}


class World:
    def __init__(self, served: Serving, cluster: LocalCluster, client: MatchingClient) -> None:
        self.served = served
        self.cluster = cluster
        self.client = client

    async def describe(self, name: str = "orders", **what: Any) -> Any:
        return await self.served.workflow.DescribeTaskQueue(request(name, **what))

    async def update(self, **what: Any) -> Any:
        return (await self.served.workflow.UpdateTaskQueueConfig(update(**what))).config


def request(name: str = "orders", *, kind: Any = 0, **what: Any) -> DescribeTaskQueueRequest:
    fields: dict[str, Any] = {"namespace": "default", "task_queue_type": ACTIVITY} | what
    return DescribeTaskQueueRequest(task_queue=TaskQueue(name=name, kind=kind), **fields)


def update(**what: Any) -> UpdateTaskQueueConfigRequest:
    fields: dict[str, Any] = {"namespace": "default", "task_queue": "orders", "task_queue_type": ACTIVITY}
    return UpdateTaskQueueConfigRequest(**(fields | {"identity": "me"} | what))


def rate(rate_per_s: float | None, reason: str = "") -> UpdateTaskQueueConfigRequest.RateLimitUpdate:
    limit = None if rate_per_s is None else RateLimit(requests_per_second=rate_per_s)
    return UpdateTaskQueueConfigRequest.RateLimitUpdate(rate_limit=limit, reason=reason)


@asynccontextmanager
async def world(**settings: Plain) -> AsyncIterator[World]:
    async with LocalCluster(hosts=2, settings=DynamicSettings(overrides=settings)) as cluster, serving() as served:
        served.frontend.operator = cluster.operator()
        served.frontend.matching = client = cluster.client()
        yield World(served, cluster, client)


def new(payload: str, *, priority: int = 3, age_s: float = 0.0) -> NewTask:
    return NewTask(priority, "", 1.0, payload.encode(), time.time() - age_s)


# --- DescribeTaskQueue


async def test_an_unused_task_queue_is_empty_and_unlimited() -> None:
    async with world() as here:
        answer = await here.describe(report_stats=True, report_config=True)
        assert list(answer.pollers) == []
        assert answer.versioning_info.current_version == "__unversioned__"
        assert answer.stats.approximate_backlog_count == 0
        assert answer.stats.HasField("approximate_backlog_age")
        assert list(answer.stats_by_priority_key) == [3]
        assert not answer.HasField("config")
        assert answer.effective_rate_limit.requests_per_second == math.inf
        assert answer.effective_rate_limit.rate_limit_source == RateLimitSource.RATE_LIMIT_SOURCE_SYSTEM
        # The response has only the requested parts.
        assert not (await here.describe()).HasField("stats")


async def test_the_stats_add_up_all_partitions_in_total_and_by_priority() -> None:
    async with world(**FOUR) as here:
        for number in range(8):
            await here.client.add(ORDERS, new(str(number), age_s=60))
        await here.client.add(ORDERS, new("first", priority=1, age_s=10))
        answer = await here.describe(report_stats=True)
        assert answer.stats.approximate_backlog_count == 9
        assert answer.stats.approximate_backlog_age.seconds in (60, 61)
        assert answer.stats.tasks_add_rate > 0
        counts = {key: stats.approximate_backlog_count for key, stats in answer.stats_by_priority_key.items()}
        assert counts == {1: 1, 3: 8}
        assert answer.stats_by_priority_key[1].approximate_backlog_age.seconds in (10, 11)
        # Workflow and activity task queues share only the name.
        other = await here.describe(report_stats=True, task_queue_type=WORKFLOW)
        assert other.stats.approximate_backlog_count == 0


async def test_pollers_are_listed_with_the_details_that_they_sent() -> None:
    worker = PollerInfo(
        worker_version_capabilities=WorkerVersionCapabilities(build_id="B1"),
        deployment_options=WorkerDeploymentOptions(deployment_name="d", build_id="B1", worker_versioning_mode=1),  # type: ignore[arg-type]
    )
    async with world() as here:
        said = worker.SerializeToString()
        await here.client.poll(ORDERS, "limited", timeout_s=0.1, rate_per_s=7.0, worker=said)
        await here.client.poll(ORDERS, "silent", timeout_s=0.1)
        answer = await here.describe()
        by_identity = {one.identity: one for one in answer.pollers}
        assert set(by_identity) == {"limited", "silent"}
        limited, silent = by_identity["limited"], by_identity["silent"]
        assert (limited.rate_per_second, silent.rate_per_second) == (7.0, 100_000.0)
        assert limited.worker_version_capabilities == worker.worker_version_capabilities
        assert limited.deployment_options == worker.deployment_options
        assert not silent.HasField("deployment_options")
        assert limited.last_access_time.seconds == pytest.approx(time.time(), abs=5)
        assert answer.effective_rate_limit.requests_per_second == 7.0
        assert answer.effective_rate_limit.rate_limit_source == RateLimitSource.RATE_LIMIT_SOURCE_WORKER


async def test_a_poller_is_listed_without_details_that_this_release_can_not_decode() -> None:
    async with world() as here:
        await here.client.poll(ORDERS, "worker", timeout_s=0.1, worker=b"\xff\xff\xff")
        assert [one.identity for one in (await here.describe()).pollers] == ["worker"]


async def test_a_sticky_task_queue_has_pollers_and_no_stats() -> None:
    async with world() as here:
        own = TaskQueueId(DEFAULT_ID, "own", TaskType.WORKFLOW)
        await here.client.poll(own, "worker", timeout_s=0.1, kind=QueueKind.STICKY)
        answer = await here.describe("own", kind=STICKY, task_queue_type=WORKFLOW)
        assert [one.identity for one in answer.pollers] == ["worker"]
        assert not answer.HasField("versioning_info")
        ask = request("own", kind=STICKY, report_stats=True)
        assert await code_and_message(here.served.workflow.DescribeTaskQueue(ask)) == (
            "INVALID_ARGUMENT",
            "DescribeTaskQueue stats are only supported for the root partition",
        )


async def test_a_partition_can_be_described_by_its_own_name() -> None:
    async with world(**FOUR) as here:
        answer = await here.describe("/_sys/orders/3", include_task_queue_status=True)
        assert answer.task_queue_status.task_id_block.start_id == 1
        assert answer.task_queue_status.task_id_block.end_id == 100_000
        # The task queue has no partition 77; the server reports it as an empty partition.
        absent = await here.describe("/_sys/orders/77", include_task_queue_status=True)
        assert absent.task_queue_status.backlog_count_hint == 0
        assert absent.task_queue_status.task_id_block == answer.task_queue_status.task_id_block
        assert not absent.pollers


async def test_the_status_has_the_levels_of_the_root_partition() -> None:
    async with world() as here:
        await here.client.add(ORDERS, new("a"))
        status = (await here.describe(include_task_queue_status=True)).task_queue_status
        assert status.backlog_count_hint == 1
        assert status.read_level > status.ack_level == 0


async def test_the_enhanced_response_is_grouped_by_version_and_type() -> None:
    async with world() as here:
        await here.client.add(ORDERS, new("a"))
        versioned = PollerInfo(
            worker_version_capabilities=WorkerVersionCapabilities(build_id="B1", use_versioning=True)
        ).SerializeToString()
        deployed = PollerInfo(
            deployment_options=WorkerDeploymentOptions(deployment_name="d", build_id="B2", worker_versioning_mode=2)  # type: ignore[arg-type]
        ).SerializeToString()
        workflows = TaskQueueId(DEFAULT_ID, "orders", TaskType.WORKFLOW)
        await here.client.poll(workflows, "plain", timeout_s=0.1)
        await here.client.poll(workflows, "versioned", timeout_s=0.1, worker=versioned)
        await here.client.poll(workflows, "deployed", timeout_s=0.1, worker=deployed)
        answer = await here.describe(
            api_mode=ENHANCED, report_stats=True, report_pollers=True, report_task_reachability=True
        )
        assert list(answer.versions_info) == [""]
        assert set(answer.versions_info[""].types_info) == {1, 2}
        assert answer.versions_info[""].types_info[2].stats.approximate_backlog_count == 1
        assert [one.identity for one in answer.versions_info[""].types_info[1].pollers] == ["plain"]
        reachability = BuildIdTaskReachability.BUILD_ID_TASK_REACHABILITY_REACHABLE
        assert answer.versions_info[""].task_reachability == reachability
        selected = TaskQueueVersionSelection(build_ids=["B1", "B2", "B1"], unversioned=True)
        answer = await here.describe(
            api_mode=ENHANCED, report_pollers=True, versions=selected, task_queue_types=[WORKFLOW, WORKFLOW]
        )
        pollers = {
            version: [one.identity for one in info.types_info[1].pollers]
            for version, info in answer.versions_info.items()
        }
        assert pollers == {"": ["plain"], "B1": ["versioned"], "B2": ["deployed"]}
        assert not answer.versions_info[""].types_info[1].HasField("stats")
        nothing = await here.describe(api_mode=ENHANCED, versions=TaskQueueVersionSelection(), report_stats=True)
        assert list(nothing.versions_info) == []


BAD_DESCRIBES: dict[str, tuple[DescribeTaskQueueRequest, str, str]] = {
    "no namespace": (request(namespace=""), "INVALID_ARGUMENT", "Namespace is empty."),
    "unknown namespace": (request(namespace="nope"), "NOT_FOUND", "Namespace nope is not found."),
    "no queue": (DescribeTaskQueueRequest(namespace="default"), "INVALID_ARGUMENT", "taskQueue is not set"),
    "no name": (request(""), "INVALID_ARGUMENT", "missing task queue name"),
    "long name": (request("q" * 1001), "INVALID_ARGUMENT", "taskQueue length exceeds limit"),
    "no partition": (request("/_sys/q"), "INVALID_ARGUMENT", "invalid task queue partition name /_sys/q"),
    "unknown type": (request(task_queue_type=9), "INVALID_ARGUMENT", "Unknown task queue type: 9."),
    "stats of a partition": (
        request("/_sys/q/1", report_stats=True),
        "INVALID_ARGUMENT",
        "DescribeTaskQueue stats are only supported for the root partition",
    ),
    "enhanced sticky": (
        request(kind=STICKY, api_mode=ENHANCED),
        "INVALID_ARGUMENT",
        "Enhanced DescribeTaskQueue is not valid for a sticky queue, use api_mode=UNSPECIFIED or a normal queue.",
    ),
    "enhanced partition": (
        request("/_sys/q/1", api_mode=ENHANCED),
        "INVALID_ARGUMENT",
        "task queue name cannot start with reserved prefix /_sys/",
    ),
    "many build ids": (
        request(api_mode=ENHANCED, versions=TaskQueueVersionSelection(build_ids=["b"] * 1001)),
        "INVALID_ARGUMENT",
        "Too many build ids: 1001, maximum 1000.",
    ),
}


async def test_an_invalid_describe_is_refused_with_temporals_message() -> None:
    async with world() as here:
        for ask, code, message in BAD_DESCRIBES.values():
            assert await code_and_message(here.served.workflow.DescribeTaskQueue(ask)) == (code, message)
        assert await here.cluster.store.list_queues(None, after=None, limit=10) == []


# --- ListTaskQueuePartitions


async def test_partitions_are_listed_with_their_owners() -> None:
    async with world(**FOUR) as here:
        ask = ListTaskQueuePartitionsRequest(namespace="default", task_queue=TaskQueue(name="orders"))
        answer = await here.served.workflow.ListTaskQueuePartitions(ask)
        names = ["orders", "/_sys/orders/1", "/_sys/orders/2", "/_sys/orders/3"]
        for listed in (answer.activity_task_queue_partitions, answer.workflow_task_queue_partitions):
            assert [one.key for one in listed] == names
            assert {one.owner_host_name for one in listed} <= set(here.cluster.hosts)
        for wrong, message in (
            (ListTaskQueuePartitionsRequest(namespace="default"), "taskQueue is not set"),
            (
                ListTaskQueuePartitionsRequest(namespace="default", task_queue=TaskQueue(name="/_sys/a/1")),
                "task queue name cannot start with reserved prefix /_sys/",
            ),
        ):
            call = here.served.workflow.ListTaskQueuePartitions(wrong)
            assert await code_and_message(call) == ("INVALID_ARGUMENT", message)


# --- UpdateTaskQueueConfig


async def test_an_update_returns_the_whole_configuration_and_so_does_a_description() -> None:
    async with world(**FOUR) as here:
        began_s = time.time()
        config = await here.update(update_queue_rate_limit=rate(5, "too fast"))
        limit = config.queue_rate_limit
        assert limit.rate_limit.requests_per_second == 5
        assert (limit.metadata.reason, limit.metadata.update_identity) == ("too fast", "me")
        assert limit.metadata.update_time.ToMilliseconds() / 1000 == pytest.approx(began_s, abs=5)
        config = await here.update(
            identity="you",
            update_fairness_key_rate_limit_default=rate(2.5),
            set_fairness_weight_overrides={"a": 2.0, "b": 0.5},
        )
        assert config.queue_rate_limit == limit
        assert config.fairness_keys_rate_limit_default.rate_limit.requests_per_second == 2.5
        assert dict(config.fairness_weight_overrides) == {"a": 2.0, "b": 0.5}
        answer = await here.describe(report_config=True)
        assert answer.config == config
        assert answer.effective_rate_limit.requests_per_second == 5
        assert answer.effective_rate_limit.rate_limit_source == RateLimitSource.RATE_LIMIT_SOURCE_API
        # After a limit is removed, the identity of its last change remains; 0 is a limit.
        config = await here.update(
            update_queue_rate_limit=rate(None, "calm"), unset_fairness_weight_overrides=["a", "x"]
        )
        assert not config.queue_rate_limit.HasField("rate_limit")
        assert config.queue_rate_limit.metadata.reason == "calm"
        assert dict(config.fairness_weight_overrides) == {"b": 0.5}
        config = await here.update(update_queue_rate_limit=rate(0))
        assert config.queue_rate_limit.HasField("rate_limit")
        assert await here.update() == config
        # A task queue of the other type with the same name has its own configuration.
        assert not (await here.describe(report_config=True, task_queue_type=WORKFLOW)).HasField("config")


async def test_a_rate_limit_of_zero_stops_the_task_queue() -> None:
    async with world() as here:
        await here.update(update_queue_rate_limit=rate(0, "stop"))
        await here.client.add(ORDERS, new("a"))
        assert (await here.client.poll(ORDERS, "worker", timeout_s=0.3)).task is None
        polling = asyncio.create_task(here.client.poll(ORDERS, "worker", timeout_s=10))
        await here.update(update_queue_rate_limit=rate(None))
        assert (await polling).task == b"a"


def weights(count: int) -> dict[str, float]:
    return {f"key {number}": 1.5 for number in range(count)}


BAD_UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "no namespace": ({"namespace": ""}, "Namespace is empty."),
    "no name": ({"task_queue": ""}, "missing task queue name"),
    "long name": ({"task_queue": "q" * 1001}, "taskQueue length exceeds limit"),
    "partition": ({"task_queue": "/_sys/q/1"}, "task queue family name cannot have prefix /_sys/ /_sys/q/1"),
    "no type": ({"task_queue_type": 0}, "Task queue type is not set."),
    "unknown type": ({"task_queue_type": 9}, "Unknown task queue type: 9."),
    "rate of workflow tasks": (
        {"task_queue_type": WORKFLOW, "update_queue_rate_limit": rate(5)},
        "Setting rate limit on workflow task queues is not allowed.",
    ),
    "key rate of workflow tasks": (
        {"task_queue_type": WORKFLOW, "update_fairness_key_rate_limit_default": rate(5)},
        "Setting fairness key rate limit on workflow task queues is not allowed.",
    ),
    "negative rate": (
        {"update_queue_rate_limit": rate(-5)},
        "RequestsPerSecond for UpdateQueueRateLimit rate limit must be non-negative.",
    ),
    "no number": (
        {"update_fairness_key_rate_limit_default": rate(math.nan)},
        "RequestsPerSecond for UpdateFairnessKeyRateLimitDefault rate limit must be non-negative.",
    ),
    "long reason": (
        {"update_queue_rate_limit": rate(5, "r" * 1001)},
        "UpdateQueueRateLimit.Reason field too long (max 1000 characters).",
    ),
    "long identity": ({"identity": "i" * 1001}, "Identity field too long (max 1000 characters)."),
    "weight of 0": (
        {"set_fairness_weight_overrides": {"a": 0}},
        'invalid fairness weight weight for key "a": must be greater than zero',
    ),
    "weight that is no number": (
        {"set_fairness_weight_overrides": {"a": math.nan}},
        'invalid fairness weight weight for key "a": must be greater than zero',
    ),
    "no key": ({"set_fairness_weight_overrides": {"": 1}}, "fairness weight override key must not be empty"),
    "no key to unset": ({"unset_fairness_weight_overrides": [""]}, "fairness weight override key must not be empty"),
    "long key": ({"set_fairness_weight_overrides": {"k" * 65: 1}}, "fairness key length exceeds limit"),
    "set and unset": (
        {"set_fairness_weight_overrides": {"a": 1}, "unset_fairness_weight_overrides": ["a"]},
        'fairness weight override key "a" present in both set and unset lists',
    ),
    "many weights": (
        {"set_fairness_weight_overrides": weights(600), "unset_fairness_weight_overrides": ["x"] * 401},
        "too many fairness weight overrides in request: got 1001, maximum 1000",
    ),
}


async def test_an_invalid_update_is_refused_with_temporals_message_and_changes_nothing() -> None:
    async with world() as here:
        for what, message in BAD_UPDATES.values():
            call = here.served.workflow.UpdateTaskQueueConfig(update(**what))
            assert await code_and_message(call) == ("INVALID_ARGUMENT", message)
        assert await here.cluster.store.list_queues(None, after=None, limit=10) == []


async def test_a_task_queue_can_have_at_most_a_thousand_fairness_weights() -> None:
    async with world() as here:
        config = await here.update(set_fairness_weight_overrides=weights(1000))
        assert len(config.fairness_weight_overrides) == 1000
        call = here.served.workflow.UpdateTaskQueueConfig(update(set_fairness_weight_overrides={"one more": 1.0}))
        assert await code_and_message(call) == (
            "INVALID_ARGUMENT",
            "fairness weight overrides update rejected: exceeding maximum key size",
        )
        config = await here.update(set_fairness_weight_overrides={"key 0": 9.0})
        assert config.fairness_weight_overrides["key 0"] == 9.0


# --- the official command line


@needs_command_line
async def test_the_official_command_line_describes_and_configures_a_task_queue() -> None:
    async with world(**FOUR) as here:
        await here.client.add(ORDERS, new("a", age_s=5))
        await here.client.poll(TaskQueueId(DEFAULT_ID, "orders", TaskType.WORKFLOW), "my worker", timeout_s=0.1)
        said = await here.served.temporal("task-queue", "describe", "-t", "orders", "-o", "json")
        rows = {row["taskQueueType"]: row for row in json.loads(said)["stats"]}
        assert rows["activity"]["approximateBacklogCount"] == 1
        assert "my worker" in await here.served.temporal("task-queue", "describe", "-t", "orders")
        queue = ("-t", "orders", "--task-queue-type", "activity")
        await here.served.temporal(
            *("task-queue", "config", "set", *queue, "--queue-rps-limit", "3", "--queue-rps-limit-reason", "because"),
            *("--fairness-key-weight", "a=2"),
        )
        config = json.loads(await here.served.temporal("task-queue", "config", "get", *queue, "-o", "json"))
        assert config["queueRateLimit"]["rateLimit"]["requestsPerSecond"] == 3
        assert config["queueRateLimit"]["metadata"]["reason"] == "because"
        assert config["fairnessWeightOverrides"] == {"a": 2}
        await here.served.temporal("task-queue", "config", "set", *queue, "--queue-rps-limit", "default")
        assert "Not Set" in await here.served.temporal("task-queue", "config", "get", *queue)
        assert "/_sys/orders/3" in await here.served.temporal("task-queue", "list-partition", "-t", "orders")
