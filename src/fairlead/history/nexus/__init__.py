"""Nexus: operations that a workflow has carried out by the workers of an endpoint, and what they answer."""
