"""Reads a settings file in Temporal's format into rules.

    matching.numTasklistReadPartitions:
      - value: 4
      - value: 16
        constraints: {namespace: orders, taskQueueName: checkout, taskType: activity}

Keys and names of constraints are case-insensitive. `domainName` and `taskListName` are Cadence's names for `namespace`
and `taskQueueName`. The reader reports all errors of a file at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import NAME_CHARACTERS_MAX, TaskType, check_user_name
from fairlead.settings.document import Unreadable, entries_of, line_of, plain_of, read_document
from fairlead.settings.dynamic.declaration import Reach, Setting
from fairlead.settings.dynamic.kinds import Plain
from fairlead.settings.dynamic.registry import Registry, shortened
from fairlead.settings.dynamic.rules import EVERYWHERE, Rule, RuleSet, Scope
from fairlead.settings.problem import InvalidValue, Problem, SettingWithoutEffect, UnknownSetting

if TYPE_CHECKING:
    import yaml
else:
    from fairlead.settings.lazy_yaml import yaml

# Errors reported for one file; a file with more is probably not a settings file, and collecting them takes time.
PROBLEMS_MAX = 100

_NAMES_OF_CONSTRAINTS = {
    "namespace": "namespace",
    "domainname": "namespace",
    "taskqueuename": "task_queue",
    "tasklistname": "task_queue",
    "tasktype": "type",
}
_CADENCE_NAMES = {"domainname", "tasklistname"}
_TYPES = {"workflow": TaskType.WORKFLOW, "decision": TaskType.WORKFLOW} | {
    task_type.name.lower(): task_type for task_type in TaskType
}
_REACH_NEEDED = {"namespace": Reach.NAMESPACE, "task_queue": Reach.TASK_QUEUE, "type": Reach.TASK_QUEUE}


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """Rules and errors of a file; the rules may be used only if there are no errors.

    `without_effect` are the keys of Temporal's server in the file that have no effect here.
    """

    rules: tuple[Rule[Any], ...]
    problems: tuple[Problem, ...]
    without_effect: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reader:
    """Reads one file; collects its rules and errors."""

    registry: Registry
    rules: dict[Setting[Any], tuple[str, dict[Scope, Rule[Any]]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)

    def complain(self, node: yaml.Node | None, message: str) -> None:
        self.problems.append(Problem(None if node is None else line_of(node), message))
        if len(self.problems) == PROBLEMS_MAX:
            self.problems.append(Problem(None, f"these are the first {PROBLEMS_MAX} problems: there may be more"))
            raise _Enough

    def read(self, root: yaml.Node | None) -> None:
        """Read all keys, in the order of the file."""
        if root is None or (isinstance(root, yaml.ScalarNode) and plain_of(root) is None):
            return
        if not isinstance(root, yaml.MappingNode):
            self.complain(root, "the file is not a mapping of keys to values")
            return
        seen: set[str] = set()
        for key, values in root.value:
            if not isinstance(key, yaml.ScalarNode):
                self.complain(key, "a key is not text")
                continue
            name = str(key.value)
            if name in seen:
                self.complain(key, f"{shortened(name)} is given twice: keep one")
                continue
            seen.add(name)
            try:
                setting = self.registry.find(name)
            except SettingWithoutEffect:
                self.without_effect.append(name)
            except UnknownSetting as unknown:
                self.complain(key, str(unknown))
            else:
                self._read_setting(key, setting, values)

    def _read_setting(self, key: yaml.Node, setting: Setting[Any], values: yaml.Node) -> None:
        spelling = str(key.value)
        if not isinstance(values, yaml.SequenceNode):
            self.complain(values, f"{spelling} has no list of values: write `- value: ...` below it")
            return
        complaints = len(self.problems)
        rules: dict[Scope, Rule[Any]] = {}
        for entry in values.value:
            rule = self._read_entry(spelling, setting, entry)
            if rule is not None and rule.within in rules:
                first = rules[rule.within].line
                self.complain(entry, f"{spelling}: the constraints ({rule.within}) were given on line {first}")
            elif rule is not None:
                rules[rule.within] = rule
        if setting in self.rules and complaints == len(self.problems):
            other, known = self.rules[setting]
            if {scope: rule.value for scope, rule in known.items()} != {s: rule.value for s, rule in rules.items()}:
                self.complain(key, f"{spelling} is another spelling of {other}, which has other values: keep one")
        self.rules.setdefault(setting, (spelling, rules))

    def _read_entry(self, spelling: str, setting: Setting[Any], entry: yaml.Node) -> Rule[Any] | None:
        """Read one item of a key's list; None if it has an error."""
        try:
            parts = _parts_of(entry)
        except InvalidValue as wrong:
            self.complain(entry, f"{spelling}: an entry {wrong}")
            return None
        complaints = len(self.problems)
        _, constraints = parts.get("constraints", (None, None))
        within = self._read_constraints(spelling, setting, constraints)
        _, node = parts["value"]
        shown = "the value"
        try:
            raw = plain_of(node)
            shown = _shown(raw)
            value = setting.kind.parse(raw)
        except InvalidValue as wrong:
            where = "" if within == EVERYWHERE else f" for {within}"
            self.complain(node, f"{spelling}{where}: {shown} {wrong}")
            return None
        return Rule(setting, within, value, line_of(entry)) if complaints == len(self.problems) else None

    def _read_constraints(self, spelling: str, setting: Setting[Any], node: yaml.Node | None) -> Scope:
        """Read the constraints into a scope, leaving out invalid ones."""
        if node is None or (isinstance(node, yaml.ScalarNode) and plain_of(node) is None):
            return EVERYWHERE
        try:
            if not isinstance(node, yaml.MappingNode):
                raise InvalidValue("are not a mapping of names to values")  # noqa: TRY301 - reported like the rest
            entries = entries_of(node)
        except InvalidValue as wrong:
            self.complain(node, f"{spelling}: the constraints {wrong}")
            return EVERYWHERE
        has_cadence_names = any(name.lower() in _CADENCE_NAMES for name in entries)
        found: dict[str, Any] = {}
        for name, (name_node, value_node) in entries.items():
            try:
                part = _constraint_of(name, setting)
                if part in found:
                    raise InvalidValue("is a second name of a given constraint: keep one")
                found[part] = _parse_constraint(part, plain_of(value_node), has_cadence_names)
            except FixRequest as wrong:
                self.complain(name_node, f"{spelling}: the constraint {shortened(name)} {wrong}")
        return Scope(**found)


class _Enough(Exception):
    """Raised to stop reading after PROBLEMS_MAX errors."""


def parse_file(content: bytes, registry: Registry, overrides: Sequence[Rule[Any]] = ()) -> ParsedFile:
    """Read a settings file, as far as possible, and collect all its errors.

    The rules of `overrides` replace all rules of the file for the same settings.
    """
    reader = _Reader(registry)
    try:
        reader.read(read_document(content))
    except Unreadable as wrong:
        return ParsedFile((), (wrong.problem,))
    except _Enough:
        return ParsedFile((), tuple(reader.problems))
    overridden = {rule.setting for rule in overrides}
    kept = (by_scope.values() for setting, (_, by_scope) in reader.rules.items() if setting not in overridden)
    rules = (*chain.from_iterable(kept), *overrides)
    problems = reader.problems or _contradictions(RuleSet(rules), registry)
    ordered = tuple(sorted(problems, key=lambda problem: problem.line or 0))
    return ParsedFile(rules, ordered, tuple(reader.without_effect))


def _contradictions(rules: RuleSet, registry: Registry) -> list[Problem]:
    """Find scopes in which a setting exceeds its `not_above` setting; checks every scope that a rule of either has."""
    problems = []
    for lower in registry:
        upper = lower.not_above
        if upper is None:
            continue
        for scope in sorted(rules.values(lower).keys() | rules.values(upper).keys(), key=str):
            low, high = rules.value(lower, scope), rules.value(upper, scope)
            if low > high:
                found = rules.find(lower, scope) or rules.find(upper, scope)
                line = None if found is None else found.line
                shown = f"{lower.key} is {lower.kind.plain(low)}", f"{upper.key}, which is {upper.kind.plain(high)}"
                problems.append(Problem(line, f"{shown[0]} ({scope}), above {shown[1]}"))
    return problems


def _parts_of(entry: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    if not isinstance(entry, yaml.MappingNode):
        raise InvalidValue("is not a mapping: write `value: ...` and, if needed, `constraints: ...`")
    parts = entries_of(entry)
    if not {"value"} <= set(parts) <= {"value", "constraints"}:
        given = ", ".join(shortened(name) for name in list(parts)[:5]) or "nothing"
        raise InvalidValue(f"has {given}: give a value and, if needed, constraints, and nothing else")
    return parts


def _constraint_of(name: str, setting: Setting[Any]) -> str:
    part = _NAMES_OF_CONSTRAINTS.get(name.lower())
    if part is None:
        raise InvalidValue("is unknown: use namespace, taskQueueName or taskType")
    if setting.reach < _REACH_NEEDED[part]:
        raise InvalidValue(f"can't be used here: the setting's scope is {setting.reach.words}")
    return part


def _parse_constraint(part: str, raw: Plain, has_cadence_names: bool) -> str | TaskType:  # noqa: FBT001 - private
    if part == "type":
        return _parse_type(raw, has_cadence_names)
    if not isinstance(raw, str):
        raise InvalidValue(f"is {_shown(raw)}, not text: put it in quotes")
    if part == "task_queue":
        return check_user_name(raw)
    if not 0 < len(raw) <= NAME_CHARACTERS_MAX:
        raise InvalidValue(f"has {len(raw)} characters: give 1 to {NAME_CHARACTERS_MAX}")
    return raw


def _parse_type(raw: Plain, has_cadence_names: bool) -> TaskType:  # noqa: FBT001 - private
    """Parse a task type: a name, or Temporal's number.

    A number is an error beside a constraint with a name of Cadence's: Cadence counts types from 0, so the number would
    be ambiguous.
    """
    if isinstance(raw, str):
        known = _TYPES.get(raw.lower().removeprefix("task_queue_type_"))
        if known is not None:
            return known
    elif raw in tuple(TaskType) and isinstance(raw, int) and not isinstance(raw, bool):
        if has_cadence_names:
            raise InvalidValue(
                "is a number, which stands for different types in Cadence and in Temporal: write the type's name"
            )
        return TaskType(raw)
    raise InvalidValue(f"is {_shown(raw)}: use workflow (1), activity (2) or nexus (3)")


def _shown(raw: Plain) -> str:
    """Short form of a value, for messages."""
    if isinstance(raw, list):
        return "a list"
    if isinstance(raw, dict):
        return "a mapping"
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) >= 10**100:
        return "a huge number"
    return shortened(raw) if isinstance(raw, str) else json.dumps(raw)
