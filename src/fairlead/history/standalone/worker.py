"""What workers do with activities that stand alone: take an attempt, keep it alive, end it."""

from temporalio.api.common.v1 import Payloads
from temporalio.api.failure.v1 import Failure

from fairlead.history.refusals import invalid
from fairlead.history.scope import Scope
from fairlead.history.standalone import machine
from fairlead.history.standalone.answers import worker_answer
from fairlead.history.standalone.machine import Heard, Step
from fairlead.history.standalone.steps import change
from fairlead.history.standalone.tasks import Dispatch, decode_task
from fairlead.history.tasks_wire import MatchedEntityTask, StartMatched


async def start(scope: Scope, request: StartMatched) -> bytes:
    """Give an attempt to the worker whose poll took it."""
    matched = request.task
    task = decode_task(matched.data) if isinstance(matched, MatchedEntityTask) else None
    if not isinstance(task, Dispatch):
        raise invalid("not an activity task")

    def step(taken: Step) -> bytes:
        machine.start(taken, stamp=task.stamp, identity=request.identity)
        namespace = scope.namespace
        return worker_answer(taken.state, namespace_id=namespace.id, namespace=namespace.name).SerializeToString()

    return await change(scope, matched.workflow_id, matched.run_id, step)


async def heartbeat(
    scope: Scope, activity_id: str, run_id: str, *, number: int | None, details: Payloads | None
) -> Heard:
    """The worker still has it. `number` is the start that it was given; None if it does not say."""
    return await change(
        scope, activity_id, run_id, lambda step: machine.heartbeat(step, number=number, details=details)
    )


async def complete(
    scope: Scope, activity_id: str, run_id: str, *, number: int | None, result: Payloads | None, identity: str
) -> None:
    """It has a result."""
    await change(
        scope,
        activity_id,
        run_id,
        lambda step: machine.complete(step, number=number, result=result, identity=identity),
    )


async def fail(
    scope: Scope,
    activity_id: str,
    run_id: str,
    *,
    number: int | None,
    failure: Failure | None,
    last_details: Payloads | None,
) -> None:
    """The attempt failed."""
    await change(
        scope,
        activity_id,
        run_id,
        lambda step: machine.fail(step, number=number, failure=failure, last_details=last_details),
    )


async def cancel(scope: Scope, activity_id: str, run_id: str, *, number: int | None, details: Payloads | None) -> None:
    """The worker ended it because it was asked to."""
    await change(
        scope, activity_id, run_id, lambda step: machine.cancel_by_worker(step, number=number, details=details)
    )
