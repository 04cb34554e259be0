"""`fairlead bench`: loads on a running server, and the scenarios of Cadence's matching simulation."""

from fairlead.cli.bench.command import bench

__all__ = ["bench"]
