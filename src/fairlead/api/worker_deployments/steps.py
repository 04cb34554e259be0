"""Changes of a deployment by operators: set the current or ramping version, delete a version."""

from collections.abc import Iterable

from fairlead.api.errors import FailedPrecondition, NotFound
from fairlead.api.worker_deployments.registry import add_version, note_moved
from fairlead.api.worker_deployments.state import DRAINED, DRAINING, UNVERSIONED, Deployment, VersionState

UNVERSIONED_NAME = "__unversioned__"
_PERCENTAGE_MAX = 100.0


def check_token(deployment: Deployment, token: bytes) -> None:
    """Raise an API error if the token is not the present conflict token."""
    if token and token != token_of(deployment):
        raise FailedPrecondition("conflict token mismatch")


def token_of(deployment: Deployment) -> bytes:
    """The conflict token of the present state."""
    return f"{deployment.created_ns}.{deployment.token}".encode()


def check_manager(deployment: Deployment, identity: str) -> None:
    """Raise an API error if another identity manages the deployment."""
    if deployment.manager and deployment.manager != identity:
        raise FailedPrecondition(
            f"ManagerIdentity '{deployment.manager}' is set and does not match user identity '{identity}'; to proceed, "
            "set your own identity as the ManagerIdentity, remove the ManagerIdentity, or wait for the other client to "
            "do so"
        )


def find_version(deployment: Deployment, build_id: str, *, may_add: bool, now_ns: int) -> VersionState:
    """The version with this build id; with `may_add`, a version that no worker has polled yet is added."""
    state = deployment.versions.get(build_id)
    if state is None:
        if not may_add:
            raise NotFound(f"build ID '{build_id}' not found in Worker Deployment '{deployment.name}'")
        state = add_version(deployment, build_id, now_ns)
    return state


def dotted(deployment: Deployment, build_id: str) -> str:
    """The version in the format of Temporal's older API fields."""
    return f"{deployment.name}.{build_id}" if build_id else UNVERSIONED_NAME


def set_current(deployment: Deployment, build_id: str, *, identity: str, now_ns: int) -> bool:
    """Route new tasks to this version; false if it is current already."""
    if deployment.current == build_id:
        return False
    before = _routed(deployment)
    previous, deployment.current = deployment.current, build_id
    if deployment.ramping == build_id:
        deployment.ramping, deployment.ramp_percentage = None, 0.0
        deployment.ramping_changed_ns = deployment.percentage_changed_ns = now_ns
    if build_id:
        state = deployment.versions[build_id]
        state.current_since_ns = state.last_current_ns = now_ns
        state.ramping_since_ns = 0
        _activate(state, now_ns)
        state.drainage_changed_ns = state.drainage_checked_ns = now_ns
    if previous:
        state = deployment.versions[previous]
        state.current_since_ns = 0
        if deployment.ramping != previous:
            _deactivate(state, now_ns)
    deployment.current_changed_ns = now_ns
    _note(deployment, before, identity=identity, now_ns=now_ns)
    return True


def set_ramping(deployment: Deployment, build_id: str | None, percentage: float, *, identity: str, now_ns: int) -> bool:
    """Route a percentage of new tasks to this version, or end the ramp (None); false if nothing changes."""
    if build_id is not None and build_id == deployment.current:
        raise FailedPrecondition(f"requested ramping version {dotted(deployment, build_id)} is already current")
    if (deployment.ramping, deployment.ramp_percentage) == (build_id, percentage):
        return False
    before = _routed(deployment)
    previous, deployment.ramping = deployment.ramping, build_id
    if previous != build_id:
        deployment.ramping_changed_ns = now_ns
        if previous:
            deployment.versions[previous].ramping_since_ns = 0
            _deactivate(deployment.versions[previous], now_ns)
        if build_id:
            state = deployment.versions[build_id]
            state.ramping_since_ns = now_ns
            _activate(state, now_ns)
            state.drainage_changed_ns = state.drainage_checked_ns = 0
    elif build_id:
        deployment.versions[build_id].routing_changed_ns = now_ns
    if deployment.ramp_percentage != percentage:
        deployment.percentage_changed_ns = now_ns
    deployment.ramp_percentage = percentage
    _note(deployment, before, identity=identity, now_ns=now_ns)
    return True


def check_deletable(deployment: Deployment, state: VersionState, *, skip_drainage: bool, has_pollers: bool) -> None:
    """Raise an API error if the version must not be deleted."""
    problem = None
    if state.build_id in (deployment.current, deployment.ramping):
        problem = "is current or ramping"
    elif state.drainage == DRAINING and not skip_drainage:
        problem = "is draining"
    elif has_pollers:
        problem = "has active pollers"
    if problem is not None:
        name = f"{deployment.name}:{state.build_id}"
        raise FailedPrecondition(f"version '{name}' cannot be deleted since it {problem}")


def missing_task_queues(deployment: Deployment, build_id: str) -> set[tuple[str, int]]:
    """The task queues of the current version that another version lacks: no versioned worker would serve them."""
    if not deployment.current or not build_id:
        return set()
    current, wanted = deployment.versions[deployment.current], deployment.versions[build_id]
    return set(current.task_queues) - set(wanted.task_queues)


def missing_task_queues_error(deployment: Deployment, build_id: str, becomes: str) -> FailedPrecondition:
    """The API error for a version that lacks task queues which the current version serves."""
    return FailedPrecondition(
        f"proposed {becomes} version '{dotted(deployment, build_id)}' is missing active task queues from the current "
        f"version; these would become unversioned if it is set as the {becomes} version"
    )


def note_drainage(state: VersionState, *, is_drained: bool, now_ns: int) -> None:
    """Record whether a version is drained: no open runs are pinned to it."""
    state.drainage_checked_ns = now_ns
    if is_drained:
        state.drainage, state.drainage_changed_ns = DRAINED, now_ns


def _activate(state: VersionState, now_ns: int) -> None:
    state.first_activated_ns = state.first_activated_ns or now_ns
    state.routing_changed_ns = now_ns
    state.deactivated_ns = state.drainage = 0


def _deactivate(state: VersionState, now_ns: int) -> None:
    state.deactivated_ns = state.routing_changed_ns = now_ns
    state.drainage = DRAINING
    state.drainage_changed_ns = state.drainage_checked_ns = now_ns


def _routed(deployment: Deployment) -> list[tuple[str, int, str]]:
    """The task queues in which tasks of unpinned runs may wait now."""
    queue_keys: list[tuple[str, int, str]] = []
    for build_id in _active(deployment):
        for name, task_type in deployment.versions[build_id].task_queues:
            queue_keys += [(name, task_type, build_id), (name, task_type, UNVERSIONED)]
    return queue_keys


def _active(deployment: Deployment) -> Iterable[str]:
    return [build_id for build_id in (deployment.current, deployment.ramping) if build_id in deployment.versions]


def _note(deployment: Deployment, before: list[tuple[str, int, str]], *, identity: str, now_ns: int) -> None:
    """Record a change of the routing: tasks may wait in task queues of the old routes, or in unversioned ones."""
    deployment.revision += 1
    deployment.token += 1
    deployment.modifier = identity
    now = [queue_key for queue_key in _routed(deployment) if queue_key[2] == UNVERSIONED]
    note_moved(deployment, [*before, *now], now_ns)
