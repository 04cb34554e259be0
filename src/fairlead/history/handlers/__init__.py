"""The operations of the history service: one module for each topic, and a table of all operations."""

from fairlead.history.entities import batch_jobs, standalone_activities, standalone_nexus
from fairlead.history.entities.schedules import handlers as schedules
from fairlead.history.handlers import (
    activity_controls,
    activity_options,
    activity_tasks,
    child_workflows,
    describe,
    get_history,
    query,
    read_branch,
    reset,
    signals,
    start,
    time_skipping,
    update,
    update_with_start,
    workflow_options,
    workflow_pause,
    workflow_tasks,
)
from fairlead.history.ndc import handlers as applying
from fairlead.history.nexus import handlers as nexus
from fairlead.history.shard.context import Operation
from fairlead.history.worker_deployments import handlers as deployments

OPERATIONS: dict[str, Operation] = {}
for _module in (
    applying,
    batch_jobs,
    deployments,
    standalone_activities,
    standalone_nexus,
    activity_controls,
    activity_options,
    activity_tasks,
    describe,
    signals,
    child_workflows,
    get_history,
    update_with_start,
    nexus,
    query,
    read_branch,
    reset,
    schedules,
    start,
    time_skipping,
    update,
    workflow_options,
    workflow_pause,
    workflow_tasks,
):
    OPERATIONS.update(_module.OPERATIONS)

__all__ = ["OPERATIONS"]
