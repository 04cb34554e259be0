"""A settings file in Temporal's shape, read into rules.

    matching.numTasklistReadPartitions:
      - value: 4
      - value: 16
        constraints: {namespace: orders, taskQueueName: checkout, taskType: activity}

Keys and the names of constraints may be in any case of letters. `domainName` and `taskListName` are Cadence's names for
`namespace` and `taskQueueName`. All that is wrong with a file is told at once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import yaml

from fairlead.core.errors import FixRequest
from fairlead.core.partitions import NAME_CHARACTERS_MAX, TaskType, check_user_name
from fairlead.settings.declaration import Reach, Setting
from fairlead.settings.document import Unreadable, entries_of, line_of, plain_of, read_document
from fairlead.settings.kinds import Plain
from fairlead.settings.problem import InvalidValue, Problem, UnknownSetting
from fairlead.settings.registry import Registry, shortened
from fairlead.settings.rules import EVERYWHERE, Rule, RuleSet, Scope

# Whoever has mended these runs it again. More would only cost time on a file that is no settings file at all.
PROBLEMS_MAX = 100

_NAMES_OF_CONSTRAINTS = {
    "namespace": "namespace",
    "domainname": "namespace",
    "taskqueuename": "task_list",
    "tasklistname": "task_list",
    "tasktype": "type",
}
_CADENCE_NAMES = {"domainname", "tasklistname"}
_TYPES = {"workflow": TaskType.WORKFLOW, "decision": TaskType.WORKFLOW} | {
    task_type.name.lower(): task_type for task_type in TaskType
}
_REACH_NEEDED = {"namespace": Reach.NAMESPACE, "task_list": Reach.TASK_LIST, "type": Reach.TASK_LIST}


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """What a file says, and all that is wrong with it; the rules are to be used only if nothing is."""

    rules: tuple[Rule[Any], ...]
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class _Reader:
    """Collects rules and problems on the way through one file."""

    registry: Registry
    rules: dict[Setting[Any], tuple[str, dict[Scope, Rule[Any]]]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def complain(self, node: yaml.Node | None, message: str) -> None:
        self.problems.append(Problem(None if node is None else line_of(node), message))
        if len(self.problems) == PROBLEMS_MAX:
            self.problems.append(Problem(None, f"these are the first {PROBLEMS_MAX} problems: there may be more"))
            raise _Enough

    def read(self, root: yaml.Node | None) -> None:
        """All keys of the file, in its order."""
        if root is None or (isinstance(root, yaml.ScalarNode) and plain_of(root) is None):
            return
        if not isinstance(root, yaml.MappingNode):
            self.complain(root, "the file is no mapping of keys to values")
            return
        seen: set[str] = set()
        for key, values in root.value:
            if not isinstance(key, yaml.ScalarNode):
                self.complain(key, "a key is no text")
                continue
            name = str(key.value)
            if name in seen:
                self.complain(key, f"{shortened(name)} is given twice: keep one")
                continue
            seen.add(name)
            try:
                setting = self.registry.find(name)
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
                self.complain(key, f"{spelling} is another spelling of {other}, which says something else: keep one")
        self.rules.setdefault(setting, (spelling, rules))

    def _read_entry(self, spelling: str, setting: Setting[Any], entry: yaml.Node) -> Rule[Any] | None:
        """One item of a key's list; None where something was wrong with it."""
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
        """The scope that the constraints describe, as far as they are right."""
        if node is None or (isinstance(node, yaml.ScalarNode) and plain_of(node) is None):
            return EVERYWHERE
        try:
            if not isinstance(node, yaml.MappingNode):
                raise InvalidValue("are no mapping of names to values")  # noqa: TRY301 - told like the rest
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
                    raise InvalidValue("is a second name of a constraint that is given: keep one")
                found[part] = _parse_constraint(part, plain_of(value_node), has_cadence_names)
            except FixRequest as wrong:
                self.complain(name_node, f"{spelling}: the constraint {shortened(name)} {wrong}")
        return Scope(**found)


class _Enough(Exception):
    """No more problems are collected."""


def parse_file(content: bytes, registry: Registry, overrides: Sequence[Rule[Any]] = ()) -> ParsedFile:
    """Read a settings file, as far as it can be read, and tell all that is wrong with it.

    The rules of `overrides` take the place of all that the file says about their settings.
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
    return ParsedFile(rules, tuple(sorted(problems, key=lambda problem: problem.line or 0)))


def _contradictions(rules: RuleSet, registry: Registry) -> list[Problem]:
    """Where a setting exceeds the one that it must not exceed, in any scope that a rule of either names."""
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
        raise InvalidValue("is no mapping: write `value: ...` and, if need be, `constraints: ...`")
    parts = entries_of(entry)
    if not {"value"} <= set(parts) <= {"value", "constraints"}:
        given = ", ".join(shortened(name) for name in list(parts)[:5]) or "nothing"
        raise InvalidValue(f"has {given}: give it a value and, if need be, constraints, and nothing else")
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
        raise InvalidValue(f"is {_shown(raw)}, no text: put it in quotes")
    if part == "task_list":
        return check_user_name(raw)
    if not 0 < len(raw) <= NAME_CHARACTERS_MAX:
        raise InvalidValue(f"has {len(raw)} characters: give 1 to {NAME_CHARACTERS_MAX}")
    return raw


def _parse_type(raw: Plain, has_cadence_names: bool) -> TaskType:  # noqa: FBT001 - private
    """A name, or one of Temporal's numbers. Cadence counts from 0, so beside its names a number could mean either."""
    if isinstance(raw, str):
        known = _TYPES.get(raw.lower().removeprefix("task_queue_type_"))
        if known is not None:
            return known
    elif raw in tuple(TaskType) and isinstance(raw, int) and not isinstance(raw, bool):
        if has_cadence_names:
            raise InvalidValue("is a number, which means another type in Cadence than in Temporal: write its name")
        return TaskType(raw)
    raise InvalidValue(f"is {_shown(raw)}: use workflow (1), activity (2) or nexus (3)")


def _shown(raw: Plain) -> str:
    """A value for a message: short, whatever it is."""
    if isinstance(raw, list):
        return "a list"
    if isinstance(raw, dict):
        return "a mapping"
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) >= 10**100:
        return "a huge number"
    return shortened(raw) if isinstance(raw, str) else json.dumps(raw)
