"""Publishes the tables of a lake as Delta and Iceberg tables, locally or in an object store, without Spark."""

from fairlead.pipeline.publish.delta import DeltaPlace
from fairlead.pipeline.publish.files import CantPublish, NoLibrary, Published, files_of, publishing
from fairlead.pipeline.publish.iceberg import IcebergPlace

__all__ = ["CantPublish", "DeltaPlace", "IcebergPlace", "NoLibrary", "Published", "files_of", "publishing"]
