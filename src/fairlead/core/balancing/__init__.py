"""Balancing: chooses the partition of a task queue for a task or a poll."""

from fairlead.core.balancing.balancer import (
    TASK_QUEUES_MAX,
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
    "TASK_QUEUES_MAX",
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
