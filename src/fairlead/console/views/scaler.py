"""The adaptive scaler of a task queue: load against both thresholds over hours, and each decision with its reason."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import Struct

from fairlead.console import lake, sampler, text
from fairlead.console.context import Context
from fairlead.console.problems import Problem, problem_of
from fairlead.console.queues import find_queue, trusted_client
from fairlead.console.series import Point
from fairlead.console.view import View
from fairlead.console.views.task_queue import DESCRIBE_S_MAX, QueueParameters
from fairlead.core.errors import FairleadError
from fairlead.core.scaling import ScalerSettings, ScalerState
from fairlead.core.scaling.forecast import forecast
from fairlead.matching.client_configs import new_scope
from fairlead.matching.messages import DecisionInfo, ExplainResponse
from fairlead.settings import Setting, as_text, scaler_settings
from fairlead.settings.dynamic.matching import (
    ADAPTIVE_SCALER_UPDATE_INTERVAL,
    ENABLE_ADAPTIVE_SCALER,
    PARTITION_DOWNSCALE_FACTOR,
    PARTITION_DOWNSCALE_SUSTAINED_DURATION,
    PARTITION_UPSCALE_RPS,
    PARTITION_UPSCALE_SUSTAINED_DURATION,
)
from fairlead.settings.dynamic.rules import RuleSet

# Seconds of the curves: the coarse part of the time series.
SPAN_S: Final = 12 * 3_600.0
# Settings of the scaler, in the order of the table.
SETTINGS: Final[tuple[Setting[Any], ...]] = (
    ENABLE_ADAPTIVE_SCALER,
    PARTITION_UPSCALE_RPS,
    PARTITION_UPSCALE_SUSTAINED_DURATION,
    PARTITION_DOWNSCALE_FACTOR,
    PARTITION_DOWNSCALE_SUSTAINED_DURATION,
    ADAPTIVE_SCALER_UPDATE_INTERVAL,
)


class Decision(Struct, frozen=True, kw_only=True):
    """A decision of the scaler, or a change by hand."""

    at_s: float
    action: str
    load: float
    before: str
    after: str
    reason: str


class SettingRow(Struct, frozen=True):
    """A setting of the scaler with the value in force.

    `recommended` is the value of the last backtest; empty without one.
    """

    key: str
    value: str
    about: str
    recommended: str = ""


class Recommendation(Struct, frozen=True):
    """When the last backtest recommended settings; or why its recommendation can't be shown."""

    at_s: float
    problem: Problem | None = None


class Next(Struct, frozen=True, kw_only=True):
    """The scaler's next change if the load stays; `at_s` is None if there is none."""

    sentence: str
    load: float
    at_s: float | None = None
    write: int | None = None


class Scaler(Struct, frozen=True, kw_only=True):
    """The data of the view."""

    is_enabled: bool
    waits_for: str
    read: int
    write: int
    version: int
    latest: Decision | None
    next: Next
    # When the root began to record changes; 0 if it is not known.
    changes_since_s: float
    raises_above: float | None
    lowers_below: float | None
    changes: list[Decision]
    behind: list[int]
    settings: list[SettingRow]
    recommendation: Recommendation | None
    load_points: list[Point]
    up_points: list[Point]
    down_points: list[Point]
    write_points: list[Point]


async def load(context: Context, asked: QueueParameters) -> Scaler:
    """Read the scaler of a task queue."""
    queue = await find_queue(context, asked.namespace, asked.name, asked.type, asked.version)
    client = trusted_client(context)
    found = await client.explain(queue)
    described = await client.describe(queue, timeout_s=DESCRIBE_S_MAX)
    scope = new_scope(queue)
    series = ("scaler", queue.namespace_id, queue.name, queue.type.name.lower())
    version = found.config.version
    up_points = context.points((*series, sampler.UPPER), span_s=SPAN_S)
    recommendation, rules = await asyncio.to_thread(_recommended, context)
    return Scaler(
        is_enabled=found.enabled,
        waits_for=found.waits_for,
        read=found.config.read,
        write=found.config.write,
        version=version,
        latest=None if found.latest is None else _decision(found.latest),
        next=next_step(
            context.now_s,
            found,
            {number: one.scaler_adds_per_s for number, one in described.partitions.items()},
            scaler_settings(context.backend.settings, scope),
        ),
        changes_since_s=found.changes_since_s,
        raises_above=None if found.latest is None else found.latest.upscale_threshold_qps,
        lowers_below=None if found.latest is None else found.latest.downscale_threshold_qps,
        changes=[_decision(change) for change in reversed(found.changes)],
        behind=[number for number in range(1, found.config.read) if found.acknowledged.get(number, -1) < version],
        settings=[
            SettingRow(
                one.key,
                as_text(one.kind.plain(context.backend.settings.get(one, scope))),
                one.about,
                "" if rules is None else as_text(one.kind.plain(rules.value(one, scope, asked.namespace))),
            )
            for one in SETTINGS
        ],
        recommendation=recommendation,
        # No series begins with zeros: without one, the load was zero whenever the threshold was recorded.
        load_points=context.points((*series, sampler.LOAD), span_s=SPAN_S)
        or [Point(point.at_s, None if point.value is None else 0.0) for point in up_points],
        up_points=up_points,
        down_points=context.points((*series, sampler.LOWER), span_s=SPAN_S),
        write_points=context.points((*series, sampler.WRITE), span_s=SPAN_S),
    )


def next_step(now_s: float, found: ExplainResponse, rates: Mapping[int, float], settings: ScalerSettings) -> Next:
    """The scaler's next change under the load of these partitions."""
    read = {number: rate for number, rate in rates.items() if number < found.config.read}
    load = sum(read.values())
    if found.waits_for:
        return Next(sentence="Nothing until the scaler no longer waits.", load=load)
    clocks = found.clocks if found.enabled else None
    state = ScalerState() if clocks is None else ScalerState(*msgspec.structs.astuple(clocks))
    expected = forecast(now_s, state, found.config, read, replace(settings, enabled=True))
    before = found.config.write
    begins = "If the load stays, it" if found.enabled else "If it were on and the load stayed, it would"
    if expected.change is None:
        changes = "changes" if found.enabled else "change"
        return Next(sentence=f"{begins} {changes} nothing: write stays at {before}.", load=load)
    write = expected.change.after.write
    verb = ("raise" if write > before else "lower") + ("s" if found.enabled else "")
    in_s = max(0.0, expected.at_s - now_s)
    when = f"in {text.duration(math.ceil(in_s))}" if in_s else "at once"
    sentence = f"{begins} {verb} the write partitions from {before} to {write} {when}."
    return Next(sentence=sentence, load=load, at_s=expected.at_s, write=write)


def _recommended(context: Context) -> tuple[Recommendation | None, RuleSet | None]:
    """The recommendation for this cluster in the server's lake."""
    config = context.backend.config
    if config.ui is None or config.ui.lake is None:
        return None, None
    try:
        found = lake.recommended(config.ui.lake, config.cluster_name)
    except FairleadError as failure:
        return Recommendation(0.0, problem_of(failure)), None
    return (None, None) if found is None else (Recommendation(found[1]), found[0])


def _decision(info: DecisionInfo) -> Decision:
    return Decision(
        at_s=info.at_s,
        action=info.action,
        load=info.qps,
        before=f"{info.before.read} / {info.before.write}",
        after=f"{info.after.read} / {info.after.write}",
        reason=info.reason,
    )


VIEW: Final = View(path="scaler", title="Scaler", parameters=QueueParameters, load=load, template="scaler.html")
