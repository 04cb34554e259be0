"""The whole history of a run as one JSON array, page by page, so that no history is in memory at once."""

from collections.abc import AsyncIterator

import msgspec
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, GetWorkflowExecutionHistoryResponse

from fairlead.frontend import WORKFLOW_SERVICE
from fairlead.frontend.http import HttpApi
from fairlead.frontend.http.json_codec import encode
from fairlead.http import Request
from fairlead.rpc import RpcStatus

_METHOD = f"/{WORKFLOW_SERVICE}/GetWorkflowExecutionHistory"
# Events of one page.
PAGE_EVENTS = 500


async def history_file(
    api: HttpApi, request: Request, *, namespace: str, workflow_id: str, run_id: str
) -> AsyncIterator[bytes]:
    """Yield the parts of the array, one event per line; an error ends it with an object that has the member `error`."""
    asked = GetWorkflowExecutionHistoryRequest(
        namespace=namespace,
        execution=WorkflowExecution(workflow_id=workflow_id, run_id=run_id),
        maximum_page_size=PAGE_EVENTS,
    )
    separator = b"["
    while True:
        try:
            page = GetWorkflowExecutionHistoryResponse.FromString(await api.call(_METHOD, asked, request))
        except RpcStatus as status:
            yield separator + msgspec.json.encode({"error": f"{status.code.name}: {status.message}"})
            break
        lines = []
        for event in page.history.events:
            lines.append(separator + encode(event, has_shorthand=False))
            separator = b"\n,"
        yield b"".join(lines)
        if not page.next_page_token:
            if separator == b"[":
                yield b"["
            break
        asked.next_page_token = page.next_page_token
    yield b"\n]"
