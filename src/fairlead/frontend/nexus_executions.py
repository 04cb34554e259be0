"""Nexus operations that stand alone: refused, as by Temporal's server where nobody has switched them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Protocol

from fairlead.history.refusals import unimplemented

if TYPE_CHECKING:
    from fairlead.frontend.context import Frontend, Handler
    from fairlead.rpc import Call

REFUSAL = "Standalone Nexus operation is disabled"


class WithNamespace(Protocol):
    """A request in a namespace."""

    namespace: str


async def refuse(frontend: Frontend, request: WithNamespace, _: Call) -> NoReturn:
    """Say that it is switched off, in a namespace that is there; nothing else in the request is looked at."""
    await frontend.namespaces.find(request.namespace)
    raise unimplemented(REFUSAL)


DISABLED = frozenset(
    {
        "StartNexusOperationExecution",
        "DescribeNexusOperationExecution",
        "PollNexusOperationExecution",
        "ListNexusOperationExecutions",
        "CountNexusOperationExecutions",
        "RequestCancelNexusOperationExecution",
        "TerminateNexusOperationExecution",
        "DeleteNexusOperationExecution",
    }
)
METHODS: dict[str, Handler] = dict.fromkeys(DISABLED, refuse)
DIFFERENCES = ("Nexus operations that stand alone can't be switched on: those of workflows are all there are.",)
