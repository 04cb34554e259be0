"""Erases a workflow id or a namespace from a lake, its journal and its published tables, without Spark."""

from fairlead.pipeline.erasure.journal import ErasedSegments, erase_from_journal
from fairlead.pipeline.erasure.lake import ErasedTable, NotErased, check_erased, erase_from_lake, update_manifests
from fairlead.pipeline.erasure.published import erase_from_delta, erase_from_iceberg
from fairlead.pipeline.erasure.target import Target

__all__ = [
    "ErasedSegments",
    "ErasedTable",
    "NotErased",
    "Target",
    "check_erased",
    "erase_from_delta",
    "erase_from_iceberg",
    "erase_from_journal",
    "erase_from_lake",
    "update_manifests",
]
