"""`fairlead pipeline`: runs the jobs of the data pipeline."""

from fairlead.cli.pipeline.command import pipeline

__all__ = ["pipeline"]
