"""Names and numbers of execution statuses in list filters."""

from typing import Final

from temporalio.api.enums.v1 import WorkflowExecutionStatus

_STATUS_PREFIX: Final = "WORKFLOW_EXECUTION_STATUS_"


def _status_names() -> dict[str, int]:
    """Both names of each status: 'ContinuedAsNew', and the name in the API's enum."""
    names: dict[str, int] = {}
    for long_name, number in WorkflowExecutionStatus.items():
        names[long_name] = number
        names[long_name.removeprefix(_STATUS_PREFIX).title().replace("_", "")] = number
    return names


STATUS_NUMBERS: Final = _status_names()
STATUS_NAMES: Final = {number: name for name, number in STATUS_NUMBERS.items() if not name.startswith(_STATUS_PREFIX)}
