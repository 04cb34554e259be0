"""Standalone activities: a durable task queue with retries, timeouts and heartbeats, without workflows."""

from fairlead.history.entities.standalone_activities.handlers import OPERATIONS

__all__ = ["OPERATIONS"]
