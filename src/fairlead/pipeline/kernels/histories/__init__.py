"""From the journaled batches of a run to what analysts ask of it: one row a run, one an activity, on Arrow batches."""

from fairlead.pipeline.kernels.histories.assembly import Problem, Record, assemble_tree, current_line
from fairlead.pipeline.kernels.histories.flattening import ActivityRow, WorkflowRow, flatten
from fairlead.pipeline.kernels.histories.tables import flatten_runs

__all__ = [
    "ActivityRow",
    "Problem",
    "Record",
    "WorkflowRow",
    "assemble_tree",
    "current_line",
    "flatten",
    "flatten_runs",
]
