"""Batch jobs: one operation on many workflows or activities, page by page, until it is done or stopped."""

from fairlead.history.batches.operations import BATCH, OPERATIONS

__all__ = ["BATCH", "OPERATIONS"]
