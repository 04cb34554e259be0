"""Handlers of Temporal's methods, one module for each topic."""
