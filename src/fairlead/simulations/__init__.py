"""`fairlead simulate`: runs each part of the core on a synthetic workload and shows its decisions."""

# Each module adds its own command to the group.
from fairlead.simulations import balancing, fairness, replication, routing, scale, scaling
from fairlead.simulations.command import simulate

__all__ = ["balancing", "fairness", "replication", "routing", "scale", "scaling", "simulate"]
