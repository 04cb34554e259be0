"""gRPC client over HTTP/2 on asyncio: bytes out, bytes in, and three kinds of failure."""

from fairlead.rpc.client.channel import Channel, ChannelStats, ClientTls, new_deadlines
from fairlead.rpc.client.failures import CallFailed, NotSent, RemoteStatus, ResponseLost
from fairlead.rpc.client.request_head import InvalidMetadata, Metadata
from fairlead.rpc.limits import ChannelLimits

__all__ = [
    "CallFailed",
    "Channel",
    "ChannelLimits",
    "ChannelStats",
    "ClientTls",
    "InvalidMetadata",
    "Metadata",
    "NotSent",
    "RemoteStatus",
    "ResponseLost",
    "new_deadlines",
]
