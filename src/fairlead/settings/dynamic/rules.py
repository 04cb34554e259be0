"""Rules of settings: if several rules match, the most specific one is in force.

A rule may be constrained to a task queue's name, a namespace and a task type. A matching rule with a task queue's name
comes before one without; then one with a namespace before one without; then one with a type:

1. namespace, task queue and type
2. namespace and task queue
3. task queue and type
4. task queue, in all namespaces
5. namespace and type
6. namespace
7. type
8. no constraint

A rule gives a namespace by its name or its id. If two rules differ only in that, the rule with the id is in force.

Temporal's server has the order of lines 1, 2, 4, 6 and 8. It silently ignores values with the constraints of the other
lines; here they apply in this order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fairlead.core.partitions import TaskType
from fairlead.settings.dynamic.declaration import Setting

T = TypeVar("T")


class Scope(NamedTuple):
    """The scope of a rule, or of a lookup; None means "any" in a rule, and "not given" in a lookup.

    `namespace` is an id in a lookup, and an id or a name in a rule. `task_queue` is the name of the task queue, not of
    a partition.
    """

    namespace: str | None = None
    task_queue: str | None = None
    type: TaskType | None = None

    def __str__(self) -> str:
        parts = (
            ("namespace", self.namespace),
            ("taskQueueName", self.task_queue),
            ("taskType", self.type.name.lower() if self.type else None),
        )
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None) or "everywhere"


EVERYWHERE = Scope()


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """One value of a setting, its scope, and its line in the file, None if it has no line."""

    setting: Setting[T]
    within: Scope
    value: T
    line: int | None = None


class _Shape(NamedTuple):
    """The constraints that a rule has, without their values, in the order of precedence."""

    task_queue: bool
    namespace: bool
    type: bool


class RuleSet:
    """Immutable set of rules, at most one for each setting and scope."""

    def __init__(self, rules: Iterable[Rule[Any]] = ()) -> None:
        self._rules: dict[Setting[Any], dict[Scope, Rule[Any]]] = {}
        for rule in rules:
            self._rules.setdefault(rule.setting, {})[rule.within] = rule
        self._shapes = {
            setting: sorted({_shape_of(within) for within in by_scope}, reverse=True)
            for setting, by_scope in self._rules.items()
        }
        self._namespaces = {within.namespace for by_scope in self._rules.values() for within in by_scope}

    def __iter__(self) -> Iterator[Rule[Any]]:
        for by_scope in self._rules.values():
            yield from by_scope.values()

    def has_constraints(self, setting: Setting[Any]) -> bool:
        """Whether the value of the setting depends on the scope."""
        return any(any(shape) for shape in self._shapes.get(setting, ()))

    def mention(self, namespace: str | None) -> bool:
        """Whether any rule is constrained to exactly this name or id of a namespace."""
        return namespace is not None and namespace in self._namespaces

    def values(self, setting: Setting[T]) -> dict[Scope, T]:
        """Values of a setting by scope."""
        return {within: rule.value for within, rule in self._rules.get(setting, {}).items()}

    def find(self, setting: Setting[T], scope: Scope, name: str | None = None) -> Rule[T] | None:
        """The rule in force for this scope, None if the default applies; `name` is the namespace's name."""
        for shape in self._shapes.get(setting, ()):
            within = Scope(
                namespace=scope.namespace if shape.namespace else None,
                task_queue=scope.task_queue if shape.task_queue else None,
                type=scope.type if shape.type else None,
            )
            # For example, a scope without a namespace matches no rule with one.
            if _shape_of(within) != shape:
                continue
            rules = self._rules[setting]
            rule = rules.get(within)
            if rule is None and shape.namespace and name is not None:
                rule = rules.get(within._replace(namespace=name))
            if rule is not None:
                return rule
        return None

    def value(self, setting: Setting[T], scope: Scope, name: str | None = None) -> T:
        """Value in force for this scope."""
        rule = self.find(setting, scope, name)
        return setting.default if rule is None else rule.value


def _shape_of(within: Scope) -> _Shape:
    return _Shape(within.task_queue is not None, within.namespace is not None, within.type is not None)
