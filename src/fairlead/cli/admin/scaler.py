"""`fairlead admin scaler explain`: what the adaptive scaler decided about a task list, and why."""

import re
from datetime import UTC, datetime

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import admin, asks, choose_task_list
from fairlead.cli.admin.tasklist import parameters_of, plain_config
from fairlead.cli.report import Cell, Report, Table, Told
from fairlead.core.partitions import PartitionConfig, TaskList
from fairlead.matching.decisions import BY_HAND
from fairlead.matching.messages import DecisionInfo, ExplainAnswer

# Of a longer time nobody wants to know the tenths.
SECONDS_WHOLE_MIN = 10.0
_SECONDS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]\d+)?) s\b")


@admin.group(no_args_is_help=True)
def scaler() -> None:
    """Look at the adaptive scaler, which makes the number of partitions follow the load."""


@asks(scaler, "explain")
@choose_task_list
async def explain(cluster: Cluster, task_list: TaskList) -> Report:
    """Show the scaler's latest decision with its reason and thresholds, then the latest changes.

    A partition that is behind has not acknowledged the version in force yet: it is told again until it does, and is
    not taken away before.

    \b
    fairlead admin scaler explain --tasklist checkout --tasklisttype activity
    """
    return explain_report(task_list, await cluster.explain(task_list))


def explain_report(task_list: TaskList, answer: ExplainAnswer) -> Report:
    """The scaler's word on a task list."""
    config, latest = answer.config, answer.latest
    if latest is not None:
        summary = with_round_seconds(latest.reason)
    elif answer.enabled:
        summary = "it is on, and has not decided anything yet since the root was loaded"
    else:
        summary = "it is off: matching.enableAdaptiveScaler is false for this task list"
    changes = [_change_row(change) for change in reversed(answer.changes)]
    behind = [
        (number, answer.acknowledged.get(number), config.version)
        for number in range(1, config.read)
        if answer.acknowledged.get(number, -1) < config.version
    ]
    everyone = "" if behind else f"All partitions go by version {config.version}."
    tables = [
        Table("latest", "Latest decision", ("what", "is"), _facts(answer), plain=_plain_facts(answer)),
        Table(
            "changes",
            "Changes, the newest first",
            ("at", "action", "before", "after", "qps", "reason"),
            changes,
            note="" if changes else "None since the root was loaded.",
        ),
        Table("behind", "Not acknowledged yet", ("partition", "acknowledged", "in_force"), behind, note=everyone),
    ]
    return Report("scaler", summary, parameters_of(task_list), tables)


def _facts(answer: ExplainAnswer) -> list[tuple[str, str]]:
    facts = [("scaler", "on" if answer.enabled else "off"), ("configuration", _config(answer.config))]
    latest = answer.latest
    if latest is not None:
        facts += [
            ("decided at", _moment(latest.at_s)),
            ("action", latest.action),
            ("tasks a second", f"{latest.qps:,.1f}"),
            ("adds partitions above", f"{latest.upscale_threshold_qps:,.1f} a second"),
            ("takes away below", f"{latest.downscale_threshold_qps:,.1f} a second"),
        ]
    return facts


def _plain_facts(answer: ExplainAnswer) -> dict[str, object]:
    """The facts for programs: all keys are always there."""
    latest = answer.latest
    return {
        "is_enabled": answer.enabled,
        "configuration": plain_config(answer.config),
        "decided_at": latest and _moment(latest.at_s),
        "action": latest and latest.action,
        "qps": latest and latest.qps,
        "upscale_threshold_qps": latest and latest.upscale_threshold_qps,
        "downscale_threshold_qps": latest and latest.downscale_threshold_qps,
    }


def _change_row(change: DecisionInfo) -> tuple[Cell, ...]:
    # The load played no part in what was done by hand.
    qps = None if change.action == BY_HAND else change.qps
    before, after = (Told(_config(config), plain_config(config)) for config in (change.before, change.after))
    return _moment(change.at_s), change.action, before, after, qps, with_round_seconds(change.reason)


def with_round_seconds(reason: str) -> str:
    """The scaler's reason without digits of its clock that mean nothing: 44.9998 s are 45 s."""
    return _SECONDS.sub(lambda found: f"{_rounded(float(found[1])):,} s", reason)


def _rounded(seconds: float) -> float:
    tenths = round(seconds, 1)
    return round(seconds) if seconds >= SECONDS_WHOLE_MIN or tenths.is_integer() else tenths


def _config(config: PartitionConfig) -> str:
    return f"read {config.read}, write {config.write} (v{config.version})"


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
