"""Delta tables: one commit for each run that changes a table."""

import importlib.util
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.publish.files import (
    CantPublish,
    LakeFile,
    NoLibrary,
    Published,
    PublishedMeanwhile,
    copy_files,
    files_of,
    location_of,
    schema_of,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction


@dataclass(frozen=True, slots=True)
class DeltaPlace:
    """A folder or a bucket with a Delta table for each table of the lake."""

    url: str

    def __post_init__(self) -> None:
        """Raise an error if the library is not installed."""
        if importlib.util.find_spec("deltalake") is None:
            raise NoLibrary("publishing Delta tables needs deltalake: pip install 'fairlead[publish]'")

    def publish(self, lake: Lake, table: str) -> Published:
        """Make the Delta table hold exactly the files of the lake's table."""
        from deltalake import DeltaTable  # noqa: PLC0415 - optional

        location = location_of(self.url, table)
        files = list(files_of(lake, table))
        is_there = DeltaTable.is_deltatable(location)
        if not files and not is_there:
            return Published(table, "delta", location, 0, 0, 0)
        present = DeltaTable(location) if is_there else None
        there = _names(present) if present is not None else set()
        news = [file for file in files if file.name not in there]
        gone = there - {file.name for file in files}
        if news or gone:
            copy_files(location, news)
            if present is None:
                _create(location, table, files)
            else:
                _commit(present, schema_of(table, news) if news else None, news, gone)
        return Published(table, "delta", location, sum(file.rows for file in files), len(news), len(gone))


def _create(location: str, table: str, files: list[LakeFile]) -> None:
    from deltalake import Schema  # noqa: PLC0415 - optional
    from deltalake.transaction import create_table_with_add_actions  # noqa: PLC0415

    create_table_with_add_actions(
        location,
        Schema.from_arrow(schema_of(table, files)),
        [_added(file) for file in files],
        partition_by=list(files[0].partition),
        name=table,
        description=f"A row is {TABLES[table].row}." if table in TABLES else None,
    )


def _commit(present: "DeltaTable", arrow: pa.Schema | None, news: list[LakeFile], gone: set[str]) -> None:
    from deltalake import CommitProperties  # noqa: PLC0415 - optional
    from deltalake.exceptions import CommitFailedError  # noqa: PLC0415
    from deltalake.transaction import RemoveAction  # noqa: PLC0415

    if arrow is not None:
        _add_columns(present, arrow)
    now_ms = time.time_ns() // 1_000_000
    removed = [RemoveAction(path=name, data_change=True, deletion_timestamp=now_ms) for name in sorted(gone)]
    try:
        # No retry: the table would then have the files of another run, too.
        present.create_write_transaction(
            [*map(_added, news), *removed],
            mode="append",
            schema=present.schema(),
            partition_by=present.metadata().partition_columns,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError as other:
        raise PublishedMeanwhile(f"{present.table_uri}: another run changed this table: publish again") from other


def _names(present: "DeltaTable") -> set[str]:
    return set(pa.table(present.get_add_actions()).column("path").to_pylist())


def _added(file: LakeFile) -> "AddAction":
    from deltalake.transaction import AddAction  # noqa: PLC0415 - optional

    return AddAction(
        path=file.name,
        size=file.bytes,
        partition_values=dict(file.partition),
        modification_time=file.path.stat().st_mtime_ns // 1_000_000,
        data_change=True,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _add_columns(present: "DeltaTable", arrow: pa.Schema) -> None:
    """Add the columns that the table lacks; raise an error if a column has another type."""
    from deltalake import Schema  # noqa: PLC0415 - optional

    there = {field.name: field.type for field in present.schema().fields}
    wanted = Schema.from_arrow(arrow).fields
    other = [field.name for field in wanted if field.name in there and there[field.name] != field.type]
    if other:
        raise CantPublish(
            f"{present.table_uri}: {', '.join(other)} have another type in this table: publish to another place"
        )
    missing = [field for field in wanted if field.name not in there]
    if missing:
        present.alter.add_columns(missing)
