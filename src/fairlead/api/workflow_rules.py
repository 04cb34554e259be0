"""Stored workflow rules."""

from functools import lru_cache

from temporalio.api.rules.v1 import WorkflowRule

# Number of rules that are kept parsed.
_PARSED_MAX = 1000


@lru_cache(maxsize=_PARSED_MAX)
def parsed_rule(payload: bytes) -> WorkflowRule:
    """The message of a stored rule. It is cached: don't change it."""
    return WorkflowRule.FromString(payload)
