"""`fairlead simulate`: runs each part of the core on a synthetic workload and shows what it does."""

from fairlead.cli.simulate.command import simulate

__all__ = ["simulate"]
