"""Standalone activities: durable, with retries, timeouts and heartbeats, but without a workflow."""

from fairlead.history.entities.standalone_activities.handlers import OPERATIONS

__all__ = ["OPERATIONS"]
