"""The dictionary of the lake: every table and column with its meaning, written once.

docs/tables.md, the metadata of the Parquet files and `fairlead lake tables` come from it.
"""

from fairlead.pipeline.dictionary import backtest, histories, journal, reconcile, traffic
from fairlead.pipeline.dictionary.entry import Column, Table, documented

TABLES = {table.name: table for module in (journal, traffic, backtest, reconcile, histories) for table in module.TABLES}

__all__ = ["TABLES", "Column", "Table", "documented"]
