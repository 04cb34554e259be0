"""Standalone Nexus operations: clients call them without a workflow."""

from fairlead.history.entities.standalone_nexus.handlers import OPERATIONS

__all__ = ["OPERATIONS"]
