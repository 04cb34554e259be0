"""Rules of the frontend beside those of the authorizer: commands into other namespaces, and calls of other clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from temporalio.api.enums.v1 import CommandType

from fairlead.api.namespace_sharing import is_shared
from fairlead.api.principals import NOBODY, PrincipalPair, use_principal
from fairlead.authorization.methods import WORKFLOW_SERVICE, Access, MethodAccess, Scope, access_of
from fairlead.authorization.roles import Role
from fairlead.rpc.hosts.credentials import PRINCIPAL_HEADER

if TYPE_CHECKING:
    from google.protobuf.descriptor import MethodDescriptor
    from temporalio.api.workflowservice.v1 import RespondWorkflowTaskCompletedRequest

    from fairlead.authorization.claims import Claims
    from fairlead.authorization.gate import Gate
    from fairlead.frontend.gateway.context import Frontend
    from fairlead.rpc import Call

# Maximum characters of the caller's name in a forwarded call.
NAME_CHARACTERS_MAX: Final = 500

# Workflow commands that may target another namespace: the field of their attributes, and the equivalent method.
_COMMANDS: Final = {
    int(CommandType.COMMAND_TYPE_START_CHILD_WORKFLOW_EXECUTION): (
        "start_child_workflow_execution_command_attributes",
        access_of(WORKFLOW_SERVICE, "StartWorkflowExecution"),
    ),
    int(CommandType.COMMAND_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION): (
        "signal_external_workflow_execution_command_attributes",
        access_of(WORKFLOW_SERVICE, "SignalWorkflowExecution"),
    ),
    int(CommandType.COMMAND_TYPE_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION): (
        "request_cancel_external_workflow_execution_command_attributes",
        access_of(WORKFLOW_SERVICE, "RequestCancelWorkflowExecution"),
    ),
}


def principal_of(claims: Claims, call: Call) -> PrincipalPair:
    """The authenticated caller. A remote cluster names the caller of a call that it forwards; the gateway ignores that
    name from any other caller.
    """
    if not claims.cluster:
        return claims.principal
    name = call.metadata.get(PRINCIPAL_HEADER, "")[:NAME_CHARACTERS_MAX]
    return (f"cluster/{claims.cluster}", name) if name.isprintable() and name else claims.principal


class CallGate:
    """Lets the calls of one method in, or raises PERMISSION_DENIED."""

    __slots__ = ("_completes_tasks", "_frontend", "_gate", "_has_namespace", "access")

    def __init__(self, frontend: Frontend, gate: Gate, method: MethodDescriptor) -> None:
        self._frontend = frontend
        self._gate = gate
        # The requirements of the method.
        self.access: MethodAccess = access_of(method.containing_service.full_name, method.name)
        self._has_namespace = "namespace" in method.input_type.fields_by_name
        self._completes_tasks = method.name == "RespondWorkflowTaskCompleted"

    async def identify(self, call: Call) -> Claims | None:
        """Identify the caller, before the request is decoded, so that strangers cost little."""
        return await self._gate.identify(call, self.access)

    async def check(self, call: Call, claims: Claims | None, request: Any) -> None:
        """Raise PERMISSION_DENIED unless the caller may do what the request asks for."""
        namespace: str = request.namespace if self._has_namespace else ""
        allowed = await self._widened(claims, self.access, namespace)
        await self._gate.check(call, allowed, self.access, namespace, request)
        if self._completes_tasks:
            await self._check_commands(call, claims, request)
        use_principal(NOBODY if claims is None else principal_of(claims, call))

    async def _widened(self, claims: Claims | None, access: MethodAccess, namespace: str) -> Claims | None:
        """A remote cluster forwards calls that it has authorized itself: it may write to the namespaces it shares."""
        if claims is None or not claims.cluster:
            return claims
        if access.scope is not Scope.NAMESPACE or access.access is Access.ADMIN or not namespace:
            return claims
        if not await is_shared(self._frontend.namespaces, namespace, claims.cluster):
            return claims
        return replace(claims, namespaces={namespace: Role.WRITER})

    async def _check_commands(
        self, call: Call, claims: Claims | None, request: RespondWorkflowTaskCompletedRequest
    ) -> None:
        for command in request.commands:
            known = _COMMANDS.get(command.command_type)
            if known is None:
                continue
            field, access = known
            target: str = getattr(command, field).namespace
            if target and target != request.namespace:
                await self._gate.check(call, await self._widened(claims, access, target), access, target)
