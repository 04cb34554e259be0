"""Turns the journaled batches of a run into one row for the run and one for each activity, on Arrow batches."""

from fairlead.pipeline.kernels.histories.assembly import Problem, Record, assemble_tree, current_branch
from fairlead.pipeline.kernels.histories.flat_rows import ActivityRow, WorkflowRow, flatten
from fairlead.pipeline.kernels.histories.tables import flatten_runs

__all__ = [
    "ActivityRow",
    "Problem",
    "Record",
    "WorkflowRow",
    "assemble_tree",
    "current_branch",
    "flatten",
    "flatten_runs",
]
