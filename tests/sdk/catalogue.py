"""Every program, with the workflows and activities that a worker needs for them."""

from types import ModuleType
from typing import Any

from tests.history import reference_programs
from tests.sdk.programs import (
    activities,
    activity_cancellation,
    activity_control,
    activity_ids,
    activity_resets,
    activity_timeouts,
    cancellation,
    children,
    continued,
    counts,
    deployments,
    external,
    links,
    markers,
    nexus,
    nexus_backing,
    nexus_executions,
    nexus_updates,
    option_updates,
    problems,
    queries,
    ramping,
    recorded,
    repeated_failures,
    resets,
    runs,
    schedules,
    signals,
    starts,
    system_nexus,
    task_queues,
    time_skipping,
    timers,
    updates,
    version_names,
    workflow_rules,
    workflow_tasks,
)
from tests.sdk.stage import PROGRAMS

__all__ = ["ACTIVITIES", "NEXUS_HANDLERS", "PROGRAMS", "WORKFLOWS"]

_MODULES: tuple[ModuleType, ...] = (
    reference_programs,
    activities,
    activity_cancellation,
    activity_control,
    activity_ids,
    activity_resets,
    activity_timeouts,
    cancellation,
    children,
    continued,
    counts,
    deployments,
    external,
    links,
    markers,
    nexus,
    nexus_backing,
    nexus_executions,
    nexus_updates,
    option_updates,
    problems,
    queries,
    ramping,
    recorded,
    repeated_failures,
    resets,
    runs,
    schedules,
    signals,
    starts,
    system_nexus,
    task_queues,
    time_skipping,
    timers,
    updates,
    version_names,
    workflow_rules,
    workflow_tasks,
)


def _defined(mark: str) -> list[Any]:
    """All definitions in the modules that the SDK's decorator has marked, each once."""
    found = {id(value): value for module in _MODULES for value in vars(module).values() if mark in _own(value)}
    return list(found.values())


def _own(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


WORKFLOWS: list[type] = _defined("__temporal_workflow_definition")
ACTIVITIES: list[Any] = _defined("__temporal_activity_definition")
NEXUS_HANDLERS: list[Any] = [*nexus.HANDLERS, *nexus_backing.HANDLERS, *nexus_updates.HANDLERS]
