"""Fairlead leads many tasks fairly to the workers that run them."""

__version__ = "0.1.0"
