"""The group `fairlead admin`, its connection to a cluster, and the options that its commands share."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

import click

from fairlead.cli.admin.cluster import Cluster, connect
from fairlead.cli.admin.credentials import credential_options, credentials_of
from fairlead.core.partitions import NAME_CHARACTERS_MAX, InvalidName, TaskQueueId, TaskType, check_user_name
from fairlead.report import Output, Report, show
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s
from fairlead.settings.static.config import DEFAULTS, parse_address

DEFAULT_NAMESPACE = "default"
TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 3600.0
# Seconds after which a waiting command prints a message.
SILENT_S_MAX = 2.0

# Names of the task types; `decision` is Cadence's name for workflow tasks.
TYPES = {task_type.name.lower(): task_type for task_type in TaskType} | {"decision": TaskType.WORKFLOW}

# Modules with slow imports (history service, replication or authorization); each adds its commands to the group.
SLOW_TO_LOAD = ("dead_letters", "histories", "key", "repair", "replication")

Command = Callable[..., Awaitable[Report]]


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster to call, the timeout, and the caller's credentials."""

    address: str = str(DEFAULTS.listen)
    timeout_s: float = TIMEOUT_S
    credentials: Credentials = ANONYMOUS


def read_address(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Parse HOST:PORT."""
    try:
        return None if text is None else str(parse_address(text))
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r} {wrong}", context, option) from wrong


def _read_timeout(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        timeout_s = parse_duration_s(text)
    except InvalidValue as wrong:
        raise click.BadParameter(f"{text!r} {wrong}", context, option) from wrong
    if not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise click.BadParameter(f"{text!r} is not above 0 and at most 1h", context, option)
    return timeout_s


class _Admin(click.Group):
    """Imports the modules in `SLOW_TO_LOAD` when a command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load()
        return super().get_command(ctx, cmd_name)

    def _load(self) -> None:
        for module in SLOW_TO_LOAD:
            import_module(f"fairlead.cli.admin.{module}")


@click.group(cls=_Admin, no_args_is_help=True)
@click.option(
    "--address",
    envvar="FAIRLEAD_ADDRESS",
    default=str(DEFAULTS.listen),
    show_default=True,
    metavar="HOST:PORT",
    callback=read_address,
    help="Any host of the cluster; or set FAIRLEAD_ADDRESS.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=format_duration(TIMEOUT_S),
    show_default=True,
    metavar="TIME",
    callback=_read_timeout,
    help='How long to wait for a response, like "10s" or "1m".',
)
@credential_options
@click.pass_context
def admin(context: click.Context, /, address: str, timeout_s: float, **credentials: Any) -> None:
    """Inspect and administer a running cluster.

    Each command also takes --address and --timeout.

    \b
    fairlead admin tasklist list
    fairlead admin ring show --address 10.0.0.1:7240
    """
    context.obj = Target(address, timeout_s, credentials_of(**credentials))


def common_options() -> list[click.Parameter]:
    """Return the options that every command has after its own; without them, the options of `admin` apply."""
    return [
        click.Option(
            ["--address"],
            metavar="HOST:PORT",
            callback=read_address,
            help="Any host of the cluster; overrides that of admin.",
        ),
        click.Option(
            ["--timeout", "timeout_s"],
            metavar="TIME",
            callback=_read_timeout,
            help="How long to wait; overrides that of admin.",
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice([shape.value for shape in Output]),
            default=Output.TABLE.value,
            show_default=True,
            help="A table for people, or JSON for programs.",
        ),
    ]


def target_of(address: str | None, timeout_s: float | None) -> Target:
    """Return the cluster that a command calls: by its own options, else by those of `admin`."""
    before = click.get_current_context().ensure_object(Target)
    return Target(address or before.address, timeout_s or before.timeout_s, before.credentials)


def asks(group: click.Group, name: str, *aliases: str) -> Callable[[Command], click.Command]:
    """Turn a function that calls a cluster and returns a report into a command; put its own options below this
    decorator.
    """

    def decorate(run: Command) -> click.Command:
        async def ask(target: Target, parameters: dict[str, object]) -> Report:
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(SILENT_S_MAX, _say_waiting, target)
            try:
                credentials = target.credentials
                async with connect(target.address, timeout_s=target.timeout_s, credentials=credentials) as cluster:
                    return await run(cluster, **parameters)
            finally:
                waiting.cancel()

        def ask_and_show(*, address: str | None, timeout_s: float | None, output: str, **parameters: object) -> None:
            report = asyncio.run(ask(target_of(address, timeout_s), parameters))
            show(report, output=Output(output), plot=None)

        command = click.command(name)(run)
        command.callback = ask_and_show
        command.params += common_options()
        group.add_command(command)
        for alias in aliases:
            hidden = copy.copy(command)
            hidden.hidden = True
            group.add_command(hidden, alias)
        return command

    return decorate


def _say_waiting(target: Target) -> None:
    click.echo(f"waiting for the cluster of {target.address}, up to {format_duration(target.timeout_s)} ...", err=True)


def names_task_queue(command: Command) -> Command:
    """Add the options for the namespace and the name of a task queue; the command gets the validated values."""

    @click.option(
        "--namespace",
        default=DEFAULT_NAMESPACE,
        show_default=True,
        metavar="NAME",
        callback=_check_namespace,
        help="Name or id of the namespace; NAME#DEPLOYMENT:BUILD for the task queue of one worker version.",
    )
    @click.option(
        "--tasklist",
        "--tl",
        "name",
        required=True,
        metavar="NAME",
        callback=_check_name,
        help="Name of the task queue.",
    )
    @wraps(command)
    async def run(*arguments: object, **parameters: object) -> Report:
        return await command(*arguments, **parameters)

    return run


def choose_task_queue(command: Command) -> Command:
    """Add the options that select one task queue; the command gets it as one value."""

    @names_task_queue
    @click.option(
        "--tasklisttype",
        "--tlt",
        "type_name",
        type=click.Choice(list(TYPES), case_sensitive=False),
        default=TaskType.WORKFLOW.name.lower(),
        show_default=True,
        help="Type of the tasks; decision is another name for workflow.",
    )
    @wraps(command)
    async def run(cluster: Cluster, *, namespace: str, name: str, type_name: str, **parameters: object) -> Report:
        task_type = TYPES[type_name]
        namespace_id = await cluster.namespace_id(namespace, name, [task_type])
        return await command(cluster, task_queue=TaskQueueId(namespace_id, name, task_type), **parameters)

    return run


def _check_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    return check_user_name(name)


def _check_namespace(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or "\0" in name:
        raise InvalidName(f"namespace has {len(name)} characters: give 1 to {NAME_CHARACTERS_MAX}, none of them NUL")
    return name
