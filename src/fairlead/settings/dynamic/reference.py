"""Generates the reference of all settings, docs/settings.md."""

from collections.abc import Iterator

from fairlead.settings.dynamic.catalogue import SETTINGS
from fairlead.settings.dynamic.declaration import Setting
from fairlead.settings.dynamic.kinds import Plain, as_text

_HEAD = """\
# Dynamic settings

<!-- Written by `fairlead config docs`: change the declarations in src/fairlead/settings, then run it again. -->

These settings can be changed while the server runs. They are read from a YAML file in Temporal's format:

```yaml
matching.numTasklistReadPartitions:
  - value: 4
  - value: 16
    constraints: {namespace: orders, taskQueueName: checkout, taskType: activity}
matching.spreadRoutingBatchSize:
  - value: {old: 0, new: 8, start: 2026-11-15T20:00:00Z, end: 2026-11-15T21:00:00Z}
```

- Keys are case-insensitive, and every spelling of a key is accepted. Two spellings of a key with different values are
  an error.
- A constraint is `namespace` (or `domainName`), `taskQueueName` (or `taskListName`) or `taskType`: `workflow` (1),
  `activity` (2) or `nexus` (3). Beside one of Cadence's names a number is an error: Cadence counts types from 0.
- `namespace` is the namespace's name or its id; if both have a value, the value for the id is in force. For clients
  of matching alone, a namespace is any string, which is both name and id. Task queues of a worker version use the
  settings of their namespace.
- If the constraints of several values match, the first in this order is in force: namespace, task queue and type;
  namespace and task queue; task queue and type; task queue; namespace and type; namespace; type; no constraint.
  Temporal's order is the same, but its server ignores three of these: task queue and type, namespace and type, and
  type alone.
- A setting of scope *global* takes no constraint, one of scope *namespace* only the namespace.
- A duration is a text like `10s`, `200ms` or `1m30s` (`d`, `h`, `m`, `s`, `ms`, `us`, `ns`), or a number of seconds.
- A file has at most 1 MiB, one document and no aliases. If a file has an error, the server uses none of it: it logs
  the errors with their lines and keeps the last good settings; it also keeps them if the file is missing. Replace the
  file by renaming a new one over it.
- `--dynamic-config-value KEY=JSON` overrides all values of its setting in the file.

`fairlead config validate FILE` shows all errors of a file; `fairlead config list` shows the values in force and their
origin.
"""


_WITHOUT_EFFECT = """\
# Settings of Temporal's server without effect

A file may have these keys of Temporal's server, with any value: they are ignored. The server logs the ignored keys in
one line when it starts.

| why | keys |
|---|---|"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(setting) for setting in SETTINGS), _WITHOUT_EFFECT, *_reasons(), ""])


def _reasons() -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for key, reason in SETTINGS.without_effect.items():
        by_reason.setdefault(reason, []).append(key)
    for reason, keys in by_reason.items():
        yield f"| {reason} | {', '.join(f'`{key}`' for key in keys)} |"


def _section(setting: Setting[object]) -> str:
    plain: Plain = setting.kind.plain(setting.default)
    lines = [f"## `{setting.key}`", "", setting.about, ""]
    kind = f"{setting.kind.name}, {setting.kind.bounds}" if setting.kind.bounds else setting.kind.name
    lines.append(f"- {kind}; default `{as_text(plain)}`; scope {setting.reach.words}")
    lines += [f"- also spelled `{alias}`" for alias in setting.aliases]
    if setting.not_above is not None:
        lines.append(f"- not above `{setting.not_above.key}`")
    if setting.deviation:
        lines.append(f"- {setting.deviation}")
    return "\n".join([*lines, ""])
