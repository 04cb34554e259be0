"""Answers requests of Temporal's HTTP API with the handlers of its gRPC methods."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from fairlead.frontend.http import openapi
from fairlead.frontend.http.bindings import Binding, Bindings, Match, NotAllowed
from fairlead.frontend.http.fields import InvalidField, set_parameters, set_variables
from fairlead.frontend.http.json_codec import InvalidJson, decode, encode
from fairlead.frontend.http.metadata import FORWARDED_FOR, Forwarding
from fairlead.frontend.http.status import HTTP_STATUS, status_body
from fairlead.http import HttpFault, Request, Response
from fairlead.http.guard import Guard
from fairlead.rpc import Call, Code, RpcStatus, UnaryHandler
from fairlead.rpc.head import TIMEOUT_S_MAX

PRETTY = "pretty"
NO_SHORTHAND = "noPayloadShorthand"

_ACCEPT = re.compile(r"application/json((?:\+pretty)?(?:\+no-payload-shorthand)?)")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


class Format:
    """How a response is written: with or without payload shorthand, on one line or indented."""

    __slots__ = ("content_type", "has_shorthand", "indent")

    def __init__(self, *, is_pretty: bool, has_shorthand: bool) -> None:
        self.indent = 2 if is_pretty else 0
        self.has_shorthand = has_shorthand
        suffix = ("+pretty" if is_pretty else "") + ("" if has_shorthand else "+no-payload-shorthand")
        self.content_type = f"application/json{suffix}"


# The format of Temporal's web page.
INDENTED = Format(is_pretty=True, has_shorthand=False)
INDENTED.content_type = "application/json"


class HttpApi:
    """The HTTP API over the handlers of both services.

    `answerers` maps the paths of gRPC methods to their handlers: a request runs through the same checks, limits and
    metrics as a gRPC call.
    """

    def __init__(
        self,
        services: Sequence[ServiceDescriptor],
        answerers: Mapping[str, UnaryHandler],
        *,
        guard: Guard | None = None,
        forwarded_headers: Sequence[str] = (),
        count: Callable[[str], None] = lambda _operation: None,
    ) -> None:
        """`guard` checks each request; `count` is called with the method of each request."""
        self._guard = guard
        self.bindings = Bindings(services)
        self._answerers = answerers
        self._forwarding = Forwarding(forwarded_headers)
        self._count = count

    async def handle(self, request: Request) -> Response:
        """Answer a request on the port of the HTTP API."""
        if self._guard is not None:
            self._guard.check(request)
        if request.path == "/openapi.yaml" and request.method in {"GET", "HEAD"}:
            return Response(200, await self._openapi_yaml, "application/yaml")
        if request.path == "/swagger.json" and request.method in {"GET", "HEAD"}:
            return Response(200, await self._swagger_json, "application/json")
        return await self.answer(request, _format(request))

    async def answer(self, request: Request, form: Format) -> Response:
        """Answer a request of a binding, in this format."""
        try:
            message = await self._call(request)
        except RpcStatus as status:
            return self.refused(status, form)
        body = encode(message, has_shorthand=form.has_shorthand, indent=form.indent)
        return Response(200, body, form.content_type)

    def refused(self, status: RpcStatus, form: Format) -> Response:
        """The response to a request that failed."""
        return Response(HTTP_STATUS[status.code], status_body(status, indent=form.indent), form.content_type)

    def refuse(self, fault: HttpFault) -> Response:
        """Render an error of the HTTP server itself like those of the API."""
        code = Code.INVALID_ARGUMENT
        if fault.status >= 500:
            code = Code.UNAVAILABLE if fault.status == 503 else Code.INTERNAL
        elif fault.status == 403:
            code = Code.PERMISSION_DENIED
        message = "http: request body too large" if fault.status == 413 else fault.message
        return self.refused(RpcStatus(code, message), Format(is_pretty=False, has_shorthand=True))

    def drain(self) -> None:
        """Do nothing when the server stops: no request stays open for long."""

    async def call(self, path: str, message: Message, request: Request) -> bytes:
        """Call a method as the sender of a request; returns the serialized response."""
        call = Call(self._forwarding.head(path, request), peer=request.peer, clock=asyncio.get_running_loop().time)
        timeout_s = call.head.timeout_s
        try:
            async with asyncio.timeout(None if timeout_s is None else min(timeout_s, TIMEOUT_S_MAX)):
                return await self._answerers[path](message.SerializeToString(), call)
        except TimeoutError:
            raise RpcStatus(Code.DEADLINE_EXCEEDED, "context deadline exceeded") from None

    def identifying_headers(self, request: Request) -> tuple[str, ...]:
        """The forwarded headers by which a server may tell callers apart."""
        metadata = self._forwarding.head("", request).metadata
        return tuple(f"{name}: {value}" for name, value in sorted(metadata.items()) if name != FORWARDED_FOR)

    async def _call(self, request: Request) -> Message:
        found = self.bindings.find(request.method, request.path)
        if isinstance(found, Match):
            self._count(found.binding.method.name)
            message = _message(found, request)
            return found.binding.response_class.FromString(await self.call(found.binding.path, message, request))
        self._count("unknown")
        if isinstance(found, NotAllowed):
            raise RpcStatus(Code.UNIMPLEMENTED, "Method Not Allowed")
        raise RpcStatus(Code.NOT_FOUND, "Not Found")

    # Both documents are made at their first request, in a thread: this takes a while, and few servers get such a
    # request.

    @cached_property
    def _openapi_yaml(self) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(asyncio.to_thread(openapi.openapi_yaml, tuple(self.bindings)))

    @cached_property
    def _swagger_json(self) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(asyncio.to_thread(openapi.swagger_json, tuple(self.bindings)))


def _message(found: Match, request: Request) -> Message:
    """Build the request message from the body or the query, and from the path."""
    binding: Binding = found.binding
    message = binding.request_class()
    try:
        if binding.has_body:
            if request.body.strip():
                decode(request.body, message)
        elif request.query and binding.method.input_type.fields:
            _check_escapes(request.query)
            set_parameters(message, request.parameters, binding.variables)
        set_variables(message, binding.variables, found.values)
    except (InvalidJson, InvalidField, UnicodeEncodeError) as wrong:
        raise RpcStatus(Code.INVALID_ARGUMENT, str(wrong)) from None
    return message


def _check_escapes(query: str) -> None:
    if (bad := _BAD_ESCAPE.search(query)) is not None:
        raise InvalidField(f'invalid URL escape "{bad[0]}"')


def _format(request: Request) -> Format:
    names = {name for name, _ in request.parameters} if request.query else set()
    if PRETTY in names or NO_SHORTHAND in names:
        return Format(is_pretty=PRETTY in names, has_shorthand=NO_SHORTHAND not in names)
    accepted = _ACCEPT.fullmatch(request.headers.get("accept", ""))
    suffix = accepted[1] if accepted else ""
    return Format(is_pretty="pretty" in suffix, has_shorthand="shorthand" not in suffix)
