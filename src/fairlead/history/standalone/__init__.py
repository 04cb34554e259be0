"""Activities that stand alone: a durable task queue with retries, timeouts and heartbeats, without a workflow."""

from fairlead.history.standalone.operations import OPERATIONS

__all__ = ["OPERATIONS"]
