"""Which version of the workers a run belongs to, as its events say."""

from typing import Protocol

import msgspec
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import VersioningBehavior
from temporalio.api.history.v1 import (
    WorkflowExecutionStartedEventAttributes,
    WorkflowTaskCompletedEventAttributes,
)
from temporalio.api.workflow.v1 import VersioningOverride

PINNED = int(VersioningBehavior.VERSIONING_BEHAVIOR_PINNED)
AUTO_UPGRADE = int(VersioningBehavior.VERSIONING_BEHAVIOR_AUTO_UPGRADE)
# Versions that a run remembers to have been worked on by; it is found by each.
USED_MAX = 50


class Version(msgspec.Struct, array_like=True, frozen=True):
    """One version of the workers of a deployment."""

    deployment: str
    build_id: str

    def __str__(self) -> str:
        """As search attributes have it."""
        return f"{self.deployment}:{self.build_id}"

    @property
    def dotted(self) -> str:
        """As the first clients wrote it."""
        return f"{self.deployment}.{self.build_id}"

    def message(self) -> WorkerDeploymentVersion:
        """As the API has it."""
        return WorkerDeploymentVersion(deployment_name=self.deployment, build_id=self.build_id)

    @classmethod
    def of(cls, message: WorkerDeploymentVersion) -> "Version | None":
        """The version that a message names; None if it is empty."""
        if not message.deployment_name or not message.build_id:
            return None
        return cls(message.deployment_name, message.build_id)


class RunVersioning(msgspec.Struct, array_like=True):
    """What a run knows of versions. `behavior` and `version` are those of the last completed workflow task."""

    behavior: int = 0
    version: Version | None = None
    # From the parent, or from the run before: holds until the first workflow task is completed.
    inherited_pinned: Version | None = None
    inherited_auto: bytes | None = None
    # A newer version that the run before did not want to move to.
    declined: Version | None = None
    used: list[str] = []
    # What the first event said: a retry begins with it again.
    begun_pinned: Version | None = None

    @property
    def pinned(self) -> Version | None:
        """The version to which all workflow tasks go, whatever is current."""
        if self.behavior == PINNED:
            return self.version
        return self.inherited_pinned if not self.behavior else None


def pinned_by(override: VersioningOverride) -> Version | None:
    """The version that an override pins a run to, in the new or in the old form; None if it does not."""
    if override.HasField("pinned"):
        return Version.of(override.pinned.version)
    if override.behavior == PINNED:
        deployment, _, build_id = override.pinned_version.replace(":", ".", 1).partition(".")
        return Version(deployment, build_id) if deployment and build_id else None
    return None


class Versioned(Protocol):
    """A run's state, as far as versions go."""

    @property
    def versioning(self) -> RunVersioning | None:
        """What follows from the workers."""
        ...

    @property
    def versioning_override(self) -> bytes:
        """What an operator wants."""
        ...


def pinned_version(state: Versioned) -> Version | None:
    """The version that a run is pinned to: what an operator wants stands above what the worker says."""
    if state.versioning_override:
        return pinned_by(VersioningOverride.FromString(state.versioning_override))
    return state.versioning.pinned if state.versioning is not None else None


def behavior_of(state: Versioned) -> int:
    """How a run goes by versions, the number of a VersioningBehavior."""
    if pinned_version(state) is not None:
        return PINNED
    if state.versioning_override:
        return AUTO_UPGRADE
    return state.versioning.behavior if state.versioning is not None else 0


def begun(attributes: WorkflowExecutionStartedEventAttributes) -> RunVersioning | None:
    """What the first event says; None for a run that has nothing to do with versions."""
    versioning = RunVersioning(
        inherited_pinned=Version.of(attributes.inherited_pinned_version),
        begun_pinned=Version.of(attributes.inherited_pinned_version),
        inherited_auto=(
            attributes.inherited_auto_upgrade_info.SerializeToString()
            if attributes.HasField("inherited_auto_upgrade_info")
            else None
        ),
        declined=Version.of(attributes.declined_target_version_upgrade.deployment_version),
    )
    return None if versioning == RunVersioning() else versioning


def completed(
    versioning: RunVersioning | None, attributes: WorkflowTaskCompletedEventAttributes
) -> RunVersioning | None:
    """The same after a workflow task was completed, by a worker of a version or of none."""
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
