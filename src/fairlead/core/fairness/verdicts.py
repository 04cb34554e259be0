"""Judges the dispatches of a window: the due of each key, starved keys, and floods.

The pipeline applies the same rule to recorded windows (`pipeline.stages.fairness`), with the bounds of this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

# A key is starved if it had a backlog through a whole window and got less than this share of its due, which was at
# least one task.
STARVED_BELOW = 0.1
# A key is a flood if it made at least FLOOD_WORK_FROM of the demand, and if its dispatches above its due are at least
# FLOOD_FROM of the dispatches that starved keys missed, both by more than chance. If all keys burst at once, no key is
# a flood.
FLOOD_WORK_FROM = 1 / 3
FLOOD_FROM = 0.5
# Standard deviations by which a small count of tasks may be off by chance.
CHANCE = 3.0
# Relative tolerance at bounds: two equal floods are exactly at one half, and sums have rounding errors.
NOISE = 1e-9


@dataclass(frozen=True, slots=True)
class KeyFlow:
    """Tasks of a fairness key in a window.

    `demand` is the number of tasks that waited at its start or were added in it.
    """

    weight: float
    backlog_before: int
    demand: int
    dispatched: int


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """`due` is the max-min fair share of the dispatches, in tasks."""

    due: float
    is_starved: bool
    is_flood: bool


def judge(flows: Mapping[str, KeyFlow]) -> dict[str, KeyVerdict]:
    """Return the verdict on each key with demand."""
    dues = _dues({key: flow for key, flow in flows.items() if flow.demand > 0})
    starved = {key for key, due in dues.items() if _is_starved(flows[key], due)}
    missed = sum(dues[key] - flows[key].dispatched for key in starved)
    work = sum(flows[key].demand for key in dues)
    work_from = FLOOD_WORK_FROM * work + CHANCE * sqrt(FLOOD_WORK_FROM * (1 - FLOOD_WORK_FROM) * work)
    beyond_from = max(FLOOD_FROM * missed, CHANCE * sqrt(missed)) * (1 - NOISE)
    return {
        key: KeyVerdict(
            due,
            is_starved=key in starved,
            is_flood=missed > 0 and flows[key].demand >= work_from and flows[key].dispatched - due >= beyond_from,
        )
        for key, due in dues.items()
    }


def _is_starved(flow: KeyFlow, due: float) -> bool:
    is_due_a_task = due >= 1 - NOISE
    return flow.backlog_before > 0 and is_due_a_task and flow.dispatched < STARVED_BELOW * due * (1 - NOISE)


def _dues(flows: Mapping[str, KeyFlow]) -> dict[str, float]:
    """Divide the dispatches by weight among the keys; no key is due more than its demand."""
    left = float(sum(flow.dispatched for flow in flows.values()))
    weights = sum(flow.weight for flow in flows.values())
    dues: dict[str, float] = {}
    for key, flow in sorted(flows.items(), key=lambda item: (item[1].demand / item[1].weight, item[0])):
        due = min(float(flow.demand), left * flow.weight / weights) if weights > 0 else 0.0
        dues[key] = due
        left -= due
        weights -= flow.weight
    return dues
