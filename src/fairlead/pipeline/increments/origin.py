"""Origins: what a derived table was computed from. A run that finds the same parameters computes only what is new.

    <lake>/_runs/traffic/<run>/_origin.json     moved into place together with the rows of the table

`parameters` are the values on which every row depends: options, the release, the schema, and how often rows were
removed from the journal's table. If one of them differs, the table is computed anew as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from fairlead import __version__
from fairlead.core.namespaces import VERSION_MARK
from fairlead.pipeline.derived import ORIGIN_FILE, rows_in
from fairlead.pipeline.increments.changes import NewBatch, batch_numbers, new_batches, revision_of
from fairlead.pipeline.job import JobContext
from fairlead.pipeline.lake import Lake
from fairlead.pipeline.lake_files import BrokenLake, read_json
from fairlead.pipeline.namespaces import namespace_names
from fairlead.pipeline.queries import literal_paths

# Changes whenever the same release line computes other rows from the same records.
FORMAT = 1
# Share of the rows of the journal's table above which a whole computation is cheaper than an incremental one.
NEW_SHARE_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Origin:
    """The parameters of a derived table, the last batch that it includes, and the names of namespaces in it.

    `facts` is what the job stored beside that.
    """

    parameters: Mapping[str, Any]
    through: int
    names: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the document for the file."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of a run: all rows of its tables, none, or those that the new batches touch."""

    origin: Origin
    is_whole: bool
    batches: Sequence[NewBatch] = ()
    # Rows that were ingested in all, and what the job stored with its first table.
    rows: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows_new(self) -> int:
        """Number of rows in the new batches."""
        return sum(batch.rows for batch in self.batches)

    @property
    def is_unchanged(self) -> bool:
        """Whether the tables already include every batch."""
        return not self.is_whole and not self.batches


def plan_run(
    context: JobContext,
    source: str,
    tables: Sequence[str],
    parameters: Mapping[str, Any],
    *,
    is_joint: bool = False,
) -> Plan:
    """Compare the origins of a job's tables with the present journal table `source` and the parameters of this run.

    A run of a part of the data, by time or namespace, is always whole, and so is the run after it. With `is_joint`, the
    rows of one table decide what of another one is computed: after a kill between two tables, the run is whole, too.
    """
    lake = context.lake
    numbers = batch_numbers(lake, source)
    narrowed = [context.since_us, context.until_us, context.namespace]
    present: dict[str, Any] = {
        "release": __version__,
        "format": FORMAT,
        "source": source,
        "revision": revision_of(lake, source),
        "narrowed": narrowed,
        **parameters,
    }
    names = namespace_names(lake, context.spark)
    origin = Origin(present, max(numbers, default=-1), names)
    whole = Plan(origin, is_whole=True)
    before = [origin_of(lake, table) for table in tables]
    if any(given is not None for given in narrowed) or None in before:
        return whole
    known = [one for one in before if one is not None]
    if any(one.parameters != present or one.through > origin.through for one in known):
        return whole
    if is_joint and len({one.through for one in known}) > 1:
        return whole
    if any(not _has_right_names(lake, table, one.names, names) for table, one in zip(tables, known, strict=True)):
        return whole
    batches = new_batches(lake, source, through=min(one.through for one in known))
    if sum(batch.rows for batch in batches) > NEW_SHARE_MAX * sum(numbers.values()):
        return whole
    return Plan(origin, is_whole=False, batches=batches, rows=sum(numbers.values()), facts=known[0].facts)


def origin_of(lake: Lake, table: str) -> Origin | None:
    """Return the origin of a derived table; None if an older release wrote the table, or if it is missing."""
    if not lake.table(table).is_symlink():
        return None
    file: Path = lake.written(table) / ORIGIN_FILE
    try:
        plain = read_json(file)
        return Origin(plain["parameters"], int(plain["through"]), plain["names"], plain["facts"])
    except (FileNotFoundError, BrokenLake, KeyError, TypeError, ValueError):
        # Without an origin the table is computed anew.
        return None


def rows_of(lake: Lake, table: str) -> int:
    """Return the number of rows of a derived table."""
    return rows_in(lake.written(table))


def _has_right_names(lake: Lake, table: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether the names of namespaces in the rows of a table are still right."""
    if any(now.get(namespace_id) != name for namespace_id, name in before.items()):
        return False
    added = [namespace_id for namespace_id in now if namespace_id not in before]
    files = sorted(lake.written(table).glob("*.parquet")) if added else []
    if not files:
        return True
    # Rows of an older release's journal had no name until now.
    with duckdb.connect() as database:
        rows = database.read_parquet(literal_paths(files), hive_partitioning=False)
        if "namespace_id" not in rows.columns:
            return True
        rows.create_view("rows")
        query = "SELECT count(*) FROM rows WHERE split_part(namespace_id, $mark, 1) IN (SELECT unnest($added))"
        found = database.execute(query, {"mark": VERSION_MARK, "added": added}).fetchone()
    return found is not None and not found[0]
