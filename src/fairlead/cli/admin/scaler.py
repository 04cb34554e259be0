"""`fairlead admin scaler explain`: the adaptive scaler's decisions on a task queue, with their reasons."""

import re
from datetime import UTC, datetime

from fairlead.cli.admin.cluster import Cluster
from fairlead.cli.admin.command import admin, asks, choose_task_queue
from fairlead.cli.admin.tasklist import parameters_of, plain_config
from fairlead.core.partitions import PartitionConfig, TaskQueueId
from fairlead.matching.messages import DecisionInfo, ExplainResponse
from fairlead.matching.root.decisions import BY_HAND
from fairlead.report import Cell, DualCell, Report, Table

# Minimum number of seconds that is shown without tenths.
SECONDS_WHOLE_MIN = 10.0
_SECONDS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?(?:e[+-]\d+)?) s\b")


@admin.group(no_args_is_help=True)
def scaler() -> None:
    """Show the adaptive scaler, which adjusts the number of partitions to the load."""


@asks(scaler, "explain")
@choose_task_queue
async def explain(cluster: Cluster, task_queue: TaskQueueId) -> Report:
    """Show the scaler's latest decision with its reason and thresholds, then the latest changes.

    A partition that is behind has not acknowledged the current version of the configuration: the scaler sends the
    version again until the partition acknowledges it, and does not remove the partition before that.

    \b
    fairlead admin scaler explain --tasklist checkout --tasklisttype activity
    """
    answer = await cluster.explain(task_queue)
    return explain_report(cluster.shown(task_queue), answer)


def explain_report(task_queue: TaskQueueId, answer: ExplainResponse) -> Report:
    """Return a report on the scaler's decisions."""
    config, latest = answer.config, answer.latest
    if answer.waits_for:
        summary = f"on, but waiting: {answer.waits_for}"
    elif latest is not None:
        summary = with_round_seconds(latest.reason)
    elif answer.enabled:
        summary = "on, but has not decided since the root was loaded"
    else:
        summary = "off: matching.enableAdaptiveScaler is false for this task queue"
    changes = [_change_row(change) for change in reversed(answer.changes)]
    behind = [
        (number, answer.acknowledged.get(number), config.version)
        for number in range(1, config.read)
        if answer.acknowledged.get(number, -1) < config.version
    ]
    everyone = "" if behind else f"All partitions use version {config.version}."
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
    return Report("scaler", summary, parameters_of(task_queue), tables)


def _facts(answer: ExplainResponse) -> list[tuple[str, str]]:
    state = "on" if answer.enabled else "on, waits" if answer.waits_for else "off"
    facts = [("scaler", state), ("configuration", _config(answer.config))]
    latest = answer.latest
    if latest is not None:
        facts += [
            ("decided at", _moment(latest.at_s)),
            ("action", latest.action),
            ("tasks per second", f"{latest.qps:,.1f}"),
            ("adds partitions above", f"{latest.upscale_threshold_qps:,.1f} per second"),
            ("removes partitions below", f"{latest.downscale_threshold_qps:,.1f} per second"),
        ]
    return facts


def _plain_facts(answer: ExplainResponse) -> dict[str, object]:
    """Return the facts for JSON, with all keys always present."""
    latest = answer.latest
    return {
        "is_enabled": answer.enabled,
        "waits_for": answer.waits_for,
        "configuration": plain_config(answer.config),
        "decided_at": latest and _moment(latest.at_s),
        "action": latest and latest.action,
        "qps": latest and latest.qps,
        "upscale_threshold_qps": latest and latest.upscale_threshold_qps,
        "downscale_threshold_qps": latest and latest.downscale_threshold_qps,
    }


def _change_row(change: DecisionInfo) -> tuple[Cell, ...]:
    # A manual change does not depend on the load.
    qps = None if change.action == BY_HAND else change.qps
    before, after = (DualCell(_config(config), plain_config(config)) for config in (change.before, change.after))
    return _moment(change.at_s), change.action, before, after, qps, with_round_seconds(change.reason)


def with_round_seconds(reason: str) -> str:
    """Round the seconds in the scaler's reason: 44.9998 s becomes 45 s."""
    return _SECONDS.sub(lambda found: f"{_rounded(float(found[1])):,} s", reason)


def _rounded(seconds: float) -> float:
    tenths = round(seconds, 1)
    return round(seconds) if seconds >= SECONDS_WHOLE_MIN or tenths.is_integer() else tenths


def _config(config: PartitionConfig) -> str:
    return f"read {config.read}, write {config.write} (v{config.version})"


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
