"""`fairlead ui`: the pages of Temporal's web UI."""

import sys
import time
from pathlib import Path

import click

# Seconds between two lines of progress.
PROGRESS_S = 0.5


@click.group(no_args_is_help=True)
def ui() -> None:
    """Get the pages of Temporal's web UI."""


@ui.command()
@click.option("--temporal", "command", metavar="FILE", help="Temporal's command line. [default: `temporal`]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The folder to write, for --ui-asset-path. [default: the user's cache, where servers look for it]",
)
def fetch(command: str | None, output: Path | None) -> None:
    """Fetch the pages of Temporal's web UI from Temporal's command line.

    The `temporal` command has these pages inside. It is started once, on this machine only, and the pages are copied
    from it. Then `fairlead server start-dev` serves them. Fairlead itself contains none of them.

    \b
    fairlead ui fetch
    fairlead ui fetch --temporal ~/bin/temporal
    fairlead ui fetch --output pages && fairlead server start-dev --ui-asset-path pages
    """
    # Imported late, so that --help is fast.
    from fairlead.ui.fetch import fetch_pages, find_command  # noqa: PLC0415

    found = find_command(command)
    click.echo(f"Fetching the pages from {found} ...", err=True)
    reported_s = time.monotonic()

    def report(files: int, size_bytes: int) -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s >= PROGRESS_S:
            reported_s = time.monotonic()
            click.echo(f"{files} files, {size_bytes / 1e6:.1f} MB", err=True)

    fetched = fetch_pages(found, into=output, report=report)
    sys.stderr.flush()
    click.echo(
        f"Temporal's web UI {fetched.version} is in {fetched.folder}: "
        f"{fetched.files} files, {fetched.size_bytes / 1e6:.1f} MB."
    )
