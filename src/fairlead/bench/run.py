"""Runs a load or a scenario: connects to a cluster or starts one, and runs the generator."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from rich.console import Console

from fairlead.bench.cluster import StoreKind, own_cluster
from fairlead.bench.generator import LoadGenerator
from fairlead.bench.link import Link, connect
from fairlead.bench.plan import LoadPlan
from fairlead.bench.progress import with_progress
from fairlead.bench.result import BenchResult
from fairlead.bench.scenario_summary import summarise_scenario
from fairlead.bench.scenarios import Scenario
from fairlead.bench.stop import Stop
from fairlead.bench.summary import summarise
from fairlead.bench.tally import Tally
from fairlead.core.partitions import Partition, TaskQueueId
from fairlead.report import Cell
from fairlead.settings import DynamicSettings, Plain


@dataclass(frozen=True, slots=True)
class Target:
    """The task queue and cluster of a load, and the console for its progress."""

    task_queue: TaskQueueId
    # None: start a cluster for the load, with this kind of store.
    address: str | None = None
    store: StoreKind = StoreKind.SQLITE
    # Dynamic settings by key, which override all others.
    overrides: Mapping[str, Plain] = field(default_factory=dict)
    drain_timeout_s: float | None = None
    seed: int = 1
    console: Console = field(default_factory=lambda: Console(stderr=True))


async def run_load(plan: LoadPlan, target: Target, address: str, stop: Stop) -> BenchResult:
    """Run a load on the server at `address`."""
    async with connect(address, DynamicSettings(overrides=target.overrides)) as link:
        tally = await _generate("bench matching", plan, {}, link, target, stop=stop)
        return summarise(tally, plan, link.counts, _described(plan, target) | {"address": address})


async def run_scenario(scenario: Scenario, target: Target, stop: Stop) -> BenchResult:
    """Run a scenario on its own cluster or, if the target has an address, on the server there."""
    plan = scenario.load
    if target.drain_timeout_s is not None:
        plan = replace(plan, drain_timeout_s=target.drain_timeout_s)
    parameters = _of_scenario(scenario)
    if target.address is not None:
        async with connect(target.address, DynamicSettings(overrides=target.overrides)) as link:
            tally = await _generate(scenario.name, plan, scenario.backlog, link, target, stop=stop)
            return summarise_scenario(scenario, tally, link.counts, None, parameters | {"address": target.address})
    settings = DynamicSettings(overrides=scenario.settings() | dict(target.overrides))
    async with own_cluster(scenario, settings, target.store) as cluster:
        tally = await _generate(scenario.name, plan, scenario.backlog, cluster.link, target, stop=stop)
        server = cluster.counts(target.task_queue)
        return summarise_scenario(
            scenario, tally, cluster.link.counts, server, parameters | {"store": target.store.value}
        )


async def _generate(
    subject: str, plan: LoadPlan, backlog: Mapping[int, int], link: Link, target: Target, *, stop: Stop
) -> Tally:
    generator = LoadGenerator(
        link.clients,
        plan,
        task_queue=target.task_queue,
        # Two runs on one task queue must never mistake each other's tasks for their own, even with the same seed.
        run_id=secrets.randbits(64),
        random=Random(target.seed).random,  # noqa: S311 - must be repeatable, not secret
        clock=time.perf_counter,
    )
    tasks = None if plan.tasks is None else plan.tasks + sum(backlog.values())

    tally = generator.tally

    async def run() -> None:
        if backlog:
            await link.load_root(target.task_queue)
        for number, count in backlog.items():
            await generator.preload(count, partial(link.add_to, Partition(target.task_queue, number)))
        await generator.run()
        if tally.outstanding:
            partitions = max((seen.config.read for seen in tally.configs), default=1)
            await generator.sweep(
                [partial(link.poll_at, Partition(target.task_queue, number)) for number in range(partitions)]
            )

    running = stop.bounds(run())
    tally.is_interrupted = not await with_progress(running, tally, subject=subject, tasks=tasks, console=target.console)
    return tally


def _described(plan: LoadPlan, target: Target) -> dict[str, Cell]:
    loop: dict[str, Cell] = (
        {"rate_per_s": plan.phases[0].rate_per_s, "producers": plan.producers}
        if plan.is_open_loop
        else {"in_flight": plan.producers}
    )
    return loop | {
        "tasks": plan.tasks,
        "duration_s": plan.duration_s,
        "pollers": plan.pollers,
        "work_ms": plan.work_s * 1000,
        "payload_bytes": plan.payload_bytes,
        "keys": plan.keys.count,
        "weights": ":".join(f"{weight:g}" for weight in plan.keys.weights),
        "zipf": plan.keys.zipf,
        "priority": plan.priority,
        "backlog_first": plan.is_backlog_first,
        "namespace": target.task_queue.namespace_id,
        "tasklist": target.task_queue.name,
        "seed": target.seed,
    }


def _of_scenario(scenario: Scenario) -> dict[str, Cell]:
    phases = ", ".join(
        f"{phase.rate_per_s:g}/s" + ("" if phase.duration_s is None else f" for {phase.duration_s:g} s")
        for phase in scenario.phases
    )
    return {
        "hosts": scenario.hosts,
        "read_partitions": scenario.read_partitions,
        "write_partitions": scenario.write_partitions,
        "config_in_database": scenario.is_config_in_database,
        "strategy": scenario.strategy.value,
        "forwarded_tasks_max": scenario.forwarded_tasks_max,
        "forwarded_polls_max": scenario.forwarded_polls_max,
        "forwarded_tasks_per_s": scenario.forwarded_tasks_per_s,
        "task_wait_ms": scenario.task_wait_s * 1000,
        "poll_wait_ms": scenario.poll_wait_s * 1000,
        "start_ms": scenario.start_s * 1000,
        "generators": scenario.generators,
        "load": phases,
        "tasks": scenario.tasks,
        "pollers": scenario.pollers,
        "work_ms": scenario.work_s * 1000,
    }
