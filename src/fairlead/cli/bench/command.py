"""The group `fairlead bench` and its command `matching`."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fairlead.bench.cluster import StoreKind
from fairlead.bench.comparison import CSV, show_comparison
from fairlead.bench.keys import KEYS_MAX, KeyPlan
from fairlead.bench.payload import PAYLOAD_BYTES_MIN
from fairlead.bench.plan import DRAIN_POLLS, POLL_TIMEOUT_S, POLLERS_MAX, PRODUCERS_MAX, TASKS_MAX, LoadPlan
from fairlead.bench.result import BenchResult, show_result
from fairlead.bench.run import Target, run_load, run_scenario
from fairlead.bench.scenarios import NOT_OFFERED, SCENARIOS, find_scenario
from fairlead.bench.schedule import Phase
from fairlead.bench.stop import Stop, until_signal
from fairlead.cli.admin.command import read_address
from fairlead.cli.bench.options import duration_within, read_weights
from fairlead.core.errors import GiveUp
from fairlead.core.partitions import TaskQueueId, TaskType, check_user_name
from fairlead.report import Cell, Output, Report, Table, check_picture, counted, show
from fairlead.settings import parse_overrides
from fairlead.settings.static.config import DEFAULTS
from fairlead.simulations.command import SEED_MAX, refuse_nan
from fairlead.telemetry import configure_logs

DEFAULT_DURATION_S = 10.0
DEFAULT_RATE_PER_S = 500.0
DAY_S = 86_400.0
PAYLOAD_BYTES_MAX = 2_000_000

# Options that define a load; they conflict with a scenario, which has its own load.
LOAD_OPTIONS = frozenset({
    "rate", "in_flight", "producers", "pollers", "tasks", "duration", "work", "payload_bytes", "keys", "weights",
    "zipf", "priority", "backlog_first",
})  # fmt: skip
# Options that select something other than a plain load.
MODES = frozenset({"scenario", "all_scenarios", "list_scenarios"})


class TasksLost(GiveUp):
    """Acknowledged tasks were never received."""


class RequestsFailed(GiveUp):
    """Adds or polls failed after all retries, or not all partitions could be polled for missing tasks."""


@click.group(no_args_is_help=True)
def bench() -> None:
    """Put a load on a server and measure its performance."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Add all options of `fairlead bench matching`, in the order of its help."""
    options = (
        click.option("--address", metavar="HOST:PORT", envvar="FAIRLEAD_ADDRESS", callback=read_address,
                     help="Any host of the cluster; or set FAIRLEAD_ADDRESS. A scenario has its own cluster; "
                          f"with --address, only its load runs, on that cluster.  [default: {DEFAULTS.listen}]"),
        click.option("--namespace", default="default", show_default=True, metavar="NAME",
                     help="Namespace of the load."),
        click.option("--tasklist", default="bench", show_default=True, metavar="NAME", help="Task queue of the load."),
        click.option("--rate", type=click.FloatRange(0.001, 1e6), metavar="R",
                     help="Open loop: tasks per second, due at set times even if the server is slow."
                          f"  [default: {DEFAULT_RATE_PER_S:g}]"),
        click.option("--producers", type=click.IntRange(1, PRODUCERS_MAX), default=100, show_default=True,
                     help="Open loop: maximum number of concurrent adds."),
        click.option("--in-flight", type=click.IntRange(1, PRODUCERS_MAX), metavar="N",
                     help="Closed loop: number of concurrent adds."),
        click.option("--tasks", type=click.IntRange(1, TASKS_MAX), metavar="N", help="End after this number of tasks."),
        click.option("--duration", callback=duration_within(0.01, DAY_S), metavar="TIME",
                     help=f"End after this time.  [default: {DEFAULT_DURATION_S:g}s, without --tasks]"),
        click.option("--pollers", type=click.IntRange(1, POLLERS_MAX), default=8, show_default=True,
                     help="Number of workers, each with one poll."),
        click.option("--work", callback=duration_within(0.0, 3600.0), metavar="TIME", default="0s", show_default=True,
                     help="How long a worker works on a task."),
        click.option("--backlog-first", is_flag=True,
                     help="Add all tasks before polling. [default: workers poll from the start]"),
        click.option("--payload-bytes", type=click.IntRange(PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX),
                     default=PAYLOAD_BYTES_MIN, show_default=True, help="Size of a task."),
        click.option("--keys", type=click.IntRange(1, KEYS_MAX), default=1, show_default=True,
                     help="Number of fairness keys, used in turn."),
        click.option("--weights", callback=read_weights, default="1", show_default=True, metavar="W:W:...",
                     help="Weights of the keys, in turn."),
        click.option("--zipf", type=click.FloatRange(0.01, 10.0), metavar="S",
                     help="Use the keys unevenly: key K with frequency 1 / K ** S."),
        click.option("--priority", type=click.IntRange(1, 5), default=3, show_default=True,
                     help="Priority of all tasks."),
        click.option("--scenario", metavar="NAME", help="Run a scenario of Cadence's matching simulation."),
        click.option("--all-scenarios", is_flag=True, help="Run all scenarios, and compare them."),
        click.option("--list-scenarios", is_flag=True, help="List the scenarios."),
        click.option("--speed", type=click.FloatRange(1.0, 1000.0), default=1.0, show_default=True,
                     help="Scenarios: keep the rates, and divide times and tasks by this."),
        click.option("--store", type=click.Choice([kind.value for kind in StoreKind]), default=StoreKind.SQLITE.value,
                     show_default=True, help="Scenarios: the store of their own cluster, in a temporary folder."),
        click.option("--drain-timeout", callback=duration_within(0.01, DAY_S), metavar="TIME",
                     help="End if no task was received for this long.  [default: three long polls]"),
        click.option("--dynamic-config-value", "values", multiple=True, metavar="KEY=JSON",
                     help="A dynamic setting of the client, and of a scenario's own cluster. May be repeated."),
        click.option("--seed", type=click.IntRange(0, SEED_MAX), default=1, show_default=True,
                     help="Seed of the load."),
        click.option("-o", "--output", type=click.Choice([*(shape.value for shape in Output), CSV]),
                     default=Output.TABLE.value, show_default=True,
                     help="A table for people, JSON for programs; csv with --all-scenarios."),
        click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.png",
                     help="Also draw throughput and waits over time."),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@bench.command("matching")
@_options
@click.pass_context
def matching(context: click.Context, /, **options: Any) -> None:
    """Load the matching service of a running server, or run a scenario on its own cluster.

    Open loop (--rate): tasks are due at set times, and a task's wait counts from then, even if the server delays its
    sending. Closed loop (--in-flight): the next task is sent when the previous add has returned.

    \b
    fairlead bench matching --rate 500 --duration 30s --pollers 16
    fairlead bench matching --in-flight 200 --tasks 100000 --keys 100 --weights 1:2:5 --backlog-first
    fairlead bench matching --scenario burst_adaptive --plot burst.png
    fairlead bench matching --all-scenarios --speed 10 -o csv

    Ctrl-C ends it and shows the figures so far. The exit code is 1 if an acknowledged task was lost, or an add or a
    poll failed after all retries. docs/benchmarks.md explains the numbers.
    """
    configure_logs("warning")
    refuse_nan(context.command, options)
    given = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    _refuse_conflicts(context, options, given)
    if "address" not in given and MODES & given:
        # FAIRLEAD_ADDRESS applies to plain loads only, so that a scenario never loads a cluster by accident.
        options["address"] = None
    if options["plot"] is not None:
        check_picture(options["plot"])
    if options["list_scenarios"]:
        _list_scenarios(Output(options["output"]))
    elif options["all_scenarios"]:
        _compare(options)
    else:
        _run_one(options)


def _run_one(options: dict[str, Any]) -> None:
    target = _target(options)
    if options["scenario"] is None:
        plan, address = _plan(options), target.address or str(DEFAULTS.listen)
        result, exit_code = _run(lambda stop: run_load(plan, target, address, stop))
    else:
        scenario = find_scenario(options["scenario"]).faster(options["speed"])
        result, exit_code = _run(lambda stop: run_scenario(scenario, target, stop))
    show_result(result, output=Output(options["output"]), plot=options["plot"])
    _end([result], exit_code)


def _compare(options: dict[str, Any]) -> None:
    target = _target(options)
    results: list[BenchResult] = []
    exit_code = None
    for scenario in SCENARIOS.values():
        faster = scenario.faster(options["speed"])
        result, exit_code = _run(partial(run_scenario, faster, target))
        results.append(result)
        if exit_code is not None:
            break
    show_comparison(results, output=options["output"])
    _end(results, exit_code)


def _run(run: Callable[[Stop], Coroutine[Any, Any, BenchResult]]) -> tuple[BenchResult, int | None]:
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with suppress(ImportError):
        # Use uvloop like the server, so that the load generator costs less than the server. Some platforms don't have
        # it.
        from uvloop import new_event_loop as new_loop  # noqa: PLC0415
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(until_signal(run))
    except asyncio.CancelledError:
        raise click.Abort from None


def _end(results: Sequence[BenchResult], exit_code: int | None) -> None:
    """Exit with the code of the signal that ended the run; else raise an error if anything went wrong."""
    if exit_code is not None:
        sys.exit(exit_code)
    lost = [f"{result.lost:,} in {result.subject}" for result in results if result.lost]
    if lost:
        raise TasksLost(
            f"ACKNOWLEDGED TASKS WERE LOST: {', '.join(lost)}. This must never happen: keep the server's logs"
        )
    bad = [result for result in results if result.failed or result.unexplained]
    if bad:
        subjects = ", ".join(result.subject for result in bad)
        failed, unexplained = sum(result.failed for result in bad), sum(result.unexplained for result in bad)
        said = [f"{counted(failed, 'request')} failed after all retries"] if failed else []
        said += (
            [f"{counted(unexplained, 'acknowledged task')} may be lost: not all partitions could be polled"]
            if unexplained
            else []
        )
        raise RequestsFailed(f"{', and '.join(said)} in {subjects}: is the server up, and what does its log say?")


def _refuse_conflicts(context: click.Context, options: dict[str, Any], given: set[str]) -> None:
    modes = sorted(MODES & given)
    if len(modes) > 1:
        raise click.UsageError(f"{_as_option(modes[0])} and {_as_option(modes[1])} exclude each other", context)
    of_load = sorted(LOAD_OPTIONS & given)
    if modes and of_load:
        raise click.UsageError(
            f"{_as_option(of_load[0])} defines a load, but {_as_option(modes[0])} has its own load: leave one out",
            context,
        )
    of_scenario = sorted({"speed", "store"} & given)
    if of_scenario and not {"scenario", "all_scenarios"} & given:
        raise click.UsageError(
            f"{_as_option(of_scenario[0])} is for scenarios: name one, see --list-scenarios", context
        )
    if {"rate", "in_flight"} <= given:
        raise click.UsageError("--rate is an open loop and --in-flight a closed one: give only one", context)
    if {"producers", "in_flight"} <= given:
        raise click.UsageError("--producers is for the open loop: with --in-flight, leave it out", context)
    if options["output"] == CSV and "all_scenarios" not in given:
        raise click.UsageError("-o csv is for --all-scenarios: choose table or json", context)
    if "plot" in given and {"all_scenarios", "list_scenarios"} & given:
        raise click.UsageError("--plot draws one run: there is no picture of all scenarios", context)


def _as_option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _plan(options: dict[str, Any]) -> LoadPlan:
    tasks, duration_s = options["tasks"], options["duration"]
    if tasks is None and duration_s is None:
        duration_s = DEFAULT_DURATION_S
    in_flight = options["in_flight"]
    rate_per_s = DEFAULT_RATE_PER_S if options["rate"] is None else options["rate"]
    if in_flight is None and tasks is None and rate_per_s * duration_s > TASKS_MAX:
        raise click.UsageError(
            f"--rate {rate_per_s:g} over {duration_s:g} s is more than {TASKS_MAX:,} tasks: lower --rate or --duration"
        )
    return LoadPlan(
        phases=(Phase(rate_per_s),) if in_flight is None else (),
        producers=options["producers"] if in_flight is None else in_flight,
        tasks=tasks,
        duration_s=duration_s,
        pollers=options["pollers"],
        work_s=options["work"],
        payload_bytes=options["payload_bytes"],
        keys=KeyPlan(count=options["keys"], weights=options["weights"], zipf=options["zipf"]),
        priority=options["priority"],
        is_backlog_first=options["backlog_first"],
        drain_timeout_s=options["drain_timeout"] or DRAIN_POLLS * POLL_TIMEOUT_S,
    )


def _target(options: dict[str, Any]) -> Target:
    return Target(
        task_queue=TaskQueueId(options["namespace"], check_user_name(options["tasklist"]), TaskType.WORKFLOW),
        address=options["address"],
        store=StoreKind(options["store"]),
        overrides=parse_overrides(options["values"]),
        drain_timeout_s=options["drain_timeout"],
        seed=options["seed"],
    )


def _list_scenarios(output: Output) -> None:
    rows: list[tuple[Cell, ...]] = [(scenario.name, scenario.about) for scenario in SCENARIOS.values()]
    rows += [(name, f"Not offered: it {reason}.") for name, reason in NOT_OFFERED.items()]
    table = Table(name="scenarios", title="Scenarios", columns=("name", "about"), rows=rows)
    report = Report(
        subject="scenarios",
        summary=f"{len(SCENARIOS)} of Cadence's matching simulation; {len(NOT_OFFERED)} more are not offered",
        parameters={},
        tables=[table],
    )
    show(report, output=output, plot=None)
