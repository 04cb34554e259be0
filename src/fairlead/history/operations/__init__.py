"""What the history service can be asked for: one module a topic, and one table of all."""

from fairlead.history import batches, standalone
from fairlead.history.applying import operations as applying
from fairlead.history.deployments import operations as deployments
from fairlead.history.nexus import operations as nexus
from fairlead.history.operations import (
    activity_controls,
    activity_options,
    activity_tasks,
    describe,
    executions,
    family,
    get_history,
    multi,
    query,
    read_line,
    reset,
    start,
    update,
    workflow_options,
    workflow_pause,
    workflow_tasks,
)
from fairlead.history.schedules import operations as schedules
from fairlead.history.scope import Operation

OPERATIONS: dict[str, Operation] = {}
for _module in (
    applying,
    batches,
    deployments,
    standalone,
    activity_controls,
    activity_options,
    activity_tasks,
    describe,
    executions,
    family,
    get_history,
    multi,
    nexus,
    query,
    read_line,
    reset,
    schedules,
    start,
    update,
    workflow_options,
    workflow_pause,
    workflow_tasks,
):
    OPERATIONS.update(_module.OPERATIONS)

__all__ = ["OPERATIONS"]
