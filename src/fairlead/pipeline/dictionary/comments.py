"""Writes the dictionary into the metadata of a table's columns, where catalogs and Spark show it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.dictionary import TABLES, documented


def described(table: str, frame: DataFrame) -> DataFrame:
    """Return the rows with the meaning of each column of the dictionary as the column's comment."""
    if table not in TABLES:
        return frame
    columns = [F.col(f"`{name}`") for name in frame.columns]
    meanings = documented(TABLES[table])
    for position, name in enumerate(frame.columns):
        if name in meanings:
            unit = f" ({meanings[name].unit})" if meanings[name].unit else ""
            columns[position] = columns[position].alias(name, metadata={"comment": meanings[name].meaning + unit})
    return frame.select(*columns)
