"""The group `fairlead admin`, how its commands reach a cluster, and the options that they share."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module

import click

from fairlead.cli.admin.cluster import Cluster, connect
from fairlead.cli.report import Output, Report, show
from fairlead.core.partitions import NAME_CHARACTERS_MAX, InvalidName, TaskList, TaskType, check_user_name
from fairlead.settings import InvalidValue
from fairlead.settings.duration import format_duration, parse_duration_s
from fairlead.settings.static import DEFAULTS, parse_address

DEFAULT_NAMESPACE = "default"
TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 3600.0
# Whoever waits for longer is told so.
SILENT_S_MAX = 2.0

# Cadence's name of the workflow tasks' type is understood too.
TYPES = {task_type.name.lower(): task_type for task_type in TaskType} | {"decision": TaskType.WORKFLOW}

# Modules whose commands need the history service or replication: each adds its own to the group.
SLOW_TO_LOAD = ("dead_letters", "histories", "repair", "replication")

Command = Callable[..., Awaitable[Report]]


@dataclass(frozen=True, slots=True)
class Target:
    """Which cluster is asked, and how long it may take."""

    address: str = str(DEFAULTS.listen)
    timeout_s: float = TIMEOUT_S


def read_address(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Reads HOST:PORT."""
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
    """Loads the commands that need the services when it is asked for a command."""

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
    help='How long to wait for it, like "10s" or "1m".',
)
@click.pass_context
def admin(context: click.Context, address: str, timeout_s: float) -> None:
    """Look at a running cluster, and change what is changed by hand.

    Each command takes --address and --timeout, too.

    \b
    fairlead admin tasklist list
    fairlead admin ring show --address 10.0.0.1:7240
    """
    context.obj = Target(address, timeout_s)


def common_options() -> list[click.Parameter]:
    """What every command takes after its own options; where it does not, what was said after `admin` holds."""
    return [
        click.Option(
            ["--address"], metavar="HOST:PORT", callback=read_address, help="Any host of the cluster, as after admin."
        ),
        click.Option(
            ["--timeout", "timeout_s"], metavar="TIME", callback=_read_timeout, help="How long to wait, as after admin."
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
    """Whom a command asks: as its own options say, else as those after `admin` do."""
    before = click.get_current_context().ensure_object(Target)
    return Target(address or before.address, timeout_s or before.timeout_s)


def asks(group: click.Group, name: str, *aliases: str) -> Callable[[Command], click.Command]:
    """Make a command of a function that asks a cluster and returns a report; its own options go below this."""

    def decorate(run: Command) -> click.Command:
        async def ask(target: Target, parameters: dict[str, object]) -> Report:
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(SILENT_S_MAX, _say_waiting, target)
            try:
                async with connect(target.address, timeout_s=target.timeout_s) as cluster:
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


def names_task_list(command: Command) -> Command:
    """Give a command the options that name a task list, of whatever type, as they are after a look at them."""

    @click.option(
        "--namespace", default=DEFAULT_NAMESPACE, show_default=True, metavar="NAME", callback=_check_namespace
    )
    @click.option("--tasklist", "--tl", "name", required=True, metavar="NAME", callback=_check_name, help="Its name.")
    @wraps(command)
    async def run(*arguments: object, **parameters: object) -> Report:
        return await command(*arguments, **parameters)

    return run


def choose_task_list(command: Command) -> Command:
    """Give a command the options that choose a task list, which it gets as one value."""

    @names_task_list
    @click.option(
        "--tasklisttype",
        "--tlt",
        "type_name",
        type=click.Choice(list(TYPES), case_sensitive=False),
        default=TaskType.WORKFLOW.name.lower(),
        show_default=True,
        help="The type of its tasks; decision is another name of workflow.",
    )
    @wraps(command)
    async def run(cluster: Cluster, *, namespace: str, name: str, type_name: str, **parameters: object) -> Report:
        return await command(cluster, task_list=TaskList(namespace, name, TYPES[type_name]), **parameters)

    return run


def _check_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    return check_user_name(name)


def _check_namespace(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if not 0 < len(name) <= NAME_CHARACTERS_MAX or "\0" in name:
        raise InvalidName(f"namespace has {len(name)} characters: give 1 to {NAME_CHARACTERS_MAX}, none of them NUL")
    return name
