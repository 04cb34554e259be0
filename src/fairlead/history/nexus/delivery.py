"""Delivers completion callbacks: reports the end of a workflow or activity to the caller of the operation behind it."""

from temporalio.api.common.v1 import Callback, Link, Payload
from temporalio.api.enums.v1 import CallbackState
from temporalio.api.failure.v1 import Failure

from fairlead.api.errors import Gone, NotFound
from fairlead.history.nexus.callbacks import OPERATION_TOKEN_HEADER, OperationEnded, token_of
from fairlead.history.shard.context import OperationContext
from fairlead.history.state.pending import CallbackProgress


async def deliver(
    context: OperationContext,
    callback: Callback,
    *,
    started_ns: int,
    link: Link | None,
    result: Payload,
    failure: Failure | None,
) -> CallbackProgress:
    """Report the end of an operation, and return the result of the delivery. Raises errors if a retry may help.

    `link` leads to the workflow or activity that backs the operation and started at `started_ns`.
    """
    to = token_of(callback)
    if to is None:
        return _failed(context, "(NOT_FOUND): the callback's token was not issued by this server")
    ended = OperationEnded(
        to=to,
        operation_token=callback.nexus.header.get(OPERATION_TOKEN_HEADER, ""),
        started_ns=started_ns,
        link=b"" if link is None else link.SerializeToString(),
        result=result.SerializeToString(),
        failure=None if failure is None else failure.SerializeToString(),
    )
    name = "StandaloneNexusOperationEnded" if to.is_standalone else "NexusOperationEnded"
    try:
        await context.services.history.call(name, to.namespace_id, to.workflow_id, ended)
    except (Gone, NotFound) as missing:
        if to.namespace_id != context.namespace.id:
            # Anybody may write a token: the response must not tell what is in another namespace.
            return _failed(context, "(NOT_FOUND): operation not found")
        return _failed(context, _problem(missing, is_standalone=to.is_standalone))
    return CallbackProgress(
        state=int(CallbackState.CALLBACK_STATE_SUCCEEDED), attempts=1, ended_ns=context.services.clock_ns()
    )


def _problem(missing: Gone | NotFound, *, is_standalone: bool) -> str:
    # A standalone operation that has ended rejects a second outcome.
    if is_standalone and isinstance(missing, Gone):
        return "(BAD_REQUEST): bad request"
    return f"(NOT_FOUND): {missing}"


def _failed(context: OperationContext, problem: str) -> CallbackProgress:
    failure = Failure(message=f"handler error {problem}")
    failure.application_failure_info.non_retryable = True
    return CallbackProgress(
        state=int(CallbackState.CALLBACK_STATE_FAILED),
        attempts=1,
        ended_ns=context.services.clock_ns(),
        failure=failure.SerializeToString(),
    )
