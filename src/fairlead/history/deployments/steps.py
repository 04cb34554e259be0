"""What operators do with a deployment: which version is current, which ramps up, and which may go."""

from collections.abc import Iterable

from fairlead.history.deployments.registry import add_version, note_moved
from fairlead.history.deployments.state import DRAINED, DRAINING, UNVERSIONED, Deployment, VersionState
from fairlead.history.refusals import Refused, failed_precondition, not_found

UNVERSIONED_NAME = "__unversioned__"
_PERCENTAGE_MAX = 100.0


def check_token(deployment: Deployment, token: bytes) -> None:
    """Refuse who has seen an older state than this."""
    if token and token != token_of(deployment):
        raise failed_precondition("conflict token mismatch")


def token_of(deployment: Deployment) -> bytes:
    """What shows that one has seen this state."""
    return f"{deployment.created_ns}.{deployment.token}".encode()


def check_manager(deployment: Deployment, identity: str) -> None:
    """Refuse all but the one who manages the deployment, if somebody does."""
    if deployment.manager and deployment.manager != identity:
        raise failed_precondition(
            f"ManagerIdentity '{deployment.manager}' is set and does not match user identity '{identity}'; to proceed, "
            "set your own identity as the ManagerIdentity, remove the ManagerIdentity, or wait for the other client to "
            "do so"
        )


def find_version(deployment: Deployment, build_id: str, *, may_add: bool, now_ns: int) -> VersionState:
    """The version of a build id; one that nobody has polled for yet is added only if that is wanted."""
    state = deployment.versions.get(build_id)
    if state is None:
        if not may_add:
            raise not_found(f"build ID '{build_id}' not found in Worker Deployment '{deployment.name}'")
        state = add_version(deployment, build_id, now_ns)
    return state


def dotted(deployment: Deployment, build_id: str) -> str:
    """A version as the first clients wrote it."""
    return f"{deployment.name}.{build_id}" if build_id else UNVERSIONED_NAME


def set_current(deployment: Deployment, build_id: str, *, identity: str, now_ns: int) -> bool:
    """New work goes to this version from now on; False if it did before."""
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
    """A part of new work goes to this version from now on, or to none (None); False if nothing changes."""
    if build_id is not None and build_id == deployment.current:
        raise failed_precondition(f"requested ramping version {dotted(deployment, build_id)} is already current")
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
    """Refuse to delete a version that somebody may need."""
    problem = None
    if state.build_id in (deployment.current, deployment.ramping):
        problem = "is current or ramping"
    elif state.drainage == DRAINING and not skip_drainage:
        problem = "is draining"
    elif has_pollers:
        problem = "has active pollers"
    if problem is not None:
        name = f"{deployment.name}:{state.build_id}"
        raise failed_precondition(f"version '{name}' cannot be deleted since it {problem}")


def missing_task_queues(deployment: Deployment, build_id: str) -> set[tuple[str, int]]:
    """The task queues of the current version that another one has not: nobody of a version would serve them."""
    if not deployment.current or not build_id:
        return set()
    current, wanted = deployment.versions[deployment.current], deployment.versions[build_id]
    return set(current.task_queues) - set(wanted.task_queues)


def missing_refusal(deployment: Deployment, build_id: str, becomes: str) -> Refused:
    """The refusal of a version without task queues that are in use."""
    return failed_precondition(
        f"proposed {becomes} version '{dotted(deployment, build_id)}' is missing active task queues from the current "
        f"version; these would become unversioned if it is set as the {becomes} version"
    )


def note_drainage(state: VersionState, *, is_drained: bool, now_ns: int) -> None:
    """Take note of whether runs are left that are pinned to a version."""
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
    """Where tasks of runs that are not pinned may wait now."""
    places: list[tuple[str, int, str]] = []
    for build_id in _active(deployment):
        for name, task_type in deployment.versions[build_id].task_queues:
            places += [(name, task_type, build_id), (name, task_type, UNVERSIONED)]
    return places


def _active(deployment: Deployment) -> Iterable[str]:
    return [build_id for build_id in (deployment.current, deployment.ramping) if build_id in deployment.versions]


def _note(deployment: Deployment, before: list[tuple[str, int, str]], *, identity: str, now_ns: int) -> None:
    """The routing has changed: tasks may wait in the wrong place, of before or, without a version, of now."""
    deployment.revision += 1
    deployment.token += 1
    deployment.modifier = identity
    now = [place for place in _routed(deployment) if place[2] == UNVERSIONED]
    note_moved(deployment, [*before, *now], now_ns)
