"""Handlers for operators: search attributes, and deletion of namespaces."""

import re

from google.protobuf.duration_pb2 import Duration
from msgspec.structs import replace
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    AddSearchAttributesResponse,
    DeleteNamespaceRequest,
    DeleteNamespaceResponse,
    ListSearchAttributesRequest,
    ListSearchAttributesResponse,
    RemoveSearchAttributesRequest,
    RemoveSearchAttributesResponse,
)

from fairlead.api.error_details import namespace_not_found
from fairlead.api.errors import FailedPrecondition, InvalidArgument
from fairlead.api.namespaces import NAME_BYTES_MAX, Namespace, check_name, configured
from fairlead.api.nexus_endpoints import Endpoints
from fairlead.api.system_attributes import SYSTEM_SEARCH_ATTRIBUTES
from fairlead.api.times import SECOND_NS
from fairlead.frontend.gateway.context import Frontend, Handler
from fairlead.frontend.handlers.namespaces import RESERVED_NAME
from fairlead.rpc import Call
from fairlead.settings.dynamic.namespaces import DELETES_ENDPOINT_TARGETS, PROTECTED

# Maximum number of custom search attributes of one type in a namespace; all types together stay below a run's limit.
SEARCH_ATTRIBUTES_A_TYPE_MAX = 30
SEARCH_ATTRIBUTE_NAME_CHARACTERS_MAX = 255
RESERVED_PREFIX = "Temporal"
# Characters that a query could not express in a name, in any store.
_BAD_IN_NAME = re.compile(r"[\x00-\x1f\x7f\"'`\\]")
_TYPE_NAMES = {
    number: "".join(word.capitalize() for word in name.removeprefix("INDEXED_VALUE_TYPE_").split("_"))
    for name, number in IndexedValueType.items()
}


async def _add_search_attributes(
    frontend: Frontend, request: AddSearchAttributesRequest, _: Call
) -> AddSearchAttributesResponse:
    check_name(request.namespace)
    if not request.search_attributes:
        raise InvalidArgument("SearchAttributes are not set on request.")
    if not request.namespace:
        raise InvalidArgument("Namespace is not set on request.")
    wanted = {name: int(kind) for name, kind in request.search_attributes.items()}

    def change(namespace: Namespace) -> Namespace:
        changed = replace(namespace, search_attributes=_with_added(namespace.search_attributes, wanted))
        return configured(namespace, changed)

    await frontend.namespaces.find(request.namespace)
    await frontend.namespaces.update(request.namespace, change)
    return AddSearchAttributesResponse()


async def _remove_search_attributes(
    frontend: Frontend, request: RemoveSearchAttributesRequest, _: Call
) -> RemoveSearchAttributesResponse:
    check_name(request.namespace)
    if not request.search_attributes:
        raise InvalidArgument("SearchAttributes are not set on request.")
    if not request.namespace:
        raise InvalidArgument("Namespace is not set on request.")
    removed = set(request.search_attributes)

    def change(namespace: Namespace) -> Namespace:
        for name in request.search_attributes:
            if name in SYSTEM_SEARCH_ATTRIBUTES:
                raise InvalidArgument(f"Unable to remove non-custom search attributes: {name}.")
        left = {name: kind for name, kind in namespace.search_attributes.items() if name not in removed}
        return configured(namespace, replace(namespace, search_attributes=left))

    await frontend.namespaces.find(request.namespace)
    await frontend.namespaces.update(request.namespace, change)
    return RemoveSearchAttributesResponse()


async def _list_search_attributes(
    frontend: Frontend, request: ListSearchAttributesRequest, _: Call
) -> ListSearchAttributesResponse:
    check_name(request.namespace)
    if not request.namespace:
        raise InvalidArgument("Namespace is not set on request.")
    namespace = await frontend.namespaces.read(request.namespace)
    answer = ListSearchAttributesResponse(system_attributes=SYSTEM_SEARCH_ATTRIBUTES)
    for name, kind in namespace.search_attributes.items():
        answer.custom_attributes[name] = IndexedValueType.ValueType(kind)
    return answer


async def _delete_namespace(frontend: Frontend, request: DeleteNamespaceRequest, _: Call) -> DeleteNamespaceResponse:
    check_name(request.namespace)
    if not request.namespace and not request.namespace_id:
        raise InvalidArgument("Namespace not set on request.")
    if request.namespace and request.namespace_id:
        raise InvalidArgument("Only one of namespace name or Id should be set on request.")
    if request.namespace == RESERVED_NAME:
        raise FailedPrecondition("unable to delete system namespace")
    if len(request.namespace_id) > NAME_BYTES_MAX:
        raise namespace_not_found(request.namespace_id)
    present = await (
        frontend.namespaces.read(request.namespace)
        if request.namespace
        else frontend.namespaces.read_id(request.namespace_id)
    )
    if present.is_global and len(present.clusters) > 1:
        raise FailedPrecondition(
            f"Namespace {present.name} is in clusters {', '.join(present.clusters)}: reduce it to one cluster "
            "with UpdateNamespace, then delete it in each."
        )
    await _check_deletion(frontend, present.name)
    delay_ns = _delay_ns(request.namespace_delete_delay)
    # At least 1: a value above 0 marks the namespace's runs for deletion.
    purge_after_ns = max(1, int(frontend.clock() * SECOND_NS) + delay_ns)
    deleted = await frontend.namespaces.delete(present.id, purge_after_ns=purge_after_ns)
    return DeleteNamespaceResponse(deleted_namespace=deleted.name)


async def _check_deletion(frontend: Frontend, name: str) -> None:
    """Reject the deletion of a protected namespace, and of the target of a Nexus endpoint."""
    if name in frontend.settings.get(PROTECTED):
        raise FailedPrecondition(f"namespace {name} is protected from deletion")
    if frontend.settings.get(DELETES_ENDPOINT_TARGETS):
        return
    for endpoint in await Endpoints(frontend.store).all():
        if endpoint.spec.target.worker.namespace == name:
            raise FailedPrecondition(
                f"cannot delete a namespace that is a target of a Nexus endpoint {endpoint.spec.name}"
            )


OPERATOR_METHODS: dict[str, Handler] = {
    "AddSearchAttributes": _add_search_attributes,
    "RemoveSearchAttributes": _remove_search_attributes,
    "ListSearchAttributes": _list_search_attributes,
    "DeleteNamespace": _delete_namespace,
}
NOTES = {
    "ListSearchAttributes": "storage_schema is empty: search attributes are stored under their own names.",
}
DIFFERENCES = (
    (
        f"A namespace may have {SEARCH_ATTRIBUTES_A_TYPE_MAX} custom search attributes of each type, where Temporal's "
        "server has 10 keywords and 3 of each other type on a SQL database; their names are at most "
        f"{SEARCH_ATTRIBUTE_NAME_CHARACTERS_MAX} characters long, and have no quotes, backslashes or controls."
    ),
)


def _with_added(present: dict[str, int], wanted: dict[str, int]) -> dict[str, int]:
    for name, kind in wanted.items():
        if name in SYSTEM_SEARCH_ATTRIBUTES or name.startswith(RESERVED_PREFIX):
            raise InvalidArgument(f"Search attribute {name} is reserved by system.")
        if kind not in _TYPE_NAMES:
            raise InvalidArgument(f"Unknown search attribute type: {kind}.")
        if not name or len(name) > SEARCH_ATTRIBUTE_NAME_CHARACTERS_MAX or _BAD_IN_NAME.search(name):
            raise InvalidArgument(
                f"Invalid search attribute name {name[:SEARCH_ATTRIBUTE_NAME_CHARACTERS_MAX]!r}: give 1 to "
                f"{SEARCH_ATTRIBUTE_NAME_CHARACTERS_MAX} characters without quotes, backslashes and controls."
            )
    # An attribute that exists keeps its type.
    added = {**wanted, **present}
    for kind, type_name in _TYPE_NAMES.items():
        most = SEARCH_ATTRIBUTES_A_TYPE_MAX if kind else 0
        if sum(one == kind for one in added.values()) > most:
            raise InvalidArgument(
                f"Unable to create search attributes: cannot have more than {most} search attribute of type "
                f"{type_name}."
            )
    return added


def _delay_ns(delay: Duration) -> int:
    if delay.seconds < 0 or delay.nanos < 0:
        raise InvalidArgument("NamespaceDeleteDelay can't be negative.")
    return min(delay.seconds * SECOND_NS + delay.nanos, 2**62)
