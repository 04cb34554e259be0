"""Fairness lanes of a task queue: each key with its weight, its fair share and the share that it got."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.queues import find_queue, running_of, trusted_client
from fairlead.console.view import View
from fairlead.console.views.task_queue import DESCRIBE_S_MAX, QueueParameters
from fairlead.core.fairness.verdicts import KeyFlow, judge
from fairlead.matching.messages import KeyInfo

# Keys that each partition reports, and lanes of the page.
KEYS_MAX: Final = 1_000
LANES_MAX: Final = 200


class Lane(Struct, frozen=True, kw_only=True):
    """A fairness key. `due_share` and `got_share` are shares of all dispatches since the partitions were loaded."""

    key: str
    weight: float
    waiting: int
    dispatched: int
    due_share: float
    got_share: float
    is_starved: bool
    is_flood: bool
    # Running activities; only known with a limit on them.
    running: int | None = None


class Fairness(Struct, frozen=True, kw_only=True):
    """The lanes of a task queue, those with the most waiting tasks first."""

    lanes: list[Lane]
    keys: int
    waiting: int
    dispatched: int
    key_rate_per_s: float | None
    key_running_max: int | None
    floods: list[str]
    starved: list[str]
    # Partitions that did not answer.
    missing: list[int]


async def load(context: Context, asked: QueueParameters) -> Fairness:
    """Read the lanes over all partitions."""
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    described = await trusted_client(context).describe(queue, keys_max=KEYS_MAX, timeout_s=DESCRIBE_S_MAX)
    if described.config is None:
        raise described.missing[0]
    flows = flows_of([info for one in described.partitions.values() for info in one.keys])
    running = await running_of(context, queue)
    lanes = lanes_of(flows, {} if running is None else running.running)
    rule = described.partitions[0].rules.key_rate
    return Fairness(
        lanes=lanes[:LANES_MAX],
        keys=len(lanes),
        waiting=sum(lane.waiting for lane in lanes),
        dispatched=sum(lane.dispatched for lane in lanes),
        key_rate_per_s=None if rule is None else rule.rate_per_s,
        key_running_max=None if running is None else running.key_max or None,
        floods=[lane.key for lane in lanes if lane.is_flood],
        starved=[lane.key for lane in lanes if lane.is_starved],
        missing=sorted(described.missing),
    )


def flows_of(infos: list[KeyInfo]) -> dict[str, KeyFlow]:
    """Sum the figures of each key over the partitions; the weight is that of the partition with the most tasks."""
    flows: dict[str, KeyFlow] = {}
    for info in sorted(infos, key=lambda info: (info.tasks_waiting, info.tasks_dispatched)):
        known = flows.get(info.fairness_key, KeyFlow(1.0, 0, 0, 0))
        waiting = known.backlog_before + info.tasks_waiting
        dispatched = known.dispatched + info.tasks_dispatched
        flows[info.fairness_key] = KeyFlow(info.weight, waiting, waiting + dispatched, dispatched)
    return flows


def lanes_of(flows: dict[str, KeyFlow], running: Mapping[str, int]) -> list[Lane]:
    """Judge the keys by the rule of the pipeline's job `fairness`."""
    verdicts = judge(flows)
    total = sum(flow.dispatched for flow in flows.values()) or 1
    lanes = [
        Lane(
            key=key,
            weight=flow.weight,
            waiting=flow.backlog_before,
            dispatched=flow.dispatched,
            due_share=verdicts[key].due / total,
            got_share=flow.dispatched / total,
            is_starved=verdicts[key].is_starved,
            is_flood=verdicts[key].is_flood,
            running=running.get(key),
        )
        for key, flow in flows.items()
        if key in verdicts
    ]
    return sorted(lanes, key=lambda lane: (-lane.waiting, -lane.dispatched, lane.key))


VIEW: Final = View(
    path="fairness",
    title="Fairness",
    parameters=QueueParameters,
    load=load,
    template="fairness.html",
)
