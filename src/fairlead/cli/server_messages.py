"""Messages and exit codes that all server commands share."""

import sys
from pathlib import Path
from typing import NoReturn

import click

from fairlead.settings import InvalidSettings
from fairlead.settings.static.config import MemoryConfig, PostgresConfig, SqliteConfig, StaticConfig

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
# A shell's exit code for a signal is this plus the signal's number.
EXIT_BY_SIGNAL = 128
# Seconds within which a second signal counts as a repetition of the first: a terminal and a parent process may both
# send a signal.
SECOND_SIGNAL_AFTER_S = 0.5


def report_problems(file: Path | None, wrong: InvalidSettings) -> NoReturn:
    """Print each problem with its position on its own line, like `fairlead config validate`."""
    # Problems of the command line, or of an unreadable file, have no line numbers.
    if file is None or not any(problem.line for problem in wrong.problems):
        raise wrong
    for line, message in wrong.problems:
        click.echo(f"{file}:{line or 1}: {message}", err=True)
    sys.exit(EXIT_BAD_ARGUMENTS)


def store_line(config: StaticConfig) -> str:
    """Describe the store in a few words."""
    match config.store:
        case SqliteConfig(file):
            return f"SQLite file {file}"
        case PostgresConfig(dsn):
            # psycopg is installed, since the store is open.
            from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

            # Only these parts: the others may contain a password.
            parts = conninfo_to_dict(dsn)
            return f"PostgreSQL database {parts.get('dbname', 'by default')} at {parts.get('host', 'this machine')}"
        case MemoryConfig():
            return "everything in memory, lost at the end"
