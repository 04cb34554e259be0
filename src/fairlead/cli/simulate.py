"""`fairlead simulate`: its commands are in `fairlead.simulations`."""

from fairlead.simulations import simulate

__all__ = ["simulate"]
