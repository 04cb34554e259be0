"""Pairs tasks with polls: partition by partition, in the order of priority and fair level, within rate limits."""
