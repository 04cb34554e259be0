"""`fairlead simulate`: runs each part of the core on a synthetic workload and shows what it does."""

# Each module adds its own command to the group.
from fairlead.cli.simulate import fairness
from fairlead.cli.simulate.command import simulate

__all__ = ["fairness", "simulate"]
