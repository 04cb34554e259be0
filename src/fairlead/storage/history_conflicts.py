"""Conflicts of a commit with the history store: the errors, with messages that show the stored data."""

from fairlead.core.errors import RetryElsewhere
from fairlead.storage.commit import Ancestor, BranchWrite, CurrentWrite, RunWrite, TaskWrite
from fairlead.storage.history import CurrentRun, StoredMetadata, StoredNamespace, StoredRun, TaskKey
from fairlead.storage.tasks import LeaseLost


class RunConflict(RetryElsewhere):
    """A run does not have the expected version: nothing was changed. `present` is the stored run."""

    def __init__(self, message: str, present: StoredRun | None) -> None:
        super().__init__(message)
        self.present = present


class CurrentConflict(RetryElsewhere):
    """The current run of a workflow id does not meet the condition: nothing was changed."""

    def __init__(self, message: str, present: CurrentRun | None) -> None:
        super().__init__(message)
        self.present = present


class TaskBelowLevel(RetryElsewhere):
    """A task is at or below its queue's completed level, so it would not be read: nothing was changed.

    Use a higher key.
    """

    def __init__(self, message: str, level: TaskKey) -> None:
        super().__init__(message)
        self.level = level


class ForkBroken(RetryElsewhere):
    """A branch can't fork there: the ancestor has no batch that ends at the fork, or no longer has it.

    Nothing was changed.
    """


class NamespaceConflict(RetryElsewhere):
    """A namespace has another version, or its name or id is in use; `present` is the conflicting namespace."""

    def __init__(self, message: str, present: StoredNamespace | None) -> None:
        super().__init__(message)
        self.present = present


class MetadataConflict(RetryElsewhere):
    """A metadata value has another version; `present` is the stored value."""

    def __init__(self, message: str, present: StoredMetadata | None) -> None:
        super().__init__(message)
        self.present = present


def current_conflict(write: CurrentWrite, present: CurrentRun | None) -> CurrentConflict:
    """The error for a conflicting write of the current run."""
    found = "found none" if present is None else f"found {present.run_id} with status {present.status}"
    return CurrentConflict(
        f"current run of {write.workflow_id!r}: expected {write.condition}, {found}: nothing was changed", present
    )


def run_conflict(write: RunWrite, present: StoredRun | None) -> RunConflict:
    """The error for a conflicting write of a run."""
    found = "found none" if present is None else f"found version {present.db_version}"
    expected = "none" if write.expected_db_version is None else f"version {write.expected_db_version}"
    return RunConflict(
        f"run {write.run_id} of {write.workflow_id!r}: expected {expected}, {found}: nothing was changed", present
    )


def task_below_level(write: TaskWrite, level: TaskKey) -> TaskBelowLevel:
    """The error for a task at or below the completed level."""
    return TaskBelowLevel(
        f"task {write[1:3]} of queue {write.queue!r} is not above the completed level {level}: nothing was changed",
        level,
    )


def fork_broken(write: BranchWrite, ancestor: Ancestor) -> ForkBroken:
    """The error for a branch whose first events are missing."""
    return ForkBroken(
        f"branch {write.branch_id} of tree {write.tree_id}: {ancestor.branch_id} has no batch that ends before event "
        f"{ancestor.end_event_id}: nothing was changed"
    )


def namespace_conflict(
    namespace_id: str, present: StoredNamespace | None, *, expected_version: int
) -> NamespaceConflict:
    """The error for a conflicting change of a namespace."""
    found = "found none" if present is None else f"found version {present.version}"
    return NamespaceConflict(
        f"namespace {namespace_id}: expected version {expected_version}, {found}: nothing was changed", present
    )


def namespace_taken(present: StoredNamespace) -> NamespaceConflict:
    """The error for a namespace id or name in use."""
    return NamespaceConflict(
        f"namespace {present.name!r} with id {present.namespace_id} exists already: nothing was changed", present
    )


def metadata_conflict(key: str, present: StoredMetadata | None, *, expected_version: int) -> MetadataConflict:
    """The error for a conflicting change of a metadata value."""
    found = 0 if present is None else present.version
    return MetadataConflict(
        f"metadata {key!r}: expected version {expected_version}, found {found}: nothing was changed", present
    )


def shard_lost(shard_id: int, range_id: int, owner_range_id: int | None = None) -> LeaseLost:
    """The error for a write by an owner that has lost the shard."""
    owner = "" if owner_range_id is None else f", range id {owner_range_id} has it"
    return LeaseLost(f"shard {shard_id}: range id {range_id} no longer has the lease{owner}: nothing was changed")
