"""An exception as the client saw it, in a form that can be compared."""

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from temporalio.exceptions import FailureError
from temporalio.service import RPCError

_CAUSES_MAX = 10


def describe_error(error: BaseException) -> list[dict[str, Any]]:
    """The error and its causes, outermost first."""
    found: list[dict[str, Any]] = []
    now: BaseException | None = error
    while now is not None and len(found) < _CAUSES_MAX:
        one: dict[str, Any] = {"error": type(now).__name__, "message": str(now)}
        if isinstance(now, RPCError):
            one["status"] = now.status.name
            one["details"] = [_unpacked(detail) for detail in now.grpc_status.details]
        elif isinstance(now, FailureError) and now.failure is not None:
            one["failure"] = MessageToDict(now.failure)
        found.append(one)
        now = now.__cause__
    return found


def _unpacked(detail: AnyMessage) -> dict[str, Any]:
    name = detail.type_url.rpartition("/")[2]
    try:
        kind = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(name))
    except KeyError:
        return {"type": name}
    message = kind.FromString(detail.value)
    # The statuses of a multi-operation hold details of their own.
    statuses = getattr(message, "statuses", None)
    if statuses is not None:
        return {
            "type": name,
            "statuses": [
                {"code": each.code, "message": each.message, "details": [_unpacked(one) for one in each.details]}
                for each in statuses
            ],
        }
    return {"type": name, **MessageToDict(message)}
