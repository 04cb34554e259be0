"""Iceberg tables: one snapshot for each run that changes a table, in an SQL or REST catalog."""

import importlib.util
import os
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING
from urllib.parse import urlparse

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
    partition_value,
    schema_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

NAMESPACE = "fairlead"
_EPOCH = date(1970, 1, 1)
# First numbers of the fields of a partition spec, as Iceberg's specification has them.
_PARTITION_FIELD = 1000
_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """A catalog, and the folder or bucket of its tables.

    `catalog` is the address of a REST catalog, or of a database: `sqlite:///FILE` or `postgresql+psycopg://...`.
    """

    catalog: str
    warehouse: str
    namespace: str = NAMESPACE

    def __post_init__(self) -> None:
        """Raise an error if the library is not installed."""
        if importlib.util.find_spec("pyiceberg") is None:
            raise NoLibrary("publishing Iceberg tables needs pyiceberg: pip install 'fairlead[publish]'")

    def open(self) -> "Catalog":
        """Open the catalog, and create the namespace in it."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - optional

        kind = "rest" if urlparse(self.catalog).scheme in ("http", "https") else "sql"
        catalog = load_catalog("fairlead", type=kind, uri=self.catalog, warehouse=self.warehouse, **_endpoint())
        catalog.create_namespace_if_not_exists(self.namespace)
        return catalog

    def publish(self, lake: Lake, table: str) -> Published:
        """Make the Iceberg table hold exactly the files of the lake's table."""
        catalog = self.open()
        location = location_of(self.warehouse, table)
        if not urlparse(location).scheme:
            location = f"file://{location}"
        files = list(files_of(lake, table))
        name = (self.namespace, table)
        is_there = catalog.table_exists(name)
        if not files and not is_there:
            return Published(table, "iceberg", location, 0, 0, 0)
        if is_there:
            published = catalog.load_table(name)
            if published.location() != location:
                raise CantPublish(
                    f"--warehouse {self.warehouse}: this catalog has the table {table!r} at {published.location()}: "
                    "give the folder above it, or another catalog"
                )
        else:
            published = self._created(catalog, table, location, schema_of(table, files), folders=[*files[0].partition])
        there = _data_files(published)
        paths = {f"{location}/{file.name}": file for file in files}
        news = {path: file for path, file in paths.items() if path not in there}
        gone = [file for path, file in there.items() if path not in paths]
        if news or gone:
            copy_files(location, list(news.values()))
            if news and is_there:
                _add_columns(published, schema_of(table, list(news.values())))
            _commit(published, news, gone)
        return Published(table, "iceberg", location, sum(file.rows for file in files), len(news), len(gone))

    def _created(
        self, catalog: "Catalog", table: str, location: str, arrow: "pa.Schema", *, folders: list[str]
    ) -> "Table":
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # noqa: PLC0415 - optional
        from pyiceberg.partitioning import PartitionField, PartitionSpec  # noqa: PLC0415
        from pyiceberg.schema import assign_fresh_schema_ids  # noqa: PLC0415
        from pyiceberg.transforms import IdentityTransform  # noqa: PLC0415

        schema = assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))
        spec = PartitionSpec(
            *(
                PartitionField(schema.find_field(name).field_id, _PARTITION_FIELD + number, IdentityTransform(), name)
                for number, name in enumerate(folders)
            )
        )
        # No retries: the table would then have the files of another run, too.
        properties = {"commit.retry.num-retries": "0"}
        if table in TABLES:
            properties["comment"] = f"A row is {TABLES[table].row}."
        published = catalog.create_table(
            (self.namespace, table), schema, location=location, partition_spec=spec, properties=properties
        )
        # The files have no field ids: Iceberg finds their columns by name.
        with published.transaction() as transaction:
            transaction.set_properties({_NAME_MAPPING: published.schema().name_mapping.model_dump_json()})
        return published


def _endpoint() -> dict[str, str]:
    """Return the endpoint and the region of S3 from the usual variables, which pyiceberg does not read."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION")
    return ({"s3.endpoint": endpoint} if endpoint else {}) | ({"s3.region": region} if region else {})


def _data_files(published: "Table") -> "dict[str, DataFile]":
    return {task.file.file_path: task.file for task in published.scan().plan_files()}


def _commit(published: "Table", news: dict[str, LakeFile], gone: "list[DataFile]") -> None:
    from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - optional

    added = [_data_file(published, path, file) for path, file in news.items()]
    try:
        with published.transaction() as transaction:
            # An append is a snapshot of its own kind: readers of changes can follow it.
            update = transaction.update_snapshot()
            with update.overwrite() if gone else update.fast_append() as snapshot:
                for file in added:
                    snapshot.append_data_file(file)
                for file in gone:
                    snapshot.delete_data_file(file)
    except CommitFailedException as other:
        raise PublishedMeanwhile(f"{published.location()}: another run changed this table: publish again") from other


def _data_file(published: "Table", path: str, file: LakeFile) -> "DataFile":
    """Describe a file. `add_files` can't be used: it reads partition values from columns that are not in the file."""
    from pyarrow import parquet  # noqa: PLC0415 - with the others
    from pyiceberg.io.pyarrow import (  # noqa: PLC0415 - optional
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat  # noqa: PLC0415
    from pyiceberg.typedef import Record  # noqa: PLC0415

    metadata = published.metadata
    schema = metadata.schema()
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet.read_metadata(file.path),
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    values = [partition_value(field.name, file.partition[field.name]) for field in metadata.spec().fields]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        # Iceberg counts a date in days.
        partition=Record(*((value - _EPOCH).days if isinstance(value, date) else value for value in values)),
        file_size_in_bytes=file.bytes,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _add_columns(published: "Table", arrow: "pa.Schema") -> None:
    """Add the columns that the table lacks; raise an error if a column has another type."""
    from pyiceberg.exceptions import ValidationError  # noqa: PLC0415 - optional

    try:
        with published.update_schema() as update:
            update.union_by_name(arrow)
    except (ValidationError, TypeError, ValueError) as other:
        raise CantPublish(f"{published.location()}: {other}: publish to another place") from other
    mapping = published.schema().name_mapping.model_dump_json()
    if published.properties.get(_NAME_MAPPING) != mapping:
        with published.transaction() as transaction:
            transaction.set_properties({_NAME_MAPPING: mapping})
