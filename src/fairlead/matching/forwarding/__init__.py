"""Forwarding between the partitions of a task queue: tasks and polls up to the parent, polls down from the root."""
