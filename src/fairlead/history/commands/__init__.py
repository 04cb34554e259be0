"""Commands of workers: one module for each type of command, and the step that carries out a whole response."""

from fairlead.history.commands.completion import Completion, complete_workflow_task
from fairlead.history.commands.task_response import (
    CommandDependencies,
    UpdateAccepted,
    UpdateCompleted,
    UpdateNews,
    UpdateRejected,
)

__all__ = [
    "CommandDependencies",
    "Completion",
    "UpdateAccepted",
    "UpdateCompleted",
    "UpdateNews",
    "UpdateRejected",
    "complete_workflow_task",
]
