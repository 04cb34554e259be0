"""Erasure from published tables: after `publish`, the files and the metadata of all earlier versions go."""

from typing import TYPE_CHECKING
from urllib.parse import urlparse

from pyarrow import fs

from fairlead.pipeline.dictionary import TABLES
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.publish.delta import DeltaPlace
from fairlead.pipeline.publish.files import location_of, opened
from fairlead.pipeline.publish.iceberg import IcebergPlace

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def erase_from_delta(lake: Lake, place: DeltaPlace) -> dict[str, int]:
    """Publish the erased tables again, and purge them; return the number of removed files of each table."""
    from deltalake import DeltaTable  # noqa: PLC0415 - optional

    tables = [table for table in TABLES if lake.has(table) and DeltaTable.is_deltatable(location_of(place.url, table))]
    for table in tables:
        place.publish(lake, table)
    return {table: purge_delta(place, table) for table in tables}


def erase_from_iceberg(lake: Lake, place: IcebergPlace) -> dict[str, int]:
    """Publish the erased tables again, and purge them; return the number of removed files of each table."""
    catalog = place.open()
    tables = [table for table in TABLES if lake.has(table) and catalog.table_exists((place.namespace, table))]
    for table in tables:
        place.publish(lake, table)
    return {table: purge_iceberg(place, table) for table in tables}


def purge_delta(place: DeltaPlace, table: str) -> int:
    """Remove every file that the present version does not use; return their number. Earlier versions can't be read."""
    from deltalake import DeltaTable  # noqa: PLC0415 - optional

    location = location_of(place.url, table)
    if not DeltaTable.is_deltatable(location):
        return 0
    present = DeltaTable(location)
    # The log has names of files, sizes and numbers of rows, and no values but the cluster and the day.
    removed = present.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    return len(removed)


def purge_iceberg(place: IcebergPlace, table: str) -> int:
    """Expire all snapshots but the present one, and remove the files that it does not use; return their number.

    Manifests of earlier snapshots have the bounds of each column, which may be the erased id.
    """
    catalog = place.open()
    name = (place.namespace, table)
    if not catalog.table_exists(name):
        return 0
    published = catalog.load_table(name)
    if any(one.deleted_files_count for one in _manifests(published)):
        # A manifest also has the files that its snapshot removed, with their bounds: the next snapshot leaves them out.
        with published.transaction() as transaction, transaction.update_snapshot().fast_append():
            pass
    published = catalog.load_table(name)
    present = published.current_snapshot()
    old = [
        one.snapshot_id for one in published.snapshots() if present is None or one.snapshot_id != present.snapshot_id
    ]
    if old:
        published.maintenance.expire_snapshots().by_ids(old).commit()
    published = catalog.load_table(name)
    used = {_path(published.metadata_location)}
    if present is not None:
        used.add(_path(present.manifest_list))
        used |= {_path(one.manifest_path) for one in _manifests(published)}
    used |= {_path(task.file.file_path) for task in published.scan().plan_files()}
    where, base = opened(published.location())
    found = where.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    gone = [one.path for one in found if one.type == fs.FileType.File and _path(one.path) not in used]
    for path in gone:
        where.delete_file(path)
    return len(gone)


def _manifests(published: "Table") -> "list[ManifestFile]":
    present = published.current_snapshot()
    return [] if present is None else present.manifests(published.io)


def _path(address: str) -> str:
    """Return the part of an address that listings have, too: without the scheme."""
    parsed = urlparse(address)
    return f"{parsed.netloc}{parsed.path}".lstrip("/")
