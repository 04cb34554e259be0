"""Checks that all clusters hold the same history of a run: one judgement per run, on Arrow batches."""

from fairlead.pipeline.kernels.reconcile.clocks import Clocks
from fairlead.pipeline.kernels.reconcile.compare import Comparison
from fairlead.pipeline.kernels.reconcile.copies import Copy, read_copy
from fairlead.pipeline.kernels.reconcile.records import (
    DIGEST_CHARS,
    OPEN_STATUSES,
    Batch,
    CopySummary,
    Finding,
    Judgement,
    Kind,
    PairCounts,
    Rules,
    Send,
    State,
)
from fairlead.pipeline.kernels.reconcile.tables import JUDGED, RUN_BATCHES, judge_runs

__all__ = [
    "DIGEST_CHARS",
    "JUDGED",
    "OPEN_STATUSES",
    "RUN_BATCHES",
    "Batch",
    "Clocks",
    "Comparison",
    "Copy",
    "CopySummary",
    "Finding",
    "Judgement",
    "Kind",
    "PairCounts",
    "Rules",
    "Send",
    "State",
    "judge_runs",
    "read_copy",
]
