import pytest

from fairlead.frontend.gateway.service import OPERATOR_SERVICE, WORKFLOW_SERVICE, method_names
from fairlead.frontend.quotas import costs
from fairlead.frontend.quotas.costs import PRIORITIES, Bucket, cost_of

METHODS = {*method_names(WORKFLOW_SERVICE), *method_names(OPERATOR_SERVICE)}


def test_every_method_has_a_cost() -> None:
    for method in METHODS:
        assert 0 <= cost_of(method).priority < PRIORITIES


def test_every_method_of_the_tables_is_in_the_api() -> None:
    named = {*costs._PRIORITIES, *costs._LONG, *costs._VISIBILITY, *costs._REPLICATED, *costs._FAILURES}
    assert named <= METHODS


def test_every_method_that_polls_is_long() -> None:
    assert all(cost_of(method).is_long for method in METHODS if method.startswith("Poll"))


@pytest.mark.parametrize(
    ("method", "bucket", "priority", "is_long"),
    [
        ("GetSystemInfo", Bucket.EXECUTION, 0, False),
        ("StartWorkflowExecution", Bucket.EXECUTION, 1, False),
        ("UpdateWorkflowExecution", Bucket.EXECUTION, 1, True),
        ("TerminateWorkflowExecution", Bucket.EXECUTION, 2, False),
        ("GetWorkflowExecutionHistory", Bucket.EXECUTION, 2, True),
        ("DescribeWorkflowExecution", Bucket.EXECUTION, 3, False),
        ("RespondActivityTaskFailed", Bucket.EXECUTION, 3, False),
        ("PollActivityTaskQueue", Bucket.EXECUTION, 4, True),
        ("ListWorkflowExecutions", Bucket.VISIBILITY, 1, False),
        ("RegisterNamespace", Bucket.REPLICATED, 1, False),
    ],
)
def test_methods_have_the_priorities_of_temporals_server(
    method: str, bucket: Bucket, priority: int, is_long: bool
) -> None:
    cost = cost_of(method)
    assert (cost.bucket, cost.priority, cost.is_long) == (bucket, priority, is_long)
