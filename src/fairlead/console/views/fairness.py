"""Fairness lanes of a task queue: each key with its weight, its fair share and the share that it got."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import starmap
from typing import Final, NamedTuple

from msgspec import Struct

from fairlead.console.context import Context
from fairlead.console.limits import key_limit
from fairlead.console.queues import find_queue, running_of, trusted_client
from fairlead.console.view import View
from fairlead.console.views.task_queue import DESCRIBE_S_MAX, QueueParameters
from fairlead.core.fairness.verdicts import KeyFlow, judge
from fairlead.history.messages.slots import RunningResponse
from fairlead.matching.messages import KeyInfo

# Keys that each partition reports, and lanes of the page.
KEYS_MAX: Final = 1_000
LANES_MAX: Final = 200


class Limited(StrEnum):
    """The limit of a key that holds its tasks back now."""

    NOT = ""
    RATE = "rate"
    RUNNING = "running"


class Lane(Struct, frozen=True, kw_only=True):
    """A fairness key. `due_share` and `got_share` are shares of the dispatches that `Fairness.window_s` describes."""

    key: str
    weight: float
    waiting: int
    # Tasks since the partitions were loaded, and lately.
    dispatched: int
    lately: int
    due_share: float
    got_share: float
    is_starved: bool
    is_flood: bool
    limited: Limited = Limited.NOT
    # Running activities; only known with a limit on them.
    running: int | None = None


class Fairness(Struct, frozen=True, kw_only=True):
    """The lanes of a task queue, those with the most waiting tasks first.

    `window_s` is the number of seconds for which dispatches count; 0: since the partitions were loaded.
    """

    lanes: list[Lane]
    # Number of keys; only a lower bound if some partitions have more keys than they list.
    keys: int
    are_keys_cut: bool
    # Keys that each partition lists.
    listed_max: int
    waiting: int
    dispatched: int
    window_s: float
    key_rate_per_s: float | None
    key_rate_source: str
    key_running_max: int | None
    floods: list[str]
    starved: list[str]
    # Partitions that did not answer.
    missing: list[int]


class Flow(NamedTuple):
    """The figures of a key over all partitions; `judged` is what counts for its share."""

    judged: KeyFlow
    dispatched: int
    lately: int
    is_held: bool


async def load(context: Context, asked: QueueParameters) -> Fairness:
    """Read the lanes over all partitions."""
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    described = await trusted_client(context).describe(queue, keys_max=KEYS_MAX, timeout_s=DESCRIBE_S_MAX)
    if described.config is None:
        raise described.missing[0]
    answers = described.partitions.values()
    # A partition of an older release does not count the last minutes.
    window_s = min(one.keys_window_s for one in answers)
    flows = flows_of([info for one in answers for info in one.keys], is_lately=window_s > 0)
    of_key = key_limit(context.backend.settings, queue, described.partitions[0])
    running = await running_of(context, queue)
    lanes = lanes_of(flows, running)
    listed, known = len(lanes), max(one.keys_total for one in answers)
    return Fairness(
        lanes=lanes[:LANES_MAX],
        keys=max(listed, known),
        are_keys_cut=any(one.keys_total > len(one.keys) for one in answers),
        listed_max=KEYS_MAX,
        waiting=sum(lane.waiting for lane in lanes),
        dispatched=sum(flow.judged.dispatched for flow in flows.values()),
        window_s=window_s,
        key_rate_per_s=of_key.rate_per_s,
        key_rate_source=of_key.source,
        key_running_max=None if running is None else running.key_max or None,
        floods=[lane.key for lane in lanes if lane.is_flood],
        starved=[lane.key for lane in lanes if lane.is_starved],
        missing=sorted(described.missing),
    )


def flows_of(infos: list[KeyInfo], *, is_lately: bool) -> dict[str, Flow]:
    """Sum the figures of each key over the partitions; the weight is that of the partition with the most tasks.

    With `is_lately`, only the dispatches of the last minutes count for the shares.
    """
    flows: dict[str, Flow] = {}
    nothing = Flow(KeyFlow(1.0, 0, 0, 0), 0, 0, is_held=False)
    for info in sorted(infos, key=lambda info: (info.tasks_waiting, info.tasks_dispatched)):
        known = flows.get(info.fairness_key, nothing)
        waiting = known.judged.backlog_before + info.tasks_waiting
        counted = known.judged.dispatched + (info.dispatched_lately if is_lately else info.tasks_dispatched)
        flows[info.fairness_key] = Flow(
            KeyFlow(info.weight, waiting, waiting + counted, counted),
            known.dispatched + info.tasks_dispatched,
            known.lately + info.dispatched_lately,
            known.is_held or info.is_held,
        )
    return flows


def lanes_of(flows: Mapping[str, Flow], running: RunningResponse | None) -> list[Lane]:
    """Judge the keys by the rule of the pipeline's job `fairness`."""
    verdicts = judge({key: flow.judged for key, flow in flows.items()})
    total = sum(flow.judged.dispatched for flow in flows.values()) or 1

    def lane(key: str, flow: Flow) -> Lane:
        verdict = verdicts.get(key)
        return Lane(
            key=key,
            weight=flow.judged.weight,
            waiting=flow.judged.backlog_before,
            dispatched=flow.dispatched,
            lately=flow.lately,
            due_share=0.0 if verdict is None else verdict.due / total,
            got_share=flow.judged.dispatched / total,
            is_starved=verdict is not None and verdict.is_starved,
            is_flood=verdict is not None and verdict.is_flood,
            limited=_limited(key, flow, running),
            running=None if running is None else running.running.get(key),
        )

    return sorted(starmap(lane, flows.items()), key=lambda lane: (-lane.waiting, -lane.dispatched, lane.key))


def _limited(key: str, flow: Flow, running: RunningResponse | None) -> Limited:
    if running is not None and running.key_max and running.running.get(key, 0) >= running.key_max:
        return Limited.RUNNING if flow.judged.backlog_before else Limited.NOT
    return Limited.RATE if flow.is_held else Limited.NOT


VIEW: Final = View(
    path="fairness",
    title="Fairness",
    parameters=QueueParameters,
    load=load,
    template="fairness.html",
)
