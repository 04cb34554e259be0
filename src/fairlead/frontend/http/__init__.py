"""Temporal's HTTP API: JSON requests that run through the same handlers as gRPC calls."""

from fairlead.frontend.http.api import HttpApi

__all__ = ["HttpApi"]
