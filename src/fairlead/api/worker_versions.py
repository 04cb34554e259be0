"""The worker version of a run, computed from its events."""

from typing import Protocol

import msgspec
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import ContinueAsNewVersioningBehavior, VersioningBehavior
from temporalio.api.history.v1 import (
    WorkflowExecutionStartedEventAttributes,
    WorkflowTaskCompletedEventAttributes,
)
from temporalio.api.workflow.v1 import VersioningOverride

PINNED = int(VersioningBehavior.VERSIONING_BEHAVIOR_PINNED)
AUTO_UPGRADE = int(VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE)
USE_RAMPING = int(ContinueAsNewVersioningBehavior.CONTINUE_AS_NEW_VERSIONING_BEHAVIOR_USE_RAMPING_VERSION)
# Maximum number of versions that a run remembers as used; each is a value of a search attribute.
USED_MAX = 50


class Version(msgspec.Struct, array_like=True, frozen=True):
    """One version of the workers of a deployment."""

    deployment: str
    build_id: str

    def __str__(self) -> str:
        """The form in search attributes."""
        return f"{self.deployment}:{self.build_id}"

    @property
    def dotted(self) -> str:
        """The format of Temporal's older API fields."""
        return f"{self.deployment}.{self.build_id}"

    def message(self) -> WorkerDeploymentVersion:
        """The form in API messages."""
        return WorkerDeploymentVersion(deployment_name=self.deployment, build_id=self.build_id)

    @classmethod
    def of(cls, message: WorkerDeploymentVersion) -> "Version | None":
        """The version in a message; None if the message is empty."""
        if not message.deployment_name or not message.build_id:
            return None
        return cls(message.deployment_name, message.build_id)


class RunVersioning(msgspec.Struct, array_like=True):
    """The versioning state of a run. `behavior` and `version` come from the last completed workflow task."""

    behavior: int = 0
    version: Version | None = None
    # From the parent or the previous run; applies until the first workflow task is completed.
    inherited_pinned: Version | None = None
    inherited_auto: bytes | None = None
    # A newer version that the previous run declined to upgrade to.
    declined: Version | None = None
    used: list[str] = []
    # The pinned version in the first event; a retry begins with it again.
    begun_pinned: Version | None = None
    # Number of the ContinueAsNewVersioningBehavior that the run began with; applies to its first workflow task.
    initial_behavior: int = 0

    @property
    def pinned(self) -> Version | None:
        """The version that gets all workflow tasks of the run, even if another version is current."""
        if self.behavior == PINNED:
            return self.version
        return self.inherited_pinned if not self.behavior else None


def partition_version(text: str) -> tuple[str, str, str]:
    """The deployment, the delimiter and the build id in a version of the deprecated form, as of `str.partition`.

    The first "." or ":" is the delimiter, since names of deployments have neither; build ids may have both.
    """
    position = min((text.find(delimiter) for delimiter in ".:" if delimiter in text), default=len(text))
    return text[:position], text[position : position + 1], text[position + 1 :]


def pinned_by(override: VersioningOverride) -> Version | None:
    """The version to which an override pins a run, in the new or the deprecated form; None if it doesn't pin."""
    if override.HasField("pinned"):
        return Version.of(override.pinned.version)
    if override.behavior == PINNED:
        if override.HasField("deployment"):
            deployment, build_id = override.deployment.series_name, override.deployment.build_id
        else:
            deployment, _, build_id = partition_version(override.pinned_version)
        return Version(deployment, build_id) if deployment and build_id else None
    return None


def in_new_form(override: VersioningOverride) -> VersioningOverride:
    """The override in the form that events have: without the deprecated fields."""
    new = VersioningOverride()
    new.CopyFrom(override)
    for name in ("behavior", "deployment", "pinned_version"):
        new.ClearField(name)
    if new.WhichOneof("override") is not None:
        return new
    pinned = pinned_by(override)
    if pinned is not None:
        new.pinned.version.CopyFrom(pinned.message())
        new.pinned.behavior = VersioningOverride.PinnedOverrideBehavior.PINNED_OVERRIDE_BEHAVIOR_PINNED
    elif override.behavior == AUTO_UPGRADE:
        new.auto_upgrade = True
    return new


class Versioned(Protocol):
    """The versioning fields of a run's state."""

    @property
    def versioning(self) -> RunVersioning | None:
        """The versioning state from the run's workflow tasks."""
        ...

    @property
    def versioning_override(self) -> bytes:
        """The operator's serialized VersioningOverride."""
        ...


def pinned_version(state: Versioned) -> Version | None:
    """The version that a run is pinned to; the operator's override takes precedence over the worker's behavior."""
    if state.versioning_override:
        return pinned_by(VersioningOverride.FromString(state.versioning_override))
    return state.versioning.pinned if state.versioning is not None else None


def begins_ramping(state: Versioned) -> bool:
    """Whether the run's next workflow task is its first task, and is for the ramping version."""
    versioning = state.versioning
    return (
        versioning is not None and versioning.initial_behavior == USE_RAMPING and versioning.inherited_auto is not None
    )


def behavior_of(state: Versioned) -> int:
    """The versioning behavior that applies to a run, as the number of a VersioningBehavior."""
    if pinned_version(state) is not None:
        return PINNED
    if state.versioning_override:
        return AUTO_UPGRADE
    return state.versioning.behavior if state.versioning is not None else 0


def begun(attributes: WorkflowExecutionStartedEventAttributes) -> RunVersioning | None:
    """The versioning state after the first event; None for a run without versioning."""
    has = attributes.HasField
    if not (
        has("inherited_pinned_version") or has("inherited_auto_upgrade_info") or has("declined_target_version_upgrade")
    ):
        return None
    versioning = RunVersioning(
        inherited_pinned=Version.of(attributes.inherited_pinned_version),
        begun_pinned=Version.of(attributes.inherited_pinned_version),
        inherited_auto=(
            attributes.inherited_auto_upgrade_info.SerializeToString()
            if attributes.HasField("inherited_auto_upgrade_info")
            else None
        ),
        declined=Version.of(attributes.declined_target_version_upgrade.deployment_version),
        initial_behavior=int(attributes.inherited_auto_upgrade_info.continue_as_new_initial_versioning_behavior),
    )
    return None if versioning == RunVersioning() else versioning


def completed(
    versioning: RunVersioning | None, attributes: WorkflowTaskCompletedEventAttributes
) -> RunVersioning | None:
    """The versioning state after a workflow task was completed, by a worker with or without a version."""
    version = Version.of(attributes.deployment_version)
    if version is None and versioning is None:
        return None
    versioning = versioning or RunVersioning()
    versioning.behavior = int(attributes.versioning_behavior) if version is not None else 0
    versioning.version = version if versioning.behavior else None
    versioning.inherited_pinned = versioning.inherited_auto = None
    if versioning.version is not None and str(versioning.version) not in versioning.used:
        versioning.used = [*versioning.used[1 - USED_MAX :], str(versioning.version)]
    return versioning
