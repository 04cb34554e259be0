"""Which hosts there are, the ring as this host sees it, and calls between hosts, in process or by gRPC."""

from fairlead.cluster.backoff import Backoff
from fairlead.cluster.calls import Caller, CallLost, Exhausted, Handlers, Method, UnknownMethod, Unreachable
from fairlead.cluster.grpc_caller import GrpcCaller
from fairlead.cluster.grpc_server import CannotListen, GrpcServer
from fairlead.cluster.local import LocalNetwork
from fairlead.cluster.membership import InvalidMembership, Membership, MembershipTimes
from fairlead.cluster.nudge import NUDGE, NudgeAnswer, NudgeRequest, Nudges, nudge_all
from fairlead.cluster.wire import MESSAGE_BYTES_MAX, Codec, Errors, status_code

__all__ = [
    "MESSAGE_BYTES_MAX",
    "NUDGE",
    "Backoff",
    "CallLost",
    "Caller",
    "CannotListen",
    "Codec",
    "Errors",
    "Exhausted",
    "GrpcCaller",
    "GrpcServer",
    "Handlers",
    "InvalidMembership",
    "LocalNetwork",
    "Membership",
    "MembershipTimes",
    "Method",
    "NudgeAnswer",
    "NudgeRequest",
    "Nudges",
    "UnknownMethod",
    "Unreachable",
    "nudge_all",
    "status_code",
]
