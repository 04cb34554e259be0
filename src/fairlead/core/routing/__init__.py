"""Routing: finds the owner of a partition, and changes ownership gradually."""

from fairlead.core.routing.gradual import GradualChange, InvalidChange
from fairlead.core.routing.keys import (
    BATCH_SIZE_MAX,
    InvalidBatchSize,
    SpreadKey,
    basic_key,
    check_batch_size,
    spread_key,
)
from fairlead.core.routing.ring import POINTS_PER_HOST, RING_POINTS_MAX, HashRing, InvalidRing, NoHosts
from fairlead.core.routing.router import Router

__all__ = [
    "BATCH_SIZE_MAX",
    "POINTS_PER_HOST",
    "RING_POINTS_MAX",
    "GradualChange",
    "HashRing",
    "InvalidBatchSize",
    "InvalidChange",
    "InvalidRing",
    "NoHosts",
    "Router",
    "SpreadKey",
    "basic_key",
    "check_batch_size",
    "spread_key",
]
