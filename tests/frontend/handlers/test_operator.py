"""The operator service over real gRPC, with the codes and messages of Temporal's server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.errordetails.v1 import NotFoundFailure
from temporalio.api.nexus.v1 import EndpointSpec, EndpointTarget
from temporalio.api.operatorservice.v1 import (
    AddSearchAttributesRequest,
    CreateNexusEndpointRequest,
    DeleteNamespaceRequest,
    ListClustersRequest,
    ListSearchAttributesRequest,
    RemoveRemoteClusterRequest,
    RemoveSearchAttributesRequest,
)
from temporalio.api.workflowservice.v1 import GetSearchAttributesRequest

from fairlead.api.namespaces import DELETED
from fairlead.api.system_attributes import SYSTEM_SEARCH_ATTRIBUTES
from fairlead.frontend.handlers.operator import SEARCH_ATTRIBUTES_A_TYPE_MAX
from fairlead.settings import DynamicSettings
from fairlead.settings.dynamic.namespaces import DELETES_ENDPOINT_TARGETS, PROTECTED
from fairlead.storage.sqlite import SqliteStore
from fairlead.storage.visibility import ATTRIBUTES_MAX
from tests.frontend.served import DEFAULT_ID, Serving, code_and_message, error_of, needs_command_line, serving

NO_ATTRIBUTES = ("INVALID_ARGUMENT", "SearchAttributes are not set on request.")
NO_NAMESPACE = ("INVALID_ARGUMENT", "Namespace is not set on request.")
TOO_LONG = ("INVALID_ARGUMENT", "Namespace length exceeds limit.")
UNKNOWN = ("NOT_FOUND", "Namespace nope is not found.")
LONG = "x" * 1001


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    async with serving() as served:
        yield served


def add(attributes: dict[str, int], namespace: str = "default") -> AddSearchAttributesRequest:
    request = AddSearchAttributesRequest(namespace=namespace)
    for name, kind in attributes.items():
        request.search_attributes[name] = IndexedValueType.ValueType(kind)
    return request


def remove(*names: str, namespace: str = "default") -> RemoveSearchAttributesRequest:
    return RemoveSearchAttributesRequest(namespace=namespace, search_attributes=names)


async def custom(served: Serving) -> dict[str, int]:
    answer = await served.operator.ListSearchAttributes(ListSearchAttributesRequest(namespace="default"))
    assert dict(answer.system_attributes) == SYSTEM_SEARCH_ATTRIBUTES
    return dict(answer.custom_attributes)


async def test_search_attributes_can_be_added_and_removed(served: Serving) -> None:
    every_type = {f"Of{kind}": kind for kind in range(1, 8)}
    await served.operator.AddSearchAttributes(add(every_type))
    # Adding an existing one changes nothing.
    await served.operator.AddSearchAttributes(add({"Of2": 3, "Keyword 01": 2}))
    assert await custom(served) == {**every_type, "Keyword 01": 2}
    assert served.frontend.namespaces.all()[0].search_attributes["Of3"] == 3
    everywhere = await served.workflow.GetSearchAttributes(GetSearchAttributesRequest())
    assert everywhere.keys["Of7"] == 7
    await served.operator.RemoveSearchAttributes(remove("Of1", "never was"))
    assert "Of1" not in await custom(served)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (add({}), NO_ATTRIBUTES),
        (add({"A": 2}, ""), NO_NAMESPACE),
        (add({"A": 2}, LONG), TOO_LONG),
        (add({"A": 2}, "nope"), UNKNOWN),
        (add({"WorkflowId": 2}), ("INVALID_ARGUMENT", "Search attribute WorkflowId is reserved by system.")),
        (add({"TemporalFoo": 2}), ("INVALID_ARGUMENT", "Search attribute TemporalFoo is reserved by system.")),
        (add({"A": 99}), ("INVALID_ARGUMENT", "Unknown search attribute type: 99.")),
        (
            add({"A": 0}),
            (
                "INVALID_ARGUMENT",
                "Unable to create search attributes: cannot have more than 0 search attribute of type Unspecified.",
            ),
        ),
        (
            add({f"K{number}": 7 for number in range(SEARCH_ATTRIBUTES_A_TYPE_MAX + 1)}),
            (
                "INVALID_ARGUMENT",
                "Unable to create search attributes: cannot have more than 30 search attribute of type KeywordList.",
            ),
        ),
    ],
)
async def test_bad_search_attributes_are_refused_and_change_nothing(
    served: Serving, request_: AddSearchAttributesRequest, expected: tuple[str, str]
) -> None:
    assert await code_and_message(served.operator.AddSearchAttributes(request_)) == expected
    assert await custom(served) == {}


@pytest.mark.parametrize("name", ["", "a`b", 'a"b', "a'b", "a\\b", "a\0b", "x" * 256])
async def test_a_search_attribute_name_that_queries_can_not_express_is_refused(served: Serving, name: str) -> None:
    code, message = await code_and_message(served.operator.AddSearchAttributes(add({"Good": 2, name: 2})))
    assert code == "INVALID_ARGUMENT"
    assert message.startswith("Invalid search attribute name")
    assert await custom(served) == {}


def test_all_search_attributes_of_a_namespace_fit_into_one_row() -> None:
    assert 7 * SEARCH_ATTRIBUTES_A_TYPE_MAX + len(SYSTEM_SEARCH_ATTRIBUTES) <= ATTRIBUTES_MAX


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (remove(), NO_ATTRIBUTES),
        (remove("A", namespace=""), NO_NAMESPACE),
        (remove("A", namespace=LONG), TOO_LONG),
        (remove("A", namespace="nope"), UNKNOWN),
        (remove("A", "BuildIds"), ("INVALID_ARGUMENT", "Unable to remove non-custom search attributes: BuildIds.")),
    ],
)
async def test_a_bad_removal_is_refused_and_changes_nothing(
    served: Serving, request_: RemoveSearchAttributesRequest, expected: tuple[str, str]
) -> None:
    await served.operator.AddSearchAttributes(add({"A": 2}))
    assert await code_and_message(served.operator.RemoveSearchAttributes(request_)) == expected
    assert await custom(served) == {"A": 2}


async def test_the_search_attributes_of_one_namespace_are_listed(served: Serving) -> None:
    list_attributes = served.operator.ListSearchAttributes
    assert await code_and_message(list_attributes(ListSearchAttributesRequest())) == NO_NAMESPACE
    assert await code_and_message(list_attributes(ListSearchAttributesRequest(namespace=LONG))) == TOO_LONG
    assert await code_and_message(list_attributes(ListSearchAttributesRequest(namespace="nope"))) == UNKNOWN


async def test_a_deleted_namespace_is_renamed_and_marked_for_purging(served: Serving) -> None:
    request = DeleteNamespaceRequest(namespace="default", namespace_delete_delay=Duration(seconds=60))
    answer = await served.operator.DeleteNamespace(request)
    assert answer.deleted_namespace == "default-deleted-00000"
    [namespace] = served.frontend.namespaces.all()
    assert (namespace.state, namespace.name) == (DELETED, "default-deleted-00000")
    assert namespace.purge_after_ns == int((served.clock.now_s + 60) * 10**9)
    again = served.operator.DeleteNamespace(DeleteNamespaceRequest(namespace="default"))
    assert await code_and_message(again) == ("NOT_FOUND", "Namespace default is not found.")
    failed = await code_and_message(served.operator.AddSearchAttributes(add({"A": 2}, namespace.name)))
    assert failed[0] == "FAILED_PRECONDITION"


async def test_a_namespace_can_be_deleted_by_its_id(served: Serving) -> None:
    answer = await served.operator.DeleteNamespace(DeleteNamespaceRequest(namespace_id=DEFAULT_ID))
    assert answer.deleted_namespace == "default-deleted-00000"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("INVALID_ARGUMENT", "Namespace not set on request.")),
        (
            {"namespace": "default", "namespace_id": "x"},
            ("INVALID_ARGUMENT", "Only one of namespace name or Id should be set on request."),
        ),
        ({"namespace": LONG}, TOO_LONG),
        ({"namespace": "nope"}, UNKNOWN),
        ({"namespace_id": "nope"}, UNKNOWN),
        ({"namespace_id": LONG}, ("NOT_FOUND", f"Namespace {LONG} is not found.")),
        ({"namespace": "temporal-system"}, ("FAILED_PRECONDITION", "unable to delete system namespace")),
        (
            {"namespace": "default", "namespace_delete_delay": Duration(seconds=-1)},
            ("INVALID_ARGUMENT", "NamespaceDeleteDelay can't be negative."),
        ),
    ],
)
async def test_a_bad_deletion_is_refused_and_changes_nothing(
    served: Serving, fields: dict[str, Any], expected: tuple[str, str]
) -> None:
    before = served.frontend.namespaces.all()
    assert await code_and_message(served.operator.DeleteNamespace(DeleteNamespaceRequest(**fields))) == expected
    assert served.frontend.namespaces.all() == before


async def test_the_target_of_a_nexus_endpoint_can_be_deleted_only_if_a_setting_allows_it(served: Serving) -> None:
    target = EndpointTarget(worker=EndpointTarget.Worker(namespace="default", task_queue="handlers"))
    spec = EndpointSpec(name="shop", target=target)
    await served.operator.CreateNexusEndpoint(CreateNexusEndpointRequest(spec=spec))
    request = DeleteNamespaceRequest(namespace="default")
    assert await code_and_message(served.operator.DeleteNamespace(request)) == (
        "FAILED_PRECONDITION",
        "cannot delete a namespace that is a target of a Nexus endpoint shop",
    )
    served.frontend.settings = DynamicSettings(overrides={DELETES_ENDPOINT_TARGETS.key: True})
    assert (await served.operator.DeleteNamespace(request)).deleted_namespace


async def test_a_protected_namespace_can_not_be_deleted_by_name_or_id(served: Serving) -> None:
    served.frontend.settings = DynamicSettings(overrides={PROTECTED.key: ["orders", "default"]})
    for request in (DeleteNamespaceRequest(namespace="default"), DeleteNamespaceRequest(namespace_id=DEFAULT_ID)):
        assert await code_and_message(served.operator.DeleteNamespace(request)) == (
            "FAILED_PRECONDITION",
            "namespace default is protected from deletion",
        )


async def test_a_single_cluster_lists_itself_and_has_no_remote_cluster_to_remove(served: Serving) -> None:
    [cluster] = (await served.operator.ListClusters(ListClustersRequest())).clusters
    assert (cluster.cluster_name, cluster.cluster_id) == ("active", served.frontend.cluster_id)
    assert (cluster.address, cluster.history_shard_count) == (served.address, 4)
    bad_token = served.operator.ListClusters(ListClustersRequest(next_page_token=b"x"))
    assert (await code_and_message(bad_token))[0] == "INVALID_ARGUMENT"
    other = await error_of(served.operator.RemoveRemoteCluster(RemoveRemoteClusterRequest(cluster_name="other")))
    assert other.code == "NOT_FOUND"
    assert other.message == "The cluster to be deleted cannot be found in clusters cache."
    assert other.details is not None
    assert other.details[0].Is(NotFoundFailure.DESCRIPTOR)
    itself = served.operator.RemoveRemoteCluster(RemoveRemoteClusterRequest(cluster_name="active"))
    assert (await code_and_message(itself))[0] == "INVALID_ARGUMENT"


@needs_command_line
@pytest.mark.timeout(120)
async def test_the_command_line_manages_search_attributes(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "fairlead.db")
    async with serving(store.history) as served:
        temporal = served.temporal
        await temporal("operator", "search-attribute", "create", "--name", "Size", "--type", "Int")
        with pytest.raises(AssertionError, match="different type"):
            await temporal("operator", "search-attribute", "create", "--name", "Size", "--type", "Text")
        shown = json.loads(await temporal("operator", "search-attribute", "list", "-o", "json"))
        assert shown["customAttributes"] == {"Size": "INDEXED_VALUE_TYPE_INT"}
        await temporal("operator", "search-attribute", "remove", "--name", "Size", "--yes")
        assert await custom(served) == {}
    await store.close()
