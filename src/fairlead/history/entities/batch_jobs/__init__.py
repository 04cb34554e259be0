"""Batch jobs: one operation on many workflows or activities, page by page, until all are done or the job is stopped."""

from fairlead.history.entities.batch_jobs.handlers import BATCH, OPERATIONS

__all__ = ["BATCH", "OPERATIONS"]
