"""The compatibility page agrees with a running server."""

from pathlib import Path

from fairlead.frontend import OPERATOR_SERVICE, WORKFLOW_SERVICE
from fairlead.frontend.compatibility import not_implemented, render
from fairlead.frontend.gateway.service import handlers
from fairlead.testing.compatibility import outcomes

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"
COMMAND = "python -m fairlead.testing.compatibility > docs/compatibility.md"


async def test_the_compatibility_page_agrees_with_a_running_server() -> None:
    found = await outcomes()

    assert PAGE.read_text() == render(found), f"run: {COMMAND}"
    assert found["PauseWorkflowExecution"].switch == "frontend.WorkflowPauseEnabled"
    assert found["PollWorkflowExecutionTimeSkipping"].switch == "frontend.WorkflowTimeSkippingEnabled"
    assert found["GetWorkerTaskReachability"].error.startswith("PERMISSION_DENIED: Worker versioning v0.2")
    assert found["SetCurrentDeployment"].error.startswith("UNIMPLEMENTED: Deployments are deprecated")
    assert found["ListArchivedWorkflowExecutions"].error.startswith("INVALID_ARGUMENT: Cluster is not configured")
    assert not found["StartWorkflowExecution"].error
    implemented = {*handlers(WORKFLOW_SERVICE), *handlers(OPERATOR_SERVICE)}
    assert {name for name, outcome in found.items() if outcome.error != not_implemented(name)} == implemented
