"""gRPC over HTTP/2 on asyncio: a small server that knows bytes, calls and statuses, and nothing of what they mean."""

from fairlead.rpc.call import Call, DuplexHandler, InvalidTrailer, StreamHandler, UnaryHandler
from fairlead.rpc.health import HEALTH_SERVICE, Health
from fairlead.rpc.limits import MESSAGE_BYTES_DEFAULT, MESSAGE_BYTES_SETTING_MAX, InvalidLimits, RpcLimits
from fairlead.rpc.reflection import REFLECTION_SERVICES, Reflection
from fairlead.rpc.server import AlreadyAdded, CannotListen, RpcServer, RpcStats
from fairlead.rpc.status import Code, RpcStatus

__all__ = [
    "HEALTH_SERVICE",
    "MESSAGE_BYTES_DEFAULT",
    "MESSAGE_BYTES_SETTING_MAX",
    "REFLECTION_SERVICES",
    "AlreadyAdded",
    "Call",
    "CannotListen",
    "Code",
    "DuplexHandler",
    "Health",
    "InvalidLimits",
    "InvalidTrailer",
    "Reflection",
    "RpcLimits",
    "RpcServer",
    "RpcStats",
    "RpcStatus",
    "StreamHandler",
    "UnaryHandler",
]
