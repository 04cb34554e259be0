"""A client's gRPC connection to one host."""

from fairlead.aio.deadlines import Deadlines
from fairlead.core.errors import FairleadError
from fairlead.rpc.client import CallFailed, Channel, ChannelLimits, NotSent, RemoteStatus
from fairlead.rpc.client.call import ClientCall
from fairlead.rpc.hosts.caller import CallLost, Overloaded, UnknownMethod, Unreachable
from fairlead.rpc.hosts.credentials import ANONYMOUS, Credentials
from fairlead.rpc.hosts.wire import ERROR_KEY, MESSAGE_BYTES_MAX, SERVICE, Errors
from fairlead.rpc.status import Code

LIMITS = ChannelLimits(message_bytes_max=MESSAGE_BYTES_MAX)


class Peer:
    """The channel to one host, with the number of its open calls."""

    __slots__ = ("_channel", "_errors", "_headers", "_host", "_paths", "calls", "is_let_go")

    def __init__(
        self,
        host: str,
        errors: Errors,
        *,
        deadlines: Deadlines[ClientCall],
        credentials: Credentials = ANONYMOUS,
    ) -> None:
        self._host = host
        self._errors = errors
        self._channel = Channel(host, limits=LIMITS, tls=credentials.channel_tls, deadlines=deadlines)
        self._headers = credentials.headers
        self._paths: dict[str, str] = {}
        self.calls = 0
        self.is_let_go = False

    async def send(self, method_name: str, data: bytes, *, timeout_s: float) -> bytes:
        """Send a request and return the answer; raise the host's error, or a `FairleadError` for a failed call."""
        path = self._paths.get(method_name)
        if path is None:
            path = self._paths[method_name] = f"/{SERVICE}/{method_name}"
        try:
            return await self._channel.unary(path, data, timeout_s=timeout_s, metadata=self._headers)
        except CallFailed as failure:
            raise self._error(method_name, failure) from None

    async def close(self) -> None:
        """Close the connection; open calls fail with `CallLost`."""
        await self._channel.close()

    def reconnect(self) -> None:
        """Send new calls over a new connection, for example with a renewed certificate."""
        self._channel.reconnect()

    def _error(self, method_name: str, failure: CallFailed) -> FairleadError:
        if isinstance(failure, RemoteStatus):
            error = failure.trailers.get(ERROR_KEY)
            if isinstance(error, bytes):
                return self._errors.decode(error)
            if failure.code is Code.UNIMPLEMENTED:
                return UnknownMethod(
                    f"{self._host!r} has no method {method_name!r} ({failure}): does it run another release or role?"
                )
        if isinstance(failure, NotSent):
            if failure.code is Code.RESOURCE_EXHAUSTED:
                return Overloaded(f"{method_name} was not sent to {self._host!r}: {failure}")
            return Unreachable(f"{method_name} did not reach {self._host!r} ({failure}): ask for the owner again")
        return CallLost(
            f"{method_name} at {self._host!r} was not answered ({failure.code.name}: {failure}): it may be carried out"
        )
