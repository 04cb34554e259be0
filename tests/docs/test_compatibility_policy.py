"""The numbers and rules of docs/compatibility-policy.md are those of the code."""

import importlib
import pkgutil
import re
from pathlib import Path

import msgspec
import pytest

import fairlead
from fairlead.core.partitions import Partition, TaskQueueId, TaskType
from fairlead.journal import SCHEMA_VERSION
from fairlead.matching.messages import ADD, AddRequest, NewTask
from fairlead.rpc.hosts.caller import Method
from fairlead.rpc.hosts.wire import Codec
from fairlead.storage.migrations import load_migrations

PAGE = (Path(__file__).parents[2] / "docs" / "compatibility-policy.md").read_text()
REQUEST = AddRequest(
    Partition(TaskQueueId("default", "orders", TaskType.ACTIVITY), 0),
    NewTask(priority=3, fairness_key="", weight=1.0, payload=b"one"),
)


class NewerAddRequest(AddRequest, frozen=True):
    """A message of the next release, with one more field."""

    added: str = "default"


def stated(row: str) -> int:
    found = re.search(rf"^\| {row} \| (\d+) \|", PAGE, re.MULTILINE)
    assert found is not None, row
    return int(found[1])


@pytest.mark.parametrize(("row", "dialect"), [("SQLite schema", "sqlite"), ("PostgreSQL schema", "postgres")])
def test_the_page_names_the_version_of_the_schema(row: str, dialect: str) -> None:
    assert stated(row) == load_migrations(dialect)[-1].version


def test_the_page_names_the_versions_of_journal_and_lake() -> None:
    from fairlead.pipeline.lake import LAYOUT  # noqa: PLC0415 - needs Spark, which takes a while to load

    assert stated("journal segments") == SCHEMA_VERSION
    assert stated("lake layout") == LAYOUT


def test_an_older_host_reads_a_message_with_an_added_field() -> None:
    newer = Codec(Method("matching.Add", NewerAddRequest, AddRequest))
    data = newer.encode(NewerAddRequest(REQUEST.partition, REQUEST.task, added="new"))
    assert Codec(ADD).decode_request(data) == REQUEST


def test_a_newer_host_reads_a_message_without_the_added_field() -> None:
    newer = Codec(Method("matching.Add", NewerAddRequest, AddRequest))
    read = newer.decode_request(Codec(ADD).encode(REQUEST))
    assert (read.task, read.added) == (REQUEST.task, "default")


def test_no_message_between_hosts_or_clusters_refuses_added_fields() -> None:
    for package in ("cluster", "matching", "history", "replication"):
        home = Path(fairlead.__file__).parent / package
        for found in pkgutil.walk_packages([str(home)], f"fairlead.{package}."):
            importlib.import_module(found.name)
    refusing = [
        struct
        for struct in _all_below(msgspec.Struct)
        if struct.__module__.startswith("fairlead.")
        and not struct.__module__.startswith("fairlead.frontend.")
        and struct.__struct_config__.forbid_unknown_fields
    ]
    assert refusing == []


def _all_below(struct: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    below = set(struct.__subclasses__())
    return below | {deeper for one in below for deeper in _all_below(one)}
