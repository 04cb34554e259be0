"""Nexus operations: requests of workflows to the handlers of an endpoint, and their results."""
