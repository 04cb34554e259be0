"""Nexus operations: requests of workflows to the workers of an endpoint, and their results."""
