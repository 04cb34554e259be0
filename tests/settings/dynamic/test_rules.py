from itertools import product

import pytest

from fairlead.core.partitions import TaskType
from fairlead.settings import EVERYWHERE, Rule, RuleSet, Scope
from fairlead.settings.dynamic.matching import FORWARDER_MAX_CHILDREN_PER_NODE, NUM_READ_PARTITIONS

HERE = Scope("orders", "checkout", TaskType.ACTIVITY)
# From the most specific scope to the least specific.
ORDER = [
    HERE,
    Scope("orders", "checkout"),
    Scope(None, "checkout", TaskType.ACTIVITY),
    Scope(None, "checkout"),
    Scope("orders", None, TaskType.ACTIVITY),
    Scope("orders"),
    Scope(None, None, TaskType.ACTIVITY),
    EVERYWHERE,
]


def rules_for(*scopes: Scope) -> RuleSet:
    """One rule for each scope; its value is its position in `ORDER`, from 1."""
    return RuleSet(Rule(NUM_READ_PARTITIONS, scope, ORDER.index(scope) + 1) for scope in scopes)


@pytest.mark.parametrize("present", list(product([False, True], repeat=len(ORDER))))
def test_the_most_specific_matching_rule_applies(present: tuple[bool, ...]) -> None:
    """Temporal's order: namespace, task queue and type; namespace and task queue; task queue; namespace; none."""
    scopes = [scope for scope, is_present in zip(ORDER, present, strict=True) if is_present]
    found = rules_for(*reversed(scopes)).find(NUM_READ_PARTITIONS, HERE)
    assert (found.within if found else None) == (scopes[0] if scopes else None)


@pytest.mark.parametrize(
    "elsewhere",
    [
        Scope("payments", "checkout", TaskType.ACTIVITY),
        Scope("orders", "refunds", TaskType.ACTIVITY),
        Scope("orders", "checkout", TaskType.WORKFLOW),
        Scope("orders", "checkout"),
        Scope("orders"),
        EVERYWHERE,
    ],
)
def test_a_rule_applies_only_if_all_its_constraints_match(elsewhere: Scope) -> None:
    rules = rules_for(HERE)
    assert rules.find(NUM_READ_PARTITIONS, HERE) is not None
    assert rules.find(NUM_READ_PARTITIONS, elsewhere) is None
    assert rules.value(NUM_READ_PARTITIONS, elsewhere) == NUM_READ_PARTITIONS.default


def test_a_lookup_without_a_namespace_finds_the_most_specific_rule_without_one() -> None:
    rules = rules_for(Scope("orders", "checkout"), Scope(None, "checkout"), Scope(None, "checkout", TaskType.ACTIVITY))
    found = rules.find(NUM_READ_PARTITIONS, Scope(None, "checkout", TaskType.ACTIVITY))
    assert found is not None
    assert found.within == Scope(None, "checkout", TaskType.ACTIVITY)


def test_a_setting_without_a_rule_has_its_default() -> None:
    assert rules_for(*ORDER).value(FORWARDER_MAX_CHILDREN_PER_NODE, HERE) == 20
