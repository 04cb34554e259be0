"""`fairlead demo`: one command that shows what Fairlead does, part by part."""

import click

from fairlead.cli.report import new_console
from fairlead.cli.simulate import simulate

TOUR = {
    "fairness": "Many tenants share one task list, and one of them floods it.",
    "balancing": "A task list has many partitions; a worker that waits at the wrong one is idle.",
    "scaling": "The number of partitions follows the load, and every change has its reason.",
    "routing": "Each partition has one owner among the hosts, and should keep it when hosts come and go.",
    "replication": "Data centers write on their own while they can't talk, and agree once they can.",
}


ROWS_MAX = 5


@click.command()
@click.pass_context
def demo(context: click.Context) -> None:
    """Show what Fairlead does, part by part.

    Runs each command of `fairlead simulate` once, with its defaults: the decisions are made by the code that the
    server runs, on a synthetic workload.
    """
    console = new_console()
    for number, (name, question) in enumerate(TOUR.items(), start=1):
        console.rule(f"[bold]{number} of {len(TOUR)}[/bold] · {question}", align="left")
        context.invoke(simulate.commands[name], rows_max=ROWS_MAX)
        console.print()
    console.print("Each of these is a command with options and a picture: [bold]fairlead simulate --help[/bold]")
