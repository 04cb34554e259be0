"""What is kept of a batch job."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from temporalio.api.enums.v1 import BatchOperationState

ARCHETYPE = "batch"
RUNNING = int(BatchOperationState.BATCH_OPERATION_STATE_RUNNING)
COMPLETED = int(BatchOperationState.BATCH_OPERATION_STATE_COMPLETED)
FAILED = int(BatchOperationState.BATCH_OPERATION_STATE_FAILED)


class Target(NamedTuple):
    """What the operation is done to: a workflow, or an activity that stands alone; the current run if none is named."""

    id: str
    run_id: str


class BatchState(msgspec.Struct, array_like=True):
    """A job. Fields are added at the end only, with a default.

    The targets of a page are kept while they are worked on: whatever becomes of them meanwhile, each is counted once.
    """

    # A StartBatchOperationRequest.
    request: bytes
    started_ns: int
    status: int = RUNNING
    closed_ns: int = 0
    total: int = 0
    complete: int = 0
    failures: int = 0
    # Pages that are done, and the targets of the next one; there are none before the first was looked for.
    pages: int = 0
    page: list[Target] = []
    # Where the page ends: in the list of those that a query finds, or by their number in the request.
    after: tuple[int, int, str] | None = None
    taken: int = 0
    is_last: bool = False
    # The first page was looked for.
    is_begun: bool = False
