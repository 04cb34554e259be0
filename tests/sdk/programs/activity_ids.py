"""Requests with activity ids that are missing, invalid or unknown."""

from typing import Any

import temporalio.api.workflowservice.v1 as api

from tests.sdk.stage import NAMESPACE, NO_ONE, Stage, program


@program
async def activity_ids_that_do_not_exist(stage: Stage) -> None:
    handle = await stage.start("Any", queue=NO_ONE)
    service = stage.service
    for workflow_id in (stage.id(), stage.id("absent")):
        named: dict[str, Any] = {"namespace": NAMESPACE, "workflow_id": workflow_id, "activity_id": "absent"}
        calls = {
            "completed": service.respond_activity_task_completed_by_id(
                api.RespondActivityTaskCompletedByIdRequest(**named)
            ),
            "failed": service.respond_activity_task_failed_by_id(api.RespondActivityTaskFailedByIdRequest(**named)),
            "canceled": service.respond_activity_task_canceled_by_id(
                api.RespondActivityTaskCanceledByIdRequest(**named)
            ),
            "heartbeat": service.record_activity_task_heartbeat_by_id(
                api.RecordActivityTaskHeartbeatByIdRequest(**named)
            ),
        }
        for label, call in calls.items():
            stage.note(f"{label} of {workflow_id}", await stage.outcome(call))
    await handle.terminate()


@program
async def activity_controls_with_wrong_ids(stage: Stage) -> None:
    handle = await stage.start("Any", queue=NO_ONE)
    service = stage.service
    wrong: dict[str, dict[str, Any]] = {
        "nothing": {},
        "no activity": {"workflow_id": stage.id()},
        "a run id that is none": {"workflow_id": stage.id(), "activity_id": "absent", "run_id": "x"},
        "long activity": {"activity_id": "x" * 1001},
        "long identity": {"workflow_id": stage.id(), "activity_id": "absent", "identity": "x" * 1001},
        "long request": {"activity_id": "absent", "request_id": "x" * 1001},
    }
    for label, ids in wrong.items():
        named: dict[str, Any] = {"namespace": NAMESPACE, **ids}
        calls = {
            "pause": service.pause_activity_execution(api.PauseActivityExecutionRequest(**named)),
            "unpause": service.unpause_activity_execution(api.UnpauseActivityExecutionRequest(**named)),
            "reset": service.reset_activity_execution(api.ResetActivityExecutionRequest(**named)),
            "options": service.update_activity_execution_options(
                api.UpdateActivityExecutionOptionsRequest(**named, restore_original=True)
            ),
        }
        for method, call in calls.items():
            stage.note(f"{method}: {label}", await stage.outcome(call))
    await handle.terminate()
