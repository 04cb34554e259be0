"""Balancing: which partition of a task list a client sends a task or a poll to."""

from fairlead.core.balancing.balancer import (
    TASK_LISTS_MAX,
    InvalidBalancer,
    LoadBalancer,
    NotAPartition,
    Pick,
    Strategy,
)
from fairlead.core.balancing.weighted import (
    TASKS_MAX,
    InvalidReport,
    InvalidRules,
    WeightedRules,
    expected_tasks,
    probabilities,
)

__all__ = [
    "TASKS_MAX",
    "TASK_LISTS_MAX",
    "InvalidBalancer",
    "InvalidReport",
    "InvalidRules",
    "LoadBalancer",
    "NotAPartition",
    "Pick",
    "Strategy",
    "WeightedRules",
    "expected_tasks",
    "probabilities",
]
