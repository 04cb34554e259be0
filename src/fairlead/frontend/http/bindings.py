"""HTTP bindings of Temporal's API: which verb and path call which method, from the `google.api.http` options."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote

from google.api import annotations_pb2  # type: ignore[import-untyped]
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from msgspec import Struct

_VARIABLE = re.compile(r"\{([a-z_.]+)\}")
_VERBS = ("get", "post", "put", "patch", "delete")


class Binding(Struct, frozen=True):
    """One verb and path of a method. The path's variables are dotted field names of the request."""

    verb: str
    template: str
    method: MethodDescriptor
    # Whether the body is the request as JSON; else the query parameters are its fields.
    has_body: bool
    variables: tuple[str, ...]
    request_class: type[Message]
    response_class: type[Message]

    @property
    def path(self) -> str:
        """The method's path in gRPC, such as /temporal.api.workflowservice.v1.WorkflowService/GetSystemInfo."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


class Match(Struct, frozen=True):
    """A binding that was found for a request, with the values of its variables in order."""

    binding: Binding
    values: tuple[str, ...]


class NotAllowed(Struct, frozen=True):
    """The path has bindings, but none for the verb."""


class _Node:
    """A node of the tree of paths: the bindings that end here, by verb, and the next segments."""

    __slots__ = ("bindings", "literals", "variable")

    def __init__(self) -> None:
        self.bindings: dict[str, Binding] = {}
        self.literals: dict[str, _Node] = {}
        self.variable: _Node | None = None


class Bindings:
    """Finds the binding of a request. A literal segment takes precedence over a variable."""

    def __init__(self, services: Iterable[ServiceDescriptor]) -> None:
        self._root = _Node()
        self._all = [binding for service in services for binding in _bindings_of(service)]
        for binding in self._all:
            self._add(binding)

    def __iter__(self) -> Iterator[Binding]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def find(self, verb: str, path: str) -> Match | NotAllowed | None:
        """Binding of a request; `path` is still percent-encoded, so that an id may contain a slash."""
        if not path.startswith("/"):
            return None
        segments = path[1:].split("/")
        is_known = False
        for node, values in _walk(self._root, segments, 0, ()):
            is_known = True
            binding = node.bindings.get(verb)
            if binding is not None:
                return Match(binding, tuple(unquote(value) for value in values))
        return NotAllowed() if is_known else None

    def _add(self, binding: Binding) -> None:
        node = self._root
        for segment in binding.template[1:].split("/"):
            if segment.startswith("{"):
                if node.variable is None:
                    node.variable = _Node()
                node = node.variable
            else:
                node = node.literals.setdefault(segment, _Node())
        node.bindings[binding.verb] = binding


@cache
def response_class(method: MethodDescriptor) -> type[Message]:
    """Class of a method's response."""
    return GetMessageClass(method.output_type)


def _bindings_of(service: ServiceDescriptor) -> Iterator[Binding]:
    for method in service.methods:
        options = method.GetOptions()
        if not options.HasExtension(annotations_pb2.http):
            continue
        rule: Any = options.Extensions[annotations_pb2.http]
        for one in (rule, *rule.additional_bindings):
            verb = next(name for name in _VERBS if getattr(one, name))
            template: str = getattr(one, verb)
            yield Binding(
                verb=verb.upper(),
                template=template,
                method=method,
                has_body=one.body == "*",
                variables=tuple(_VARIABLE.findall(template)),
                request_class=GetMessageClass(method.input_type),
                response_class=response_class(method),
            )


def _walk(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...]
) -> Iterator[tuple[_Node, tuple[str, ...]]]:
    """Nodes in which the path ends, with the segments that variables took. The tree's depth bounds the recursion."""
    if at == len(segments):
        if node.bindings:
            yield node, values
        return
    segment = segments[at]
    literal = node.literals.get(segment)
    if literal is not None:
        yield from _walk(literal, segments, at + 1, values)
    if node.variable is not None:
        yield from _walk(node.variable, segments, at + 1, (*values, segment))
