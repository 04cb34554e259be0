"""Requirements of the methods of a host's own port: for `fairlead admin`, clients of task queues, and other hosts."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fairlead.api.principals import use_principal
from fairlead.authorization.claims import Claims
from fairlead.authorization.gate import Gate, WithCredentials
from fairlead.authorization.long_calls import LongCalls
from fairlead.authorization.methods import Access, MethodAccess, Scope

# Methods of `fairlead admin` that change something.
_ADMIN: Final = (
    *("matching.Update", "matching.Configure", "matching.Purge"),
    *("replication.MergeDeadLetters", "replication.PurgeDeadLetters", "replication.Repair", "replication.FailOver"),
    *("authorization.CreateKey", "authorization.ListKeys", "authorization.RevokeKey"),
)
# Methods of `fairlead admin` that only read, about any namespace.
_READ: Final = (
    *("namespaces.find", "matching.Describe", "matching.Explain", "matching.List", "history.Tree"),
    *("matching.Peek", "matching.Figures", "history.Running"),
    *("replication.Status", "replication.ListDeadLetters", "replication.FailOverProgress"),
    *("replication.Preflight", "replication.Failovers"),
)
# Methods of `fairlead.client`; the namespace is in the request.
_WRITE: Final = ("matching.Add",)
_WORK: Final = ("matching.Poll",)
# Methods that every authenticated caller may call: with them, a client finds the hosts of the cluster.
_ANY: Final = frozenset(("cluster.Ring",))


def _access(name: str, scope: Scope, access: Access, *, is_worker: bool = False) -> MethodAccess:
    is_audited = access is Access.ADMIN
    return MethodAccess(f"/fairlead/{name}", name, scope, access, is_worker=is_worker, is_audited=is_audited)


# Methods that callers other than hosts may call; all others are for hosts only.
HOST_METHODS: Final = {
    **{name: _access(name, Scope.CLUSTER, Access.ADMIN) for name in _ADMIN},
    **{name: _access(name, Scope.CLUSTER, Access.READ) for name in (*_READ, *_ANY)},
    **{name: _access(name, Scope.NAMESPACE, Access.WRITE) for name in _WRITE},
    **{name: _access(name, Scope.NAMESPACE, Access.WRITE, is_worker=True) for name in _WORK},
}


def _access_of(name: str) -> MethodAccess:
    return HOST_METHODS.get(name) or _access(name, Scope.CLUSTER, Access.ADMIN)


class HostAdmission:
    """Lets calls to a host's own port in, or raises PERMISSION_DENIED. Hosts of the cluster may call everything."""

    def __init__(self, gate: Gate, *, is_reserved: Callable[[bytes], bool] = lambda _: False) -> None:
        """`is_reserved` tells whether a task's payload stands for a workflow, so that only hosts may add it."""
        self._gate = gate
        self._is_reserved = is_reserved
        self._long_calls = LongCalls(gate)

    async def admit(self, call: WithCredentials, name: str, request: Any) -> None:
        """Raise unless the caller may call the method `name` with this request."""
        await self.check(call, await self.identify(call, name), name, request)

    async def identify(self, call: WithCredentials, name: str) -> Claims | None:
        """Identify the caller before its request is decoded, so that strangers cost little.

        Raises for strangers, and for methods that only hosts may call.
        """
        access = _access_of(name)
        claims = await self._gate.identify(call, access)
        if name not in HOST_METHODS and (claims is None or claims.kind != "host"):
            raise self._gate.refuse(call, claims, access, "", "the method is for hosts of the cluster")
        return claims

    async def check(self, call: WithCredentials, claims: Claims | None, name: str, request: Any) -> None:
        """Raise unless the identified caller may call the method with this request."""
        access = _access_of(name)
        if claims is not None and name in _ADMIN:
            # A new key keeps the name of the caller that made it.
            use_principal(claims.principal)
        if claims is not None and claims.kind == "host":
            # An operator on a host may use its secret, so audit the methods of operators even if a host calls; other
            # calls between hosts are not audited.
            if name in HOST_METHODS:
                self._gate.note(call, claims, access, "", request)
            return
        if name in _ANY:
            return
        if name in _WRITE and self._is_reserved(request.task.payload):
            raise self._gate.refuse(
                call, claims, access, "", "the payload stands for a workflow's task, which only hosts may add"
            )
        await self._gate.check(call, claims, access, self._namespace(access, claims, request), request)

    def watched(
        self, call: WithCredentials, claims: Claims | None, name: str, request: Any, answer: Awaitable[Any]
    ) -> Awaitable[Any]:
        """The answer to an admitted call; a client's poll ends with its credential."""
        if name not in _WORK or claims is None or claims.kind == "host":
            return answer
        access = _access_of(name)
        return self._long_calls.wait(call, claims, access, self._namespace(access, claims, request), answer)

    def _namespace(self, access: MethodAccess, claims: Claims | None, request: Any) -> str:
        """The namespace of a task queue: the name that clients of task queues gave it is also its id.

        The id of a registered namespace is not a name, so that only roles in the whole system reach its task queues.
        """
        if claims is None or access.scope is Scope.CLUSTER:
            return ""
        namespace: str = request.partition.task_queue.namespace_id
        return namespace
