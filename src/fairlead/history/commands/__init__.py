"""What workers ask for: one module for each type of command, and the step that carries a whole answer out."""

from fairlead.history.commands.answer import (
    Surroundings,
    UpdateAccepted,
    UpdateCompleted,
    UpdateNews,
    UpdateRejected,
)
from fairlead.history.commands.completion import Completion, complete_workflow_task

__all__ = [
    "Completion",
    "Surroundings",
    "UpdateAccepted",
    "UpdateCompleted",
    "UpdateNews",
    "UpdateRejected",
    "complete_workflow_task",
]
