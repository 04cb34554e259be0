"""`fairlead bench`: loads a running server, or runs the scenarios of Cadence's matching simulation."""

from fairlead.cli.bench.command import bench

__all__ = ["bench"]
