"""Standalone Nexus operations: called by clients, without a workflow, and kept until they have ended."""

from fairlead.history.entities.standalone_nexus.handlers import OPERATIONS

__all__ = ["OPERATIONS"]
