"""The commands of `fairlead simulate`, and the options that all of them share."""

from collections.abc import Callable
from pathlib import Path

import click

from fairlead.cli.report import Output, Report, show

SEED_MAX = 2**32 - 1


@click.group(no_args_is_help=True)
def simulate() -> None:
    """Run a part of the core on a synthetic workload and show what it does.

    The same options and seed give the same answer to the byte.
    """


def simulation(name: str) -> Callable[[Callable[..., Report]], click.Command]:
    """Make a command of a function that returns a report; its own options go below this decorator."""

    def decorate(run: Callable[..., Report]) -> click.Command:
        @click.option("--seed", type=click.IntRange(0, SEED_MAX), default=1, show_default=True, help="Seed of the run.")
        @click.option("-o", "--output", type=click.Choice(Output), default=Output.TABLE, show_default=True)
        @click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw a picture, too.")
        def command(output: Output, plot: Path | None, **parameters: object) -> None:
            show(run(**parameters), output=output, plot=plot)

        command.__doc__ = run.__doc__
        command.__click_params__ = [
            *getattr(command, "__click_params__", []),
            *getattr(run, "__click_params__", []),
        ]  # type: ignore[attr-defined]
        return simulate.command(name)(command)

    return decorate
