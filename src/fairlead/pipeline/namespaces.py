"""The names of the namespaces in a lake, for tables and pages that people read.

Records carry the id and, unless an older release wrote them, the name. `_namespaces.json` in the lake's folder holds
the last name of each id, and the last batch of each table that was read for it: only newer batches are read again.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from fairlead.core.namespaces import VERSION_MARK, shown_namespace, split_version
from fairlead.pipeline.paths import to_read
from fairlead.pipeline.schemas import BRONZE

if TYPE_CHECKING:
    from fairlead.pipeline.lake import Lake

FILE = "_namespaces.json"
# Maximum number of names kept for one lake; a cluster has 10,000 namespaces at most.
NAMES_MAX = 100_000
# Maximum number of names that are written into a query; more are joined.
NAMES_IN_PLAN_MAX = 20


def namespace_names(lake: "Lake", spark: SparkSession) -> dict[str, str]:
    """Return the latest name of each namespace id in the lake; ids without a name in any record are left out."""
    through, names = _load(lake.root / FILE)
    is_changed = False
    for table in BRONZE:
        batches = {int(path.name.removeprefix("batch=")): path for path in lake.table(table).resolve().glob("batch=*")}
        newer = [path for number, path in batches.items() if number > through.get(table, -1)]
        if newer:
            names |= _read(spark, table, newer)
            through[table] = max(batches)
            is_changed = True
    if is_changed:
        names = dict(list(names.items())[-NAMES_MAX:])
        _save(lake.root / FILE, through, names)
    return names


def known_names(lake: "Lake") -> dict[str, str]:
    """Return the names that the last call of `namespace_names` found; reads no table."""
    return _load(lake.root / FILE)[1]


def ids_of(given: str, names: Mapping[str, str]) -> list[str]:
    """Return the namespace ids with this name, and `given` itself in case it is an id."""
    return [given, *(namespace_id for namespace_id, name in names.items() if name == given and namespace_id != given)]


def with_names(frame: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Add the column `namespace` after `namespace_id`: the name, or the id if the name is unknown."""
    if "namespace_id" not in frame.columns or "namespace" in frame.columns:
        return frame
    columns = [
        column for name in frame.columns for column in ([name, "namespace"] if name == "namespace_id" else [name])
    ]
    if not names:
        return frame.withColumn("namespace", _shown(base_of("namespace_id"))).select(*columns)
    if len(names) <= NAMES_IN_PLAN_MAX:
        # A join would start a job of its own for each table.
        pairs = F.create_map(*(F.lit(text) for pair in names.items() for text in pair))
        name = F.coalesce(F.try_element_at(pairs, base_of("namespace_id")), base_of("namespace_id"))
        return frame.withColumn("namespace", _shown(name)).select(*columns)
    known = frame.sparkSession.createDataFrame(list(names.items()), "_named_id string, _name string")
    named = frame.join(F.broadcast(known), base_of("namespace_id") == F.col("_named_id"), "left")
    return named.withColumn("namespace", _shown(F.coalesce("_name", base_of("namespace_id")))).select(*columns)


def name_findings(found: Any, names: Mapping[str, str]) -> Any:
    """Return the findings of a job with `namespace` beside each `namespace_id`."""
    if isinstance(found, list):
        return [name_findings(each, names) for each in found]
    if not isinstance(found, dict):
        return found
    named: dict[str, Any] = {}
    for key, value in found.items():
        if key == "namespace_id" and isinstance(value, str):
            named["namespace"] = shown(value, names)
        named[key] = name_findings(value, names)
    return named


def shown(namespace_id: str, names: Mapping[str, str]) -> str:
    """Return the display name of a namespace id."""
    base, version = split_version(namespace_id)
    return shown_namespace(names.get(base, base), version)


def base_of(column: str) -> Column:
    """Return the namespace's own id: task queues of a worker version have the id `<id>#<version>`."""
    return F.substring_index(column, VERSION_MARK, 1)


def _shown(name: Column) -> Column:
    """Like `shown_namespace`, but the version stays percent-encoded: decoding in Spark can fail."""
    version = F.substring_index("namespace_id", VERSION_MARK, -1)
    is_versioned = F.contains(F.col("namespace_id"), F.lit(VERSION_MARK))
    return F.when(is_versioned, F.concat(name, F.lit(" (version "), version, F.lit(")"))).otherwise(name)


def _read(spark: SparkSession, table: str, batches: list[Path]) -> dict[str, str]:
    # Without `basePath`, Spark rejects several batches: it takes each folder for a separate table.
    reader = spark.read.schema(BRONZE[table]).option("basePath", str(batches[0].parent))
    rows = reader.parquet(*(to_read(batch) for batch in batches))
    latest = (
        rows.where(F.col("namespace").isNotNull())
        .groupBy(base_of("namespace_id").alias("id"))
        .agg(F.max_by("namespace", "time_us").alias("name"), F.max("time_us").alias("time_us"))
    )
    return {row["id"]: row["name"] for row in latest.orderBy("time_us").limit(NAMES_MAX).collect()}


def _load(file: Path) -> tuple[dict[str, int], dict[str, str]]:
    try:
        plain = json.loads(file.read_bytes())
        return dict(plain["through"]), dict(plain["names"])
    except (OSError, ValueError, TypeError, KeyError):
        # The file is a cache: a missing or damaged file is written again.
        return {}, {}


def _save(file: Path, through: Mapping[str, int], names: Mapping[str, str]) -> None:
    draft = file.with_name(f".{file.name}.{os.urandom(4).hex()}")
    try:
        draft.write_text(json.dumps({"through": through, "names": names}))
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
