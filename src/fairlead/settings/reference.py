"""The reference of all settings, as docs/settings.md holds it."""

from fairlead.settings.catalogue import SETTINGS
from fairlead.settings.declaration import Setting
from fairlead.settings.kinds import Plain, as_text

_HEAD = """\
# Dynamic settings

<!-- Written by `fairlead config docs`: change the declarations in src/fairlead/settings, then run it again. -->

These settings can be changed while the server runs. They are read from a YAML file in Temporal's shape:

```yaml
matching.numTasklistReadPartitions:
  - value: 4
  - value: 16
    constraints: {namespace: orders, taskQueueName: checkout, taskType: activity}
matching.spreadRoutingBatchSize:
  - value: {old: 0, new: 8, start: 2026-11-15T20:00:00Z, end: 2026-11-15T21:00:00Z}
```

- Keys may be in any case of letters, and under any of their spellings. Two spellings that say different things are
  refused.
- A constraint is `namespace` (or `domainName`), `taskQueueName` (or `taskListName`) or `taskType`: `workflow` (1),
  `activity` (2) or `nexus` (3). Beside one of Cadence's names a number is refused: Cadence counts otherwise.
- Of the values whose constraints all fit, the first of this order is in force: namespace, task list and type; namespace
  and task list; task list and type; task list; namespace and type; namespace; type; none. Temporal's order is the same,
  but for those that end in "and type" without both of the others, and for the type alone: there, these have no effect.
- A setting of scope *global* takes no constraint, one of scope *namespace* only that.
- A duration is a text like `10s`, `200ms` or `1m30s` (`d`, `h`, `m`, `s`, `ms`, `us`, `ns`), or a number of seconds.
- A file may have 1 MiB, one document and no aliases. If anything in it is wrong, none of it is used: the server says
  what, with lines, and keeps the last good one, also when the file is gone. Replace it by renaming a new one over it.
- `--dynamic-config-value KEY=JSON` comes before all that the file says about its setting.

`fairlead config validate FILE` tells all that is wrong with a file, `fairlead config list` what is in force and why.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *(_section(setting) for setting in SETTINGS)])


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
