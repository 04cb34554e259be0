"""`fairlead demo`: a demonstration of Fairlead on one machine, in two minutes."""

from fairlead.cli.demo.command import demo

__all__ = ["demo"]
