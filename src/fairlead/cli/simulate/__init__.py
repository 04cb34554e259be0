"""`fairlead simulate`: runs each part of the core on a synthetic workload and shows what it does."""

# Each module adds its own command to the group.
from fairlead.cli.simulate import balancing, fairness, replication, routing, scaling
from fairlead.cli.simulate.command import simulate

__all__ = ["balancing", "fairness", "replication", "routing", "scaling", "simulate"]
