"""Stored state of a batch job."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from temporalio.api.enums.v1 import BatchOperationState

RUNNING = int(BatchOperationState.BATCH_OPERATION_STATE_RUNNING)
COMPLETED = int(BatchOperationState.BATCH_OPERATION_STATE_COMPLETED)
FAILED = int(BatchOperationState.BATCH_OPERATION_STATE_FAILED)


class Target(NamedTuple):
    """A target of the operation: a workflow or a standalone activity; the current run if `run_id` is empty."""

    id: str
    run_id: str


class BatchState(msgspec.Struct, array_like=True):
    """A job. Add fields only at the end, with a default.

    The targets of a page are stored before they are processed, so that each is processed once, even if processing
    changes the result of the query.
    """

    # A serialized StartBatchOperationRequest.
    request: bytes
    started_ns: int
    status: int = RUNNING
    closed_ns: int = 0
    total: int = 0
    complete: int = 0
    failures: int = 0
    # Number of finished pages, and the targets of the current page; empty before the first page is read.
    pages: int = 0
    page: list[Target] = []
    # Position after the current page: in the results of the query, or in the targets of the request.
    after: tuple[int, int, str] | None = None
    taken: int = 0
    is_last: bool = False
    # Whether the first page was read.
    is_begun: bool = False
