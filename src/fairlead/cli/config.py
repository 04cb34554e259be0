"""`fairlead config`: lists dynamic settings with their values and sources, and validates a settings file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairlead.core.partitions import TaskType
from fairlead.report import Output, Report, Table, show
from fairlead.settings import (
    EVERYWHERE,
    SETTINGS,
    DynamicSettings,
    ParsedFile,
    Plain,
    Scope,
    Setting,
    as_text,
    parse_file,
    parse_overrides,
    read_file,
)
from fairlead.settings.dynamic.reference import reference

EXIT_PROBLEMS = 1

Command = Callable[..., None]

_OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice([shape.value for shape in Output]),
    default=Output.TABLE.value,
    show_default=True,
    help="A table for people, or JSON for programs.",
)


@click.group(no_args_is_help=True)
def config() -> None:
    """Show the dynamic settings: those that can be changed while the server runs.

    Their values come from the defaults, then from a YAML file in Temporal's format, then from --dynamic-config-value.
    docs/settings.md describes the file and every setting.
    """


def _from_sources(command: Command) -> Command:
    """Add the options for the sources of the settings and for the scope."""
    options = (
        click.option(
            "--file", type=click.Path(path_type=Path), metavar="FILE", help="The settings file. [default: none]"
        ),
        click.option(
            "--dynamic-config-value",
            "values",
            multiple=True,
            metavar="KEY=JSON",
            help="A value that overrides the file, as for `fairlead server start`. May be repeated.",
        ),
        click.option("--namespace", metavar="NAME", help="Show the value for this namespace."),
        click.option(
            "--task-queue", "--task-list", "task_queue", metavar="NAME", help="Show the value for this task queue."
        ),
        click.option(
            "--type",
            "task_type",
            type=click.Choice([task_type.name.lower() for task_type in TaskType]),
            help="Show the value for this task type.",
        ),
        _OUTPUT,
    )
    for option in reversed(options):
        command = option(command)
    return command


@config.command("list")
@click.argument("text", metavar="[FILTER]", default="")
@_from_sources
def list_settings(
    text: str,
    *,
    file: Path | None,
    values: tuple[str, ...],
    namespace: str | None,
    task_queue: str | None,
    task_type: str | None,
    output: str,
) -> None:
    """List the settings with the current value, its source, and the default.

    FILTER selects the settings whose key, alias or description contains it.

    \b
    fairlead config list forwarder
    fairlead config list --file settings.yaml --namespace orders --task-queue checkout --type activity
    """
    settings = DynamicSettings(file=file, overrides=parse_overrides(values))
    scope = _scope(namespace, task_queue, task_type)
    chosen = [setting for setting in SETTINGS if _contains(setting, text)]
    if Output(output) is Output.JSON:
        reported = [_described(settings, setting, scope) for setting in chosen]
        click.echo(json.dumps({"subject": "settings", "scope": str(scope), "settings": reported}, indent=2))
        return
    rows = [_row(settings, setting, scope) for setting in chosen]
    changed = sum(settings.rule(setting, scope) is not None for setting in chosen)
    table = Table("settings", "Settings", ("key", "value", "from", "default", "about"), rows)
    summary = f"{len(rows)} settings, {changed} of them not at their default"
    _show(table, subject="settings", summary=summary, file=file, scope=scope)


@config.command("get")
@click.argument("key")
@_from_sources
def get_setting(
    key: str,
    *,
    file: Path | None,
    values: tuple[str, ...],
    namespace: str | None,
    task_queue: str | None,
    task_type: str | None,
    output: str,
) -> None:
    """Show one setting: the current value, its source, the allowed values, and other spellings of its key.

    KEY may be any of its spellings, in upper or lower case.

    \b
    fairlead config get matching.numTaskqueueReadPartitions --file settings.yaml --namespace orders
    """
    settings = DynamicSettings(file=file, overrides=parse_overrides(values))
    setting: Setting[Any] = SETTINGS.find(key)
    scope = _scope(namespace, task_queue, task_type)
    described = _described(settings, setting, scope)
    if Output(output) is Output.JSON:
        click.echo(json.dumps(described, indent=2))
        return
    rows = [
        (name.replace("_", " "), as_text(fact))
        for name, fact in described.items()
        if name not in {"key", "about"} and fact not in (None, "", [])
    ]
    table = Table("setting", "", ("what", "is"), rows)
    _show(table, subject=setting.key, summary=setting.about, file=file, scope=scope)


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
@_OUTPUT
def validate(file: Path, output: str) -> None:
    """Print all errors of a settings file, one per line, or that it is valid.

    The exit code is 0 if the file is valid, else 1.
    """
    content, problems = read_file(file)
    parsed = ParsedFile((), problems) if content is None else parse_file(content, SETTINGS)
    settings = len({rule.setting for rule in parsed.rules})
    if Output(output) is Output.JSON:
        reported = [{"line": problem.line, "message": problem.message} for problem in parsed.problems]
        found = {
            "file": str(file),
            "is_valid": not reported,
            "problems": reported,
            "without_effect": parsed.without_effect,
        }
        click.echo(json.dumps(found, indent=2))
    elif parsed.problems:
        for line, message in parsed.problems:
            click.echo(f"{file}:{line or 1}: {message}")
    else:
        click.echo(f"{file}: valid. It sets {len(parsed.rules)} values of {settings} settings.")
        if parsed.without_effect:
            click.echo(f"Settings without effect here (see docs/settings.md): {', '.join(parsed.without_effect)}")
    if parsed.problems:
        sys.exit(EXIT_PROBLEMS)


@config.command()
def docs() -> None:
    """Print the reference of all settings, which is docs/settings.md."""
    click.echo(reference(), nl=False)


def _scope(namespace: str | None, task_queue: str | None, task_type: str | None) -> Scope:
    return Scope(namespace, task_queue, TaskType[task_type.upper()] if task_type else None)


def _contains(setting: Setting[Any], text: str) -> bool:
    return any(text.lower() in place.lower() for place in (*setting.spellings, setting.about))


def _row(settings: DynamicSettings, setting: Setting[Any], scope: Scope) -> tuple[str, str, str, str, str]:
    """Return the setting as a table row."""
    value, default = (as_text(setting.kind.plain(each)) for each in (settings.get(setting, scope), setting.default))
    return setting.key, value, _source(settings, setting, scope), default, setting.about


def _described(settings: DynamicSettings, setting: Setting[Any], scope: Scope) -> dict[str, Plain]:
    """Return all facts about the setting, for JSON."""
    rule = settings.rule(setting, scope)
    return {
        "key": setting.key,
        "value": setting.kind.plain(settings.get(setting, scope)),
        "from": _source(settings, setting, scope),
        "constraints": None if rule is None or rule.within == EVERYWHERE else str(rule.within),
        "default": setting.kind.plain(setting.default),
        "type": setting.kind.name,
        "allowed": setting.kind.bounds,
        "scope": setting.reach.words,
        "also_spelled": list(setting.aliases),
        "not_above": setting.not_above.key if setting.not_above else None,
        "deviation": setting.deviation,
        "about": setting.about,
    }


def _source(settings: DynamicSettings, setting: Setting[Any], scope: Scope) -> str:
    rule = settings.rule(setting, scope)
    if rule is None:
        return "default"
    return "command line" if rule.line is None else f"line {rule.line}"


def _show(table: Table, *, subject: str, summary: str, file: Path | None, scope: Scope) -> None:
    parameters = {"file": str(file) if file else None, "scope": str(scope)}
    show(Report(subject, summary, parameters, [table]), output=Output.TABLE, plot=None)
