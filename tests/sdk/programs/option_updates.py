"""Updates of activity options: the valid combinations of a mask, options and restoring the original options."""

import itertools
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.batch.v1 import BatchOperationUpdateActivityOptions
from temporalio.api.enums.v1 import BatchOperationState
from temporalio.api.workflowservice.v1 import (
    DescribeBatchOperationRequest,
    StartBatchOperationRequest,
    UpdateActivityExecutionOptionsRequest,
    UpdateActivityOptionsRequest,
)

from tests.sdk.programs.activity_control import Controlled
from tests.sdk.stage import NAMESPACE, Stage, execution, program

_OPTIONS = ActivityOptions(start_to_close_timeout=Duration(seconds=77))
_MASK = FieldMask(paths=["start_to_close_timeout"])
_SELECTIONS: dict[str, dict[str, Any]] = {
    "no selection": {},
    "id": {"id": "controlled"},
    "type": {"type": "fails_until_allowed"},
    "match_all": {"match_all": True},
    "match_all false": {"match_all": False},
}
_CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "options without a mask": {"activity_options": _OPTIONS},
    "an empty mask": {"activity_options": _OPTIONS, "update_mask": FieldMask()},
    "a mask without options": {"update_mask": _MASK},
    "options": {"activity_options": _OPTIONS, "update_mask": _MASK},
    "restore": {"restore_original": True},
    "restore with an empty mask": {"restore_original": True, "update_mask": FieldMask()},
    "restore with empty options": {"restore_original": True, "activity_options": ActivityOptions()},
    "restore as the command line does": {
        "restore_original": True,
        "activity_options": ActivityOptions(),
        "update_mask": FieldMask(),
    },
    "restore with options": {"restore_original": True, "activity_options": _OPTIONS, "update_mask": _MASK},
    "restore with a mask": {"restore_original": True, "update_mask": _MASK},
}


@program
async def activity_option_updates(stage: Stage) -> None:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    for (selection, selected), (change, changed) in itertools.product(_SELECTIONS.items(), _CHANGES.items()):
        request = UpdateActivityOptionsRequest(
            namespace=NAMESPACE, execution=execution(stage.id()), identity="raw", **selected, **changed
        )
        outcome = await stage.outcome(stage.service.update_activity_options(request))
        stage.note(f"{selection}: {change}", outcome)
    await handle.terminate()


@program
async def activity_option_updates_by_the_new_method(stage: Stage) -> None:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    for change, changed in _CHANGES.items():
        request = UpdateActivityExecutionOptionsRequest(
            namespace=NAMESPACE, workflow_id=stage.id(), activity_id="controlled", identity="raw", **changed
        )
        stage.note(change, await stage.outcome(stage.service.update_activity_execution_options(request)))
    await handle.terminate()


# No case sets or restores options without a mask: the reference server's process crashes on such a batch.
_IN_BATCHES = (
    ("no selection", "nothing"),
    ("type", "nothing"),
    ("type", "a mask without options"),
    ("type", "options"),
    ("match_all", "nothing"),
    ("match_all", "an empty mask"),
    ("match_all", "options"),
    ("match_all", "restore with options"),
)


@program
async def activity_option_updates_in_batches(stage: Stage) -> None:
    handle = await stage.start(Controlled.run, False, 1.0)
    await stage.idle(handle)
    for number, (selection, change) in enumerate(_IN_BATCHES):
        operation = BatchOperationUpdateActivityOptions(identity="raw", **_SELECTIONS[selection], **_CHANGES[change])
        job_id = f"{stage.name} {number}"
        request = StartBatchOperationRequest(
            namespace=NAMESPACE,
            job_id=job_id,
            reason="a test",
            executions=[execution(stage.id())],
            update_activity_options_operation=operation,
        )
        label = f"{selection}: {change}"
        outcome = await _start_batch(stage, request)
        stage.note(label, outcome)
        if outcome != {}:
            continue
        stage.note(f"{label} job", await _ended(stage, job_id))
        (activity,) = (await stage.describe(stage.id())).pending_activities
        stage.note(f"{label} timeout", activity.activity_options.start_to_close_timeout.seconds)
    await handle.terminate()


async def _start_batch(stage: Stage, request: StartBatchOperationRequest) -> Any:
    """Start a batch job when the one before no longer counts.

    The reference allows one job at a time, and counts the running ones in its visibility store, which lags behind.
    """
    outcomes: list[Any] = []

    async def there() -> bool:
        outcomes[:] = [await stage.outcome(stage.service.start_batch_operation(request))]
        return "Max concurrent batch operations" not in str(outcomes)

    await stage.until_true(there, "the end of the batch job before")
    return outcomes[0]


async def _ended(stage: Stage, job_id: str) -> Any:
    """A batch job's state and counts at its end."""
    request = DescribeBatchOperationRequest(namespace=NAMESPACE, job_id=job_id)

    async def there() -> bool:
        job = await stage.service.describe_batch_operation(request)
        return job.state != BatchOperationState.BATCH_OPERATION_STATE_RUNNING

    await stage.until_true(there, f"the end of {job_id}")
    job = await stage.service.describe_batch_operation(request)
    return [job.state, job.complete_operation_count, job.failure_operation_count]
