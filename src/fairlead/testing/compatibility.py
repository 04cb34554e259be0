"""Generates docs/compatibility.md by calling every method of a running server.

`python -m fairlead.testing.compatibility > docs/compatibility.md` writes it.

Each request has only a namespace and, if it has such a field, the id of a workflow that does not exist. A method that
is not supported fails before it reads the rest of the request, with UNIMPLEMENTED or PERMISSION_DENIED, or with an
error that names a feature for which the cluster is not configured. Any other method succeeds, or fails with an error
about a missing field.
"""

import asyncio
from collections.abc import Iterable

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.operatorservice.v1 import service_pb2 as operator_api
from temporalio.api.workflowservice.v1 import service_pb2 as workflow_api

from fairlead.frontend.compatibility import Outcome, render
from fairlead.rpc import Code
from fairlead.rpc.client import CallFailed, Channel
from fairlead.settings import SETTINGS
from fairlead.settings.dynamic.kinds import Bool
from fairlead.testing.server import NAMESPACE, FairleadServer

# Seconds that a call may take. Polls return at once, since they fail without a task queue.
_CALL_S_MAX = 10.0
_WORKFLOW_ID = "unknown"
_REJECTED = (Code.UNIMPLEMENTED, Code.PERMISSION_DENIED)
_NOT_CONFIGURED = "Cluster is not configured for "


async def outcomes() -> dict[str, Outcome]:
    """Call every method of a new server; call the unsupported ones again with each setting that is off by default."""
    found = await _called(_methods())
    for switch in (setting for setting in SETTINGS if isinstance(setting.kind, Bool) and not setting.default):
        failing = [method for method in _methods() if found[method.name].error and not found[method.name].switch]
        switched = await _called(failing, {switch.key: True})
        for method in failing:
            if not switched[method.name].error:
                found[method.name] = found[method.name]._replace(switch=switch.key)
    return found


def _methods() -> list[MethodDescriptor]:
    services = (
        workflow_api.DESCRIPTOR.services_by_name["WorkflowService"],
        operator_api.DESCRIPTOR.services_by_name["OperatorService"],
    )
    # Calls that change or delete namespaces come last, since the other calls need one.
    return sorted((method for each in services for method in each.methods), key=lambda each: "Namespace" in each.name)


async def outcomes_at(address: str) -> dict[str, Outcome]:
    """Call every method of a running server, Fairlead's or Temporal's, once; the calls may change its namespaces."""
    return await _called_at(address, _methods())


async def _called(methods: Iterable[MethodDescriptor], settings: dict[str, bool] | None = None) -> dict[str, Outcome]:
    async with FairleadServer.start(dynamic_config=settings) as server:
        return await _called_at(server.address, methods)


async def _called_at(address: str, methods: Iterable[MethodDescriptor]) -> dict[str, Outcome]:
    async with Channel(address) as channel:
        return {method.name: await _call(channel, method) for method in methods}


async def _call(channel: Channel, method: MethodDescriptor) -> Outcome:
    request = GetMessageClass(method.input_type)()
    if "namespace" in method.input_type.fields_by_name:
        request.namespace = NAMESPACE  # type: ignore[attr-defined]
    # Some methods check for a workflow id before they check whether they are enabled.
    for field in method.input_type.fields:
        if field.message_type is WorkflowExecution.DESCRIPTOR and not field.is_repeated:
            getattr(request, field.name).workflow_id = _WORKFLOW_ID
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        await channel.unary(path, request.SerializeToString(), timeout_s=_CALL_S_MAX)
    except CallFailed as error:
        if error.code in _REJECTED or error.message.startswith(_NOT_CONFIGURED):
            return Outcome(f"{error.code.name}: {error.message}")
    return Outcome()


if __name__ == "__main__":
    print(render(asyncio.run(outcomes())), end="")  # noqa: T201 - the page is what it is run for
