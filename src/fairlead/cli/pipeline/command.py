"""The group `fairlead pipeline`: one command per job, and the commands `all` and `stream`."""

import importlib.util
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from fairlead.cli.pipeline.synth import synth
from fairlead.cli.pipeline.times import Instant
from fairlead.core.errors import FixRequest
from fairlead.report import Output

# The jobs, in the order in which `all` runs them: each job may read the tables of earlier ones.
JOBS = {
    "ingest": "Ingest the new segments of the journal into the lake.",
    "traffic": "Compute rates, waits and skew of every task queue and partition.",
    "fairness": "Compute the shares of fairness keys, and find starved keys.",
    "backtest": "Replay recorded traffic under many settings of the scaler, and recommend one.",
    "placement": "Place partitions by basic and spread routing: load of hosts, and moves.",
    "reconcile": "Compare the histories of clusters, and plan repairs.",
    "histories": "Write runs and activities as flat tables, with totals by type.",
    "report": "Write a page with findings and plots.",
}
_OTHERS = {
    "all": "Run all jobs, one after the other.",
    "stream": "Follow the journal: ingest as a stream.",
    "worker": "Run the jobs as activities of a workflow, on a schedule.",
}
# Commands with --since, --until and --namespace. `ingest` always ingests everything, and `report` shows the tables of
# the others.
NARROWED = frozenset({"traffic", "fairness", "backtest", "placement", "reconcile", "histories", "all"})
COMMON = {"lake", "journal", "master", "since", "until", "namespace", "output"}


class NoSpark(FixRequest):
    """The dependencies of the pipeline are not installed."""


class _Jobs(click.Group):
    """Lists the jobs by name, and imports a job, and Spark with it, when its command is looked up."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return [*JOBS, *_OTHERS, *super().list_commands(_context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in {*JOBS, *_OTHERS}:
            return super().get_command(context, name)
        if importlib.util.find_spec("pyspark") is None:
            raise NoSpark("the pipeline needs PySpark: pip install 'fairlead[pipeline]'")
        return {"all": _all, "stream": _stream, "worker": _worker}[name]() if name not in JOBS else _job(name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        texts = JOBS | _OTHERS
        texts |= {name: command.get_short_help_str(80) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, texts[name]) for name in self.list_commands(context)])


@click.group(cls=_Jobs, no_args_is_help=True)
def pipeline() -> None:
    """Run the data pipeline on Spark: from the journal of the server to tables, findings and settings.

    Exit codes: 0 done, 1 failed (try again), 2 wrong arguments or data, 3 done, but the findings need attention.
    """


pipeline.add_command(synth)


def _job(name: str) -> click.Command:
    module = _load(name)

    def run(**parameters: Any) -> None:
        from fairlead.cli.pipeline.runner import run_jobs  # noqa: PLC0415 - loads Spark

        options = {key: value for key, value in parameters.items() if key not in COMMON}
        if name == "ingest":
            _check_source(parameters)
        run_jobs({name: module.run}, {name: options}, _request(parameters), is_one=True)

    return _command(name, JOBS[name], run, module, needs_journal=False)


def jobs_with_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the jobs that `all` runs, and each job's options: the given ones, and the defaults of the others."""
    modules = {name: _load(name) for name in JOBS}
    options: dict[str, dict[str, Any]] = {}
    for name, module in modules.items():
        defaults = click.Command(name, params=[*_options(module).values()]).make_context(name, []).params
        options[name] = {key: given.get(key, default) for key, default in defaults.items()}
    return {name: module.run for name, module in modules.items()}, options


def _all() -> click.Command:
    def run(**parameters: Any) -> None:
        from fairlead.cli.pipeline.runner import run_jobs  # noqa: PLC0415 - loads Spark

        _check_source(parameters)
        jobs, options = jobs_with_options(parameters)
        run_jobs(jobs, options, _request(parameters), is_one=False)

    text = "Run all jobs, one after the other. An option goes to every job that has it."
    return _with_options_of_jobs(_command("all", text, run, None, needs_journal=False))


def _worker() -> click.Command:
    from fairlead.cli.admin.credentials import client_options  # noqa: PLC0415 - only for this command
    from fairlead.cli.pipeline.worker import OPTIONS, Service, run_worker  # noqa: PLC0415 - loads Spark and the SDK

    def run(**parameters: Any) -> None:
        _check_source(parameters)
        jobs, options = jobs_with_options(parameters)
        # The namespace is that of the workflow; the jobs read all namespaces.
        request = _request(parameters | {"namespace": None, "output": Output.TABLE})
        run_worker(jobs, options, request, Service.of(parameters))

    text = (
        "Work on a task queue, until stopped by a signal: the workflow `Pipeline` runs all jobs, one after the other, "
        "each as an activity."
    )
    command = _command("worker", text, run, None, needs_journal=False)
    # The results are those of the workflow: there is no output to choose.
    command.params.pop()
    command = client_options(command)
    command.params += OPTIONS
    return _with_options_of_jobs(command)


def _with_options_of_jobs(command: click.Command) -> click.Command:
    """Add the options of all jobs before the last option."""
    options: dict[str, click.Parameter] = {}
    for name in JOBS:
        for key, option in _options(_load(name)).items():
            # An option of the same name means the same in every job. If two jobs use a flag differently, it belongs to
            # the first job, and the other keeps its default.
            is_taken = any(set(option.opts) & set(one.opts) for one in options.values())
            if not is_taken:
                options[key] = option
    command.params[-1:-1] = options.values()
    return command


def _stream() -> click.Command:
    def run(**parameters: Any) -> None:
        from fairlead.cli.pipeline.runner import run_jobs, until_stopped  # noqa: PLC0415 - loads Spark
        from fairlead.pipeline import stream  # noqa: PLC0415

        options = {key: value for key, value in parameters.items() if key not in COMMON}
        with until_stopped() as is_wanted:
            jobs = {"stream": lambda context: stream.run(context, is_wanted=is_wanted)}
            run_jobs(jobs, {"stream": options}, _request(parameters), is_one=True)

    text = "Follow the journal: ingest segments as they are sealed, until stopped by a signal."
    command = _command("stream", text, run, None, needs_journal=True)
    command.params += [
        click.Option(["--once"], is_flag=True, help="End when all present segments are in the lake."),
        click.Option(
            ["--interval", "interval_s"],
            type=click.FloatRange(0.1, 3600),
            default=5.0,
            show_default=True,
            help="Seconds between two checks for new segments.",
        ),
        click.Option(
            ["--tables", "tables_s"],
            type=click.FloatRange(0, 3600),
            default=10.0,
            show_default=True,
            metavar="SECONDS",
            help="Seconds between two refreshes of the tables of traffic and fairness, at least; 0 for no refresh.",
        ),
        *_options(_load("traffic")).values(),
    ]
    return command


def _load(name: str) -> ModuleType:
    return import_module(f"fairlead.pipeline.jobs.{name}")


def _command(
    name: str, text: str, run: Callable[..., None], module: ModuleType | None, *, needs_journal: bool
) -> click.Command:
    for option in reversed(getattr(module, "OPTIONS", [])):
        run = option(run)
    command = click.command(name, help=text)(run)
    folder = click.Path(path_type=Path)
    command.params[:0] = [
        click.Option(
            ["--journal"],
            type=folder,
            required=needs_journal,
            metavar="DIR",
            help="Folder of the servers' journals.",
        ),
        click.Option(["--lake"], type=folder, required=True, metavar="DIR", help="Folder of the tables."),
        click.Option(
            ["--master"], metavar="URL", help="local[N], spark://HOST:PORT or sc://HOST:PORT. [default: local[*]]"
        ),
        *(_narrowing() if name in NARROWED else ()),
    ]
    command.params.append(
        click.Option(
            ["-o", "--output"],
            type=click.Choice([shape.value for shape in Output]),
            default=Output.TABLE.value,
            show_default=True,
            help="Tables for people, or JSON for programs.",
        )
    )
    return command


def _narrowing() -> list[click.Option]:
    return [
        click.Option(["--since"], type=Instant(), help="From this time on: 2026-01-31, 2026-01-31T12:00, or 24h ago."),
        click.Option(["--until"], type=Instant(), help="Before this time."),
        click.Option(["--namespace"], metavar="NAME", help="Only this namespace, by name or id."),
    ]


def _options(module: ModuleType) -> dict[str, click.Parameter]:
    """Return the options of a job itself, by parameter name."""
    command = _command("options", "", lambda **_: None, module, needs_journal=False)
    return {option.name: option for option in command.params if option.name and option.name not in COMMON}


def _check_source(parameters: Mapping[str, Any]) -> None:
    if parameters["journal"] is None and parameters["cloud_export"] is None:
        raise click.UsageError("Missing option '--journal' or '--cloud-export'", click.get_current_context())


def _request(parameters: Mapping[str, Any]) -> Any:
    from fairlead.cli.pipeline.runner import Request  # noqa: PLC0415 - loads Spark

    since_us, until_us = parameters.get("since"), parameters.get("until")
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise click.UsageError("--since must be before --until", click.get_current_context())
    return Request(
        lake=parameters["lake"],
        journal=parameters["journal"],
        master=parameters["master"],
        since_us=since_us,
        until_us=until_us,
        namespace=parameters.get("namespace"),
        output=Output(parameters["output"]),
    )
