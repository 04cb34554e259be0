"""The export of a namespace of any Temporal server to a journal, by the public API only; needs no Spark."""

from fairlead.pipeline.public_export.export import ExportedRuns, NothingToExport, export_namespace
from fairlead.pipeline.public_export.source import CannotRead, ReadAgain, SourceRefuses, SourceServer

__all__ = [
    "CannotRead",
    "ExportedRuns",
    "NothingToExport",
    "ReadAgain",
    "SourceRefuses",
    "SourceServer",
    "export_namespace",
]
