"""Operator commands on a worker deployment."""

import pytest

from fairlead.api.errors import ApiError, FailedPrecondition
from fairlead.api.worker_deployments import steps
from fairlead.api.worker_deployments.state import DRAINED, DRAINING, Deployment, VersionState
from fairlead.core.partitions import TaskType

WORKFLOW = int(TaskType.WORKFLOW)


@pytest.fixture
def deployment() -> Deployment:
    versions = {build_id: VersionState(build_id, 1, [("orders", WORKFLOW)]) for build_id in ("v1", "v2")}
    return Deployment("namespace", "shop", 1, versions)


def test_a_version_that_is_current_no_longer_drains(deployment: Deployment) -> None:
    assert steps.set_current(deployment, "v1", identity="me", now_ns=10)
    assert steps.set_current(deployment, "v2", identity="me", now_ns=20)
    first, second = deployment.versions["v1"], deployment.versions["v2"]
    assert (first.drainage, first.deactivated_ns, first.current_since_ns) == (DRAINING, 20, 0)
    assert (second.drainage, second.current_since_ns, second.is_active) == (0, 20, True)
    assert (deployment.revision, deployment.modifier) == (2, "me")


def test_a_version_that_becomes_current_again_stops_draining(deployment: Deployment) -> None:
    for build_id in ("v1", "v2", "v1"):
        steps.set_current(deployment, build_id, identity="", now_ns=10)
    assert deployment.versions["v1"].drainage == 0


def test_setting_the_current_version_again_changes_nothing(deployment: Deployment) -> None:
    steps.set_current(deployment, "v1", identity="me", now_ns=10)
    token = steps.token_of(deployment)
    assert not steps.set_current(deployment, "v1", identity="you", now_ns=20)
    assert (steps.token_of(deployment), deployment.revision, deployment.modifier) == (token, 1, "me")


def test_the_ramp_ends_when_its_version_becomes_current(deployment: Deployment) -> None:
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    steps.set_ramping(deployment, "v2", 10.0, identity="", now_ns=20)
    steps.set_current(deployment, "v2", identity="", now_ns=30)
    assert (deployment.ramping, deployment.ramp_percentage) == (None, 0.0)
    assert (deployment.versions["v2"].ramping_since_ns, deployment.versions["v2"].first_activated_ns) == (0, 20)


def test_the_current_version_does_not_ramp(deployment: Deployment) -> None:
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    with pytest.raises(ApiError, match=r"requested ramping version shop\.v1 is already current"):
        steps.set_ramping(deployment, "v1", 10.0, identity="", now_ns=20)


def test_every_task_queue_with_possibly_misrouted_tasks_is_recorded(deployment: Deployment) -> None:
    """The queues of the versions before the change, and those of unversioned workers."""
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    assert deployment.moved == [("orders", WORKFLOW, "")]
    deployment.moved = []
    steps.set_ramping(deployment, "v2", 50.0, identity="", now_ns=20)
    deployment.moved = []
    steps.set_current(deployment, "", identity="", now_ns=30)
    assert deployment.moved == [("orders", WORKFLOW, one) for one in ("", "v1", "v2")]
    assert deployment.moved_ns == 30


def test_a_change_with_an_old_conflict_token_is_refused(deployment: Deployment) -> None:
    token = steps.token_of(deployment)
    steps.check_token(deployment, token)
    steps.check_token(deployment, b"")
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    with pytest.raises(FailedPrecondition, match="conflict token mismatch"):
        steps.check_token(deployment, token)


def test_only_the_manager_may_change_a_deployment(deployment: Deployment) -> None:
    steps.check_manager(deployment, "anybody")
    deployment.manager = "boss"
    steps.check_manager(deployment, "boss")
    with pytest.raises(ApiError, match="ManagerIdentity 'boss' is set and does not match user identity 'me'"):
        steps.check_manager(deployment, "me")


@pytest.mark.parametrize(
    ("drainage", "skip_drainage", "has_pollers", "problem"),
    [
        (DRAINING, False, False, "is draining"),
        (DRAINING, True, True, "has active pollers"),
        (DRAINED, False, True, "has active pollers"),
        (DRAINING, True, False, None),
        (DRAINED, False, False, None),
    ],
)
def test_a_version_in_use_is_not_deleted(
    deployment: Deployment, drainage: int, skip_drainage: bool, has_pollers: bool, problem: str | None
) -> None:
    state = deployment.versions["v1"]
    state.drainage = drainage
    if problem is None:
        steps.check_deletable(deployment, state, skip_drainage=skip_drainage, has_pollers=has_pollers)
        return
    with pytest.raises(ApiError, match=f"version 'shop:v1' cannot be deleted since it {problem}"):
        steps.check_deletable(deployment, state, skip_drainage=skip_drainage, has_pollers=has_pollers)


def test_the_current_version_is_not_deleted(deployment: Deployment) -> None:
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    with pytest.raises(ApiError, match="is current or ramping"):
        steps.check_deletable(deployment, deployment.versions["v1"], skip_drainage=True, has_pollers=False)


def test_task_queues_that_a_version_does_not_serve_are_found(deployment: Deployment) -> None:
    deployment.versions["v1"].task_queues = [("invoices", WORKFLOW), ("orders", WORKFLOW)]
    assert steps.missing_task_queues(deployment, "v2") == set()
    steps.set_current(deployment, "v1", identity="", now_ns=10)
    assert steps.missing_task_queues(deployment, "v2") == {("invoices", WORKFLOW)}
