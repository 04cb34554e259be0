"""Writes the dictionary into the metadata of a table's columns, where catalogs and Spark show it."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from fairlead.pipeline.dictionary import TABLES, documented


def described(table: str, frame: DataFrame) -> DataFrame:
    """Return the rows with the meaning of each column of the dictionary as the column's comment."""
    comments = comments_of(table)
    return frame.select(
        *(
            F.col(f"`{name}`").alias(name, metadata={"comment": comments[name]})
            if name in comments
            else F.col(f"`{name}`")
            for name in frame.columns
        )
    )


def comments_of(table: str) -> dict[str, str]:
    """Return the meaning and the unit of each column of the table; empty for a table without a dictionary entry."""
    if table not in TABLES:
        return {}
    return {
        name: column.meaning + (f" ({column.unit})" if column.unit else "")
        for name, column in documented(TABLES[table]).items()
    }
