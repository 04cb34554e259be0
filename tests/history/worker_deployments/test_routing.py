"""Routing of workflows to versions, by the existing deployments."""

import pytest
from temporalio.api.deployment.v1 import WorkerDeploymentOptions
from temporalio.api.enums.v1 import WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo

from fairlead.api.worker_deployments.routing import (
    Mark,
    Route,
    decode_mark,
    encode_mark,
    list_of,
    routes_of,
    threshold,
    version_of,
)
from fairlead.api.worker_deployments.state import Deployment, VersionState
from fairlead.api.worker_versions import Version
from fairlead.core.partitions import TaskQueueId, TaskType

NAMESPACE = "namespace"
ORDERS = (NAMESPACE, "orders", int(TaskType.WORKFLOW))
V1, V2 = Version("shop", "v1"), Version("shop", "v2")


def deployment(name: str = "shop", **fields: object) -> Deployment:
    versions = {
        build_id: VersionState(build_id, number, [("orders", int(TaskType.WORKFLOW))])
        for number, build_id in enumerate(("v1", "v2"))
    }
    return Deployment(NAMESPACE, name, 0, versions, **fields)  # type: ignore[arg-type]


def test_a_task_queue_of_no_current_version_has_no_route() -> None:
    assert routes_of([deployment()]) == {}


def test_everything_goes_to_the_current_version() -> None:
    route = routes_of([deployment(current="v1", current_changed_ns=1)])[ORDERS]
    assert {route.target(f"workflow {number}") for number in range(100)} == {V1}


@pytest.mark.parametrize(("percentage", "low", "high"), [(0.0, 0, 0), (20.0, 120, 280), (100.0, 1000, 1000)])
def test_a_part_goes_to_the_ramping_version(percentage: float, low: int, high: int) -> None:
    route = Route(current=V1, ramping=V2, percentage=percentage)
    assert low <= sum(route.target(f"workflow {number}") == V2 for number in range(1000)) <= high


def test_workflows_on_the_ramping_version_stay_there_when_the_percentage_grows() -> None:
    ids = [f"workflow {number}" for number in range(500)]
    ramped = {one for one in ids if Route(V1, V2, 30.0).target(one) == V2}
    assert ramped < {one for one in ids if Route(V1, V2, 60.0).target(one) == V2}
    assert all(0 <= threshold(one) < 100 for one in ids)


def test_a_ramp_to_unversioned_workers_takes_its_share() -> None:
    route = routes_of(
        [deployment(current="v1", ramping="", ramp_percentage=50.0, current_changed_ns=1, ramping_changed_ns=2)]
    )[ORDERS]
    assert {route.target(f"workflow {number}") for number in range(100)} == {V1, None}


def test_the_deployment_that_was_set_last_owns_the_task_queue() -> None:
    first = deployment("first", current="v1", current_changed_ns=1)
    second = deployment("second", current="v1", current_changed_ns=2)
    for both in ([first, second], [second, first]):
        assert routes_of(both)[ORDERS].target("workflow") == Version("second", "v1")


def test_only_task_queues_polled_by_workers_of_the_version_are_routed() -> None:
    one = deployment(current="v2", current_changed_ns=1)
    one.versions["v2"].task_queues = [("invoices", int(TaskType.WORKFLOW))]
    assert list(routes_of([one])) == [(NAMESPACE, "invoices", int(TaskType.WORKFLOW))]


def test_each_version_has_a_task_queue_that_no_user_can_name() -> None:
    plain = TaskQueueId(NAMESPACE, "orders", TaskType.WORKFLOW)
    assert list_of(plain, None) == plain
    lists = {list_of(plain, version) for version in (V1, V2, Version("shop:v1", "v1"), Version("shop", "v1:v1"))}
    assert len(lists) == 4
    assert all(one.name == "orders" and "#" in one.namespace_id for one in lists)


def test_a_worker_has_a_version_only_if_it_uses_versioning() -> None:
    options = WorkerDeploymentOptions(deployment_name="shop", build_id="v1")
    assert version_of(PollerInfo(deployment_options=options).SerializeToString()) is None
    options.worker_versioning_mode = WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    assert version_of(PollerInfo(deployment_options=options).SerializeToString()) == V1
    assert version_of(b"") is None
    assert version_of(b"\xff") is None


def test_the_payload_of_a_mark_is_not_taken_for_a_worker() -> None:
    mark = Mark("orders", int(TaskType.WORKFLOW), V1)
    assert decode_mark(encode_mark(mark)) == mark
    assert version_of(encode_mark(mark)) is None
    assert decode_mark(b"") is None
