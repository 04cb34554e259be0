"""Messages of any type, made from their descriptors: with one field too large, or with random values."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

M = TypeVar("M", bound=Message)
FieldPath: TypeAlias = tuple[FieldDescriptor, ...]

LONG_CHARACTERS = 2000
OVERSIZE_BYTES = 3 * 1024 * 1024
GARBAGE = b"\x99\x00garbage\xff\xfe"
# Maximum depth of nested fields that are searched; deeper fields are only filled at random.
DEPTH_MAX = 3
RANDOM_DEPTH_MAX = 6
_CHANCE_OF_FIELD = 0.4

_INTEGERS = (0, 1, 2, 3, 5, -1, 7, 100, 2**31 - 1, -(2**31), 2**53, 2**63 - 1, -(2**63))
_FLOATS = (0.0, 1.0, -1.0, 0.5, 1e9, 1e308, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "",
    "x",
    "a.b",
    "*",
    "{}",
    "__temporal",
    "name:with:colons",
    "line\nbreak\0zero",
    "ÄÖ漢🌊",
    "x" * 1001,
    "00000000-0000-0000-0000-000000000000",
    "WorkflowId = 'x' AND (StartTime > '2020-01-01T00:00:00Z' OR ExecutionStatus != \"Running\")",
    "* * * * *",
    "@every 1s",
    "http://127.0.0.1:1/",
    "America/New_York",
    "first_path,second.path",
    "json/plain",
)
_BYTES = (b"", b"{}", b"null", b'"text"', b"[1,2]", GARBAGE, bytes(1000))
_INT_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def new_message(kind: Descriptor) -> Message:
    """Make an empty message of a type."""
    message: Message = GetMessageClass(kind)()
    return message


def paths_to(kind: Descriptor, wanted: "Wanted", depth: int = DEPTH_MAX) -> Iterator[FieldPath]:
    """The paths to all wanted fields, through fields that are not repeated."""
    for field in kind.fields:
        if wanted(field):
            yield (field,)
        if field.message_type is not None and not field.is_repeated and depth > 1:
            for rest in paths_to(field.message_type, wanted, depth - 1):
                yield (field, *rest)


class Wanted:
    """Selects fields by type and name."""

    def __init__(self, type_: int, *, message: str = "") -> None:
        self._type = type_
        self._message = message

    def __call__(self, field: FieldDescriptor) -> bool:
        if field.type != self._type or field.is_repeated:
            return False
        return not self._message or (field.message_type is not None and field.message_type.full_name == self._message)


STRINGS = Wanted(FieldDescriptor.TYPE_STRING)
BYTES = Wanted(FieldDescriptor.TYPE_BYTES)
PAYLOADS = Wanted(FieldDescriptor.TYPE_MESSAGE, message="temporal.api.common.v1.Payloads")


def set_at(message: Message, path: FieldPath, value: Any) -> None:
    """Set the nested field at a path."""
    for field in path[:-1]:
        message = getattr(message, field.name)
        message.SetInParent()
    setattr(message, path[-1].name, value)


def at(message: Message, path: FieldPath) -> Any:
    """The nested message at a path, created if it is not set."""
    for field in path:
        message = getattr(message, field.name)
        message.SetInParent()
    return message


def plausible(kind: Descriptor, known: Mapping[str, Sequence[Any]]) -> Message:
    """A message with a value in each of its own fields, so that no earlier check hides the tested one."""
    message = new_message(kind)
    for field in kind.fields:
        if field.containing_oneof is not None:
            continue
        if fitting := _fitting(field, known):
            _put(message, field, fitting[0])
        elif field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, "x")
    return message


def _fitting(field: FieldDescriptor, known: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The known values that fit the field's type."""

    def fits(value: Any) -> bool:
        if field.is_repeated is not isinstance(value, list):
            return False
        if isinstance(value, list):
            value = value[0]
        if isinstance(value, Message):
            return field.message_type is not None and value.DESCRIPTOR.full_name == field.message_type.full_name
        if isinstance(value, int):
            return field.type == FieldDescriptor.TYPE_ENUM
        return field.type == (FieldDescriptor.TYPE_BYTES if isinstance(value, bytes) else FieldDescriptor.TYPE_STRING)

    return [value for value in known.get(field.name, ()) if fits(value)]


def _put(message: Message, field: FieldDescriptor, value: Any) -> None:
    if isinstance(value, Message):
        getattr(message, field.name).CopyFrom(value)
    elif isinstance(value, list):
        getattr(message, field.name).extend(value)
    else:
        setattr(message, field.name, value)


class Chance:
    """Fills messages at random; `known` maps field names to values that pass the server's first checks."""

    def __init__(self, seed: str, known: Mapping[str, Sequence[Any]]) -> None:
        self._random = random.Random(seed)
        self._known = known

    def message(self, kind: Descriptor) -> Message:
        """Make a random message of a type."""
        message = new_message(kind)
        self._fill(message, 0)
        return message

    def variation(self, message: Message) -> Message:
        """A copy of the message with some fields or nested fields changed."""
        varied = type(message)()
        varied.CopyFrom(message)
        for _ in range(self._random.randint(1, 3)):
            self._vary(varied, 0)
        return varied

    def plausible(self, kind: Descriptor) -> Message:
        """A message with a known value in each of its own fields for which one is known."""
        message = new_message(kind)
        for field in kind.fields:
            if fitting := _fitting(field, self._known):
                _put(message, field, self._random.choice(fitting))
        return message

    def some_of(self, messages: Sequence[M]) -> list[M]:
        """One to three of the items."""
        return self._random.sample(messages, self._random.randint(1, 3))

    def malformed(self, data: bytes) -> bytes:
        """Bytes of a message, damaged so that they can seldom be decoded."""
        choose = self._random
        changed = bytearray(data or choose.randbytes(8))
        for _ in range(choose.randint(1, 8)):
            place = choose.randrange(len(changed)) if changed else 0
            match choose.randrange(4):
                case 0 if changed:
                    changed[place] = choose.randrange(256)
                case 1 if changed:
                    del changed[place:]
                case 2:
                    changed[place:place] = choose.randbytes(choose.randint(1, 12))
                case _:
                    # Append a group, an unknown wire type, a length beyond the end, or invalid UTF-8.
                    changed += choose.choice([b"\x0b", b"\x0f", b"\x0a\xff\xff\xff\x7f", b"\x0a\x02\xc3\x28"])
        return bytes(changed)

    def _fill(self, message: Message, depth: int) -> None:
        choose = self._random
        kind = cast(Descriptor, message.DESCRIPTOR)
        for field in kind.fields:
            known = _fitting(field, self._known)
            likely = 0.9 if known and depth < 2 else _CHANCE_OF_FIELD / (1 + depth / 2)
            if choose.random() > likely:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                self._fill_map(message, field, depth)
            elif field.is_repeated:
                self._fill_list(message, field, depth)
            elif known and choose.random() < 0.8:
                _put(message, field, choose.choice(known))
            elif field.message_type is not None:
                self._fill_field(getattr(message, field.name), depth)
            else:
                setattr(message, field.name, self._scalar(field))

    def _vary(self, message: Message, depth: int) -> None:
        choose = self._random
        kind = cast(Descriptor, message.DESCRIPTOR)
        if not kind.fields:
            return
        # Prefer fields that are set: fields that are not set often belong to the same oneof.
        present = [field for field, _ in message.ListFields()]
        field = choose.choice(present if present and choose.random() < 0.5 else list(kind.fields))
        if choose.random() < 0.1:
            message.ClearField(field.name)
        elif field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._fill_map(message, field, depth)
        elif field.is_repeated:
            values = getattr(message, field.name)
            if field.message_type is not None and values and choose.random() < 0.7:
                self._vary(choose.choice(values), depth + 1)
            else:
                self._fill_list(message, field, depth)
        elif field.message_type is None:
            setattr(message, field.name, self._scalar(field))
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            if depth < RANDOM_DEPTH_MAX:
                self._vary(part, depth + 1)

    def _fill_field(self, part: Message, depth: int) -> None:
        part.SetInParent()
        if depth < RANDOM_DEPTH_MAX:
            self._fill(part, depth + 1)

    def _fill_list(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        values = getattr(message, field.name)
        for _ in range(self._random.randint(0, 3)):
            if field.message_type is None:
                values.append(self._scalar(field))
            elif depth < RANDOM_DEPTH_MAX:
                self._fill(values.add(), depth + 1)

    def _fill_map(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        entries = getattr(message, field.name)
        assert field.message_type is not None
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(self._random.randint(0, 2)):
            if value.message_type is None:
                entries[self._scalar(key)] = self._scalar(value)
            elif depth < RANDOM_DEPTH_MAX:
                self._fill(entries[self._scalar(key)], depth + 1)

    def _scalar(self, field: FieldDescriptor) -> Any:
        choose = self._random
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return choose.random() < 0.5
            case FieldDescriptor.CPPTYPE_ENUM:
                assert field.enum_type is not None
                numbers = [value.number for value in field.enum_type.values]
                return choose.choice([*numbers, *numbers, 99, -1])
            case FieldDescriptor.CPPTYPE_STRING:
                return choose.choice(_BYTES if field.type == FieldDescriptor.TYPE_BYTES else _TEXTS)
            case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
                return choose.choice(_FLOATS)
            case kind:
                low, high = _INT_TYPES[kind]
                return max(low, min(high, choose.choice(_INTEGERS)))
