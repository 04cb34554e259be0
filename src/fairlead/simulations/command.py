"""The group `fairlead simulate`, and the options that all its commands share."""

from collections.abc import Callable, Mapping
from math import isnan
from pathlib import Path

import click

from fairlead.report import Output, Report, check_picture, show

SEED_MAX = 2**32 - 1


@click.group(no_args_is_help=True)
def simulate() -> None:
    """Run a part of the core on a synthetic workload.

    Each command runs the code of the server, and shows its decisions. The same options and seed give the same output to
    the byte.
    """


def simulation(name: str) -> Callable[[Callable[..., Report]], click.Command]:
    """Turn a function that returns a report into a command; its own options go below this decorator."""

    def decorate(run: Callable[..., Report]) -> click.Command:
        command = click.command(name)(run)

        def run_and_show(output: str, plot: Path | None, rows_max: int | None = None, **parameters: object) -> None:
            refuse_nan(command, parameters)
            if plot is not None:
                check_picture(plot)
            show(run(**parameters), output=Output(output), plot=plot, rows_max=rows_max)

        command.callback = run_and_show
        command.params += [
            click.Option(
                ["--seed"], type=click.IntRange(0, SEED_MAX), default=1, show_default=True, help="Seed of the run."
            ),
            click.Option(
                ["-o", "--output"],
                type=click.Choice([shape.value for shape in Output]),
                default=Output.TABLE.value,
                show_default=True,
                help="A table for people, or JSON for programs.",
            ),
            click.Option(
                ["--plot"],
                type=click.Path(path_type=Path, dir_okay=False),
                metavar="FILE.png",
                help="Also draw a picture.",
            ),
        ]
        simulate.add_command(command)
        return command

    return decorate


def refuse_nan(command: click.Command, parameters: Mapping[str, object]) -> None:
    """Raise an error for NaN, which passes the range checks, since it is neither below nor above a bound."""
    for option in command.params:
        value = parameters.get(option.name or "")
        if isinstance(value, float) and isnan(value):
            raise click.BadParameter("nan is not a number", ctx=click.get_current_context(), param=option)
