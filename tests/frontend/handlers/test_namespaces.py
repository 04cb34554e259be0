"""Namespaces over real gRPC, with the codes and messages of Temporal's server."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import ArchivalState, NamespaceState, ReplicationState
from temporalio.api.errordetails.v1 import NamespaceAlreadyExistsFailure, NamespaceNotFoundFailure
from temporalio.api.namespace.v1 import (
    BadBinaries,
    BadBinaryInfo,
    NamespaceConfig,
    NamespaceFilter,
    NamespaceInfo,
    UpdateNamespaceInfo,
)
from temporalio.api.replication.v1 import ClusterReplicationConfig, NamespaceReplicationConfig
from temporalio.api.workflowservice.v1 import (
    DeprecateNamespaceRequest,
    DescribeNamespaceRequest,
    DescribeNamespaceResponse,
    GetSearchAttributesRequest,
    ListNamespacesRequest,
    RegisterNamespaceRequest,
    UpdateNamespaceRequest,
)

from fairlead.frontend.handlers.namespaces import NAMESPACE_CAPABILITIES
from fairlead.storage.sqlite import SqliteStore
from tests.frontend.served import DEFAULT_ID, Serving, code_and_message, error_of, needs_command_line, serving

NOT_SET = ("INVALID_ARGUMENT", "Namespace not set on request.")
TOO_LONG = ("INVALID_ARGUMENT", "Namespace length exceeds limit.")
NO_RETENTION = ("INVALID_ARGUMENT", "A valid retention period is not set on request.")
OTHER_CLUSTER = ("INVALID_ARGUMENT", "Invalid cluster name: other")
BAD_STATE = ("INVALID_ARGUMENT", "Invalid namespace state update.")
LONG = "x" * 1001
HOUR = Duration(seconds=3600)


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    async with serving() as served:
        yield served


def register(name: str = "mine", **fields: Any) -> RegisterNamespaceRequest:
    return RegisterNamespaceRequest(**{"namespace": name, "workflow_execution_retention_period": HOUR, **fields})


def update(**fields: Any) -> UpdateNamespaceRequest:
    return UpdateNamespaceRequest(namespace="default", **fields)


async def described(served: Serving, name: str) -> DescribeNamespaceResponse:
    answer: DescribeNamespaceResponse = await served.workflow.DescribeNamespace(
        DescribeNamespaceRequest(namespace=name)
    )
    return answer


@pytest.mark.parametrize("name", ["bell\x07", "clear\x1b[2J", "two\nlines", "right\u202eleft", "nul\0"])
async def test_a_namespace_with_characters_that_can_not_be_printed_is_not_registered(
    served: Serving, name: str
) -> None:
    message = f"Namespace {name!a} has control characters: use printable ones only."
    assert await code_and_message(served.workflow.RegisterNamespace(register(name))) == ("INVALID_ARGUMENT", message)
    assert (await described(served, "default")).namespace_info.name == "default"
    await served.workflow.RegisterNamespace(register("Grüße 日本"))


async def test_a_namespace_is_described_as_it_was_registered(served: Serving) -> None:
    await served.workflow.RegisterNamespace(
        register(
            description="d",
            owner_email="o",
            data={"k": "v"},
            active_cluster_name="active",
            clusters=[ClusterReplicationConfig(cluster_name="active")],
            history_archival_state=ArchivalState.ARCHIVAL_STATE_ENABLED,
        )
    )
    answer = await described(served, "mine")
    info = answer.namespace_info
    assert (info.name, info.state, info.description, info.owner_email) == ("mine", 1, "d", "o")
    assert (dict(info.data), info.supports_schedules) == ({"k": "v"}, True)
    assert answer.config.workflow_execution_retention_ttl == HOUR
    assert answer.config.history_archival_state == ArchivalState.ARCHIVAL_STATE_DISABLED
    assert answer.replication_config == NamespaceReplicationConfig(
        active_cluster_name="active",
        clusters=[ClusterReplicationConfig(cluster_name="active")],
        state=ReplicationState.REPLICATION_STATE_NORMAL,
    )
    assert (answer.is_global_namespace, answer.failover_version) == (False, 0)
    by_id = await served.workflow.DescribeNamespace(DescribeNamespaceRequest(id=info.id))
    assert by_id == answer


async def test_a_namespace_has_its_limits_and_every_capability_of_the_table(served: Serving) -> None:
    info = (await described(served, "default")).namespace_info
    assert {name: getattr(info.capabilities, name) for name in NAMESPACE_CAPABILITIES} == NAMESPACE_CAPABILITIES
    # A capability that a newer API adds must be decided on as well.
    assert set(NAMESPACE_CAPABILITIES) == set(NamespaceInfo.Capabilities.DESCRIPTOR.fields_by_name)
    assert (info.limits.blob_size_limit_error, info.limits.memo_size_limit_error) == (2 << 20, 2 << 20)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (register(""), NOT_SET),
        (register(LONG), TOO_LONG),
        (RegisterNamespaceRequest(namespace="mine"), NO_RETENTION),
        (register(workflow_execution_retention_period=Duration(seconds=3599)), NO_RETENTION),
        (register(workflow_execution_retention_period=Duration(seconds=-86_400)), NO_RETENTION),
        (register(workflow_execution_retention_period=Duration(seconds=86_400, nanos=-5)), NO_RETENTION),
        (register(workflow_execution_retention_period=Duration(seconds=2**63 - 1)), NO_RETENTION),
        (
            register(is_global_namespace=True),
            ("INVALID_ARGUMENT", "Cannot register global namespace when not enabled"),
        ),
        (register(active_cluster_name="other"), OTHER_CLUSTER),
        (register(clusters=[ClusterReplicationConfig(cluster_name="other")]), OTHER_CLUSTER),
        (register("default"), ("ALREADY_EXISTS", 'Namespace "default" already exists')),
        (register("temporal-system"), ("ALREADY_EXISTS", 'Namespace "temporal-system" already exists')),
    ],
)
async def test_a_bad_registration_is_refused_and_changes_nothing(
    served: Serving, request_: RegisterNamespaceRequest, expected: tuple[str, str]
) -> None:
    before = served.frontend.namespaces.all()
    assert await code_and_message(served.workflow.RegisterNamespace(request_)) == expected
    assert served.frontend.namespaces.all() == before


async def test_errors_carry_the_details_of_temporals_errors(served: Serving) -> None:
    exists = await error_of(served.workflow.RegisterNamespace(register("default")))
    assert exists.details is not None
    assert exists.details[0].Is(NamespaceAlreadyExistsFailure.DESCRIPTOR)
    unknown = await error_of(served.workflow.DescribeNamespace(DescribeNamespaceRequest(namespace="nope")))
    assert (unknown.code, unknown.message) == ("NOT_FOUND", "Namespace nope is not found.")
    assert unknown.details is not None
    failure = NamespaceNotFoundFailure()
    assert unknown.details[0].Unpack(failure)
    assert failure.namespace == "nope"
    plain = await error_of(served.workflow.DescribeNamespace(DescribeNamespaceRequest()))
    assert plain.details is None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (DescribeNamespaceRequest(), NOT_SET),
        (DescribeNamespaceRequest(namespace=LONG), TOO_LONG),
        (DescribeNamespaceRequest(id=LONG), ("NOT_FOUND", f"Namespace {LONG} is not found.")),
        (DescribeNamespaceRequest(id="no\0id"), ("NOT_FOUND", "Namespace no\0id is not found.")),
        (
            DescribeNamespaceRequest(namespace="default", id=DEFAULT_ID),
            ("INVALID_ARGUMENT", "GetNamespace operation failed.  Both ID and Name specified in request."),
        ),
    ],
)
async def test_an_invalid_describe_request_is_refused(
    served: Serving, request_: DescribeNamespaceRequest, expected: tuple[str, str]
) -> None:
    assert await code_and_message(served.workflow.DescribeNamespace(request_)) == expected


async def test_an_update_changes_only_the_given_fields(served: Serving) -> None:
    await served.workflow.RegisterNamespace(register(description="d", owner_email="o", data={"k": "v"}))
    request = UpdateNamespaceRequest(
        namespace="mine",
        update_info=UpdateNamespaceInfo(description="new", data={"k2": "v2"}),
        config=NamespaceConfig(workflow_execution_retention_ttl=Duration(seconds=7200)),
        replication_config=NamespaceReplicationConfig(active_cluster_name="active"),
    )
    answer = await served.workflow.UpdateNamespace(request)
    info = answer.namespace_info
    assert (info.description, info.owner_email, dict(info.data)) == ("new", "o", {"k": "v", "k2": "v2"})
    assert answer.config.workflow_execution_retention_ttl.seconds == 7200
    now = await described(served, "mine")
    assert now.namespace_info == answer.namespace_info
    assert (now.config, now.replication_config) == (answer.config, answer.replication_config)
    again = await served.workflow.UpdateNamespace(UpdateNamespaceRequest(namespace="mine"))
    assert again == answer


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (UpdateNamespaceRequest(), NOT_SET),
        (UpdateNamespaceRequest(namespace=LONG), TOO_LONG),
        (UpdateNamespaceRequest(namespace="nope"), ("NOT_FOUND", "Namespace nope is not found.")),
        (update(config=NamespaceConfig(workflow_execution_retention_ttl=Duration())), NO_RETENTION),
        (
            update(config=NamespaceConfig(bad_binaries=BadBinaries(binaries={"b": BadBinaryInfo()}))),
            ("INVALID_ARGUMENT", "Bad binaries are not supported."),
        ),
        (
            update(config=NamespaceConfig(custom_search_attribute_aliases={"Keyword01": "a"})),
            ("INVALID_ARGUMENT", "Aliases of search attributes are not supported: use AddSearchAttributes."),
        ),
        (update(delete_bad_binary="b"), ("INVALID_ARGUMENT", "Bad binary checksum b doesn't exists.")),
        (update(replication_config=NamespaceReplicationConfig(active_cluster_name="other")), OTHER_CLUSTER),
        (
            update(
                replication_config=NamespaceReplicationConfig(clusters=[ClusterReplicationConfig(cluster_name="other")])
            ),
            OTHER_CLUSTER,
        ),
        (
            update(replication_config=NamespaceReplicationConfig(state=ReplicationState.REPLICATION_STATE_HANDOVER)),
            ("INVALID_ARGUMENT", "Handover can only be set for global namespace"),
        ),
        (
            update(promote_namespace=True),
            (
                "INVALID_ARGUMENT",
                (
                    "global namespace is not enabled on this cluster, cannot update global namespace or promote local "
                    "namespace: default"
                ),
            ),
        ),
    ],
)
async def test_a_bad_update_is_refused_and_changes_nothing(
    served: Serving, request_: UpdateNamespaceRequest, expected: tuple[str, str]
) -> None:
    before = served.frontend.namespaces.all()
    assert await code_and_message(served.workflow.UpdateNamespace(request_)) == expected
    assert served.frontend.namespaces.all() == before


async def test_a_namespace_goes_from_registered_to_deprecated_to_deleted_and_not_back(served: Serving) -> None:
    async def go_to(state: int) -> int:
        info = UpdateNamespaceInfo(state=NamespaceState.ValueType(state))
        answer = await served.workflow.UpdateNamespace(update(update_info=info))
        reached: int = answer.namespace_info.state
        return reached

    assert await go_to(1) == 1
    assert await code_and_message(served.workflow.UpdateNamespace(update(update_info={"state": 9}))) == BAD_STATE
    assert await go_to(2) == 2
    assert await code_and_message(served.workflow.UpdateNamespace(update(update_info={"state": 1}))) == BAD_STATE
    assert await go_to(3) == 3
    assert await code_and_message(served.workflow.UpdateNamespace(update(update_info={"state": 1}))) == BAD_STATE


async def test_a_namespace_is_deprecated(served: Serving) -> None:
    await served.workflow.DeprecateNamespace(DeprecateNamespaceRequest(namespace="default"))
    assert (await described(served, "default")).namespace_info.state == NamespaceState.NAMESPACE_STATE_DEPRECATED
    deprecate = served.workflow.DeprecateNamespace
    assert await code_and_message(deprecate(DeprecateNamespaceRequest())) == NOT_SET
    assert await code_and_message(deprecate(DeprecateNamespaceRequest(namespace=LONG))) == TOO_LONG
    expected = ("NOT_FOUND", "Namespace nope is not found.")
    assert await code_and_message(deprecate(DeprecateNamespaceRequest(namespace="nope"))) == expected
    deleted = await served.frontend.namespaces.delete(DEFAULT_ID, purge_after_ns=1)
    assert await code_and_message(deprecate(DeprecateNamespaceRequest(namespace=deleted.name))) == BAD_STATE


async def test_pages_hold_each_namespace_once_and_deleted_ones_on_request(served: Serving) -> None:
    for number in range(5):
        await served.workflow.RegisterNamespace(register(f"n{number}"))
    gone = await described(served, "n4")
    await served.frontend.namespaces.delete(gone.namespace_info.id, purge_after_ns=1)

    async def listed(**fields: Any) -> list[str]:
        names: list[str] = []
        token = b""
        while True:
            request = ListNamespacesRequest(page_size=2, next_page_token=token, **fields)
            answer = await served.workflow.ListNamespaces(request)
            names += [found.namespace_info.name for found in answer.namespaces]
            token = answer.next_page_token
            if not token:
                return sorted(names)

    assert await listed() == ["default", "n0", "n1", "n2", "n3"]
    everything = await listed(namespace_filter=NamespaceFilter(include_deleted=True))
    assert everything == ["default", "n0", "n1", "n2", "n3", f"n4-deleted-{gone.namespace_info.id[:5]}"]
    whole = await served.workflow.ListNamespaces(ListNamespacesRequest())
    assert (len(whole.namespaces), whole.next_page_token) == (5, b"")
    for request in (ListNamespacesRequest(page_size=-1), ListNamespacesRequest(next_page_token=b"\xff\0")):
        assert (await code_and_message(served.workflow.ListNamespaces(request)))[0] == "INVALID_ARGUMENT"
    bad_token = ListNamespacesRequest(next_page_token=b"a\0")
    assert await code_and_message(served.workflow.ListNamespaces(bad_token)) == (
        "INVALID_ARGUMENT",
        "Invalid NextPageToken.",
    )


async def test_the_search_attributes_of_all_namespaces_and_of_the_system_are_listed(served: Serving) -> None:
    answer = await served.workflow.GetSearchAttributes(GetSearchAttributesRequest())
    assert (answer.keys["WorkflowId"], answer.keys["StartTime"], len(answer.keys)) == (2, 6, 33)


@needs_command_line
@pytest.mark.timeout(120)
async def test_the_command_line_manages_namespaces(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "fairlead.db")
    async with serving(store.history) as served:
        temporal = served.temporal
        await temporal("operator", "namespace", "create", "-n", "mine", "--retention", "48h", "--description", "first")
        assert "mine" in await temporal("operator", "namespace", "list")
        await temporal("operator", "namespace", "update", "-n", "mine", "--description", "second")
        shown = json.loads(await temporal("operator", "namespace", "describe", "-n", "mine", "-o", "json"))
        assert shown["namespaceInfo"]["description"] == "second"
        assert shown["config"]["workflowExecutionRetentionTtl"] == "172800s"
        assert (await described(served, "mine")).namespace_info.description == "second"
        await temporal("operator", "namespace", "delete", "-n", "mine", "--yes")
        with pytest.raises(AssertionError, match="Namespace mine is not found"):
            await temporal("operator", "namespace", "describe", "-n", "mine")
    await store.close()
