"""Which of several values of a setting is in force: the most specific that fits.

A rule may be constrained to a task list's name, a namespace and a task type. Of the rules that fit, one with a task
list's name comes before one without; then one with a namespace; then one with a type:

1. namespace, task list and type
2. namespace and task list
3. task list and type
4. task list, in all namespaces
5. namespace and type
6. namespace
7. type
8. no constraint

Lines 1, 2, 4, 6 and 8 are Temporal's order. The others never fit in Temporal's server, where a value with such
constraints is silently without effect; here they take the place that the order gives them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.core.partitions import TaskType
from fairlead.settings.declaration import Setting

T = TypeVar("T")


class Scope(NamedTuple):
    """Where a value is asked for, or where a rule holds; None is "any" in a rule, and "none" in a question.

    `task_list` is the name that users know, not a partition's own.
    """

    namespace: str | None = None
    task_list: str | None = None
    type: TaskType | None = None

    def __str__(self) -> str:
        parts = (
            ("namespace", self.namespace),
            ("taskQueueName", self.task_list),
            ("taskType", self.type.name.lower() if self.type else None),
        )
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None) or "everywhere"


EVERYWHERE = Scope()


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One value of a setting, where it holds, and where it was written: a line of a file, or None."""

    setting: Setting[T]
    within: Scope
    value: T
    line: int | None = None


class _Shape(NamedTuple):
    """Which constraints a rule has, in the order in which they count."""

    task_list: bool
    namespace: bool
    type: bool


class RuleSet:
    """The rules in force, at most one for each setting and constraint; never changed once made."""

    def __init__(self, rules: Iterable[Rule[Any]] = ()) -> None:
        self._rules: dict[Setting[Any], dict[Scope, Rule[Any]]] = {}
        for rule in rules:
            self._rules.setdefault(rule.setting, {})[rule.within] = rule
        self._shapes = {
            setting: sorted({_shape_of(within) for within in by_scope}, reverse=True)
            for setting, by_scope in self._rules.items()
        }

    def __iter__(self) -> Iterator[Rule[Any]]:
        for by_scope in self._rules.values():
            yield from by_scope.values()

    def has_constraints(self, setting: Setting[Any]) -> bool:
        """Whether the value of the setting depends on where it is asked for."""
        return any(any(shape) for shape in self._shapes.get(setting, ()))

    def values(self, setting: Setting[T]) -> dict[Scope, T]:
        """All that the rules say about a setting, wherever it was written."""
        return {within: rule.value for within, rule in self._rules.get(setting, {}).items()}

    def find(self, setting: Setting[T], scope: Scope) -> Rule[T] | None:
        """The rule in force for this scope, or None if the default is."""
        for shape in self._shapes.get(setting, ()):
            within = Scope(
                namespace=scope.namespace if shape.namespace else None,
                task_list=scope.task_list if shape.task_list else None,
                type=scope.type if shape.type else None,
            )
            # A scope without a namespace, say, fits no rule that demands one.
            rule = self._rules[setting].get(within) if _shape_of(within) == shape else None
            if rule is not None:
                return rule
        return None

    def value(self, setting: Setting[T], scope: Scope) -> T:
        """What is in force for this scope."""
        rule = self.find(setting, scope)
        return setting.default if rule is None else rule.value


def _shape_of(within: Scope) -> _Shape:
    return _Shape(within.task_list is not None, within.namespace is not None, within.type is not None)
