"""gRPC over HTTP/2 on asyncio: a small server of bytes, calls and statuses; it never decodes messages."""

from fairlead.rpc.call import Call, DuplexHandler, InvalidTrailer, StreamHandler, UnaryHandler
from fairlead.rpc.health import HEALTH_SERVICE, Health
from fairlead.rpc.limits import MESSAGE_BYTES_DEFAULT, MESSAGE_BYTES_SETTING_MAX, InvalidLimits, RpcLimits
from fairlead.rpc.reflection import REFLECTION_SERVICES, Reflection
from fairlead.rpc.server import AlreadyAdded, RpcServer, RpcStats
from fairlead.rpc.status import Code, RpcStatus
from fairlead.telemetry.listen_errors import CannotListen

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
