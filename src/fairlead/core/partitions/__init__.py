"""Partitions of a task list: their names, their tree, their configuration and when one may be taken away."""
