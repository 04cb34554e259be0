"""Fields taken over from one message of the API to another: those that are set, and no others."""

from collections.abc import Iterable
from typing import Literal, Protocol

from google.protobuf.message import Message
from temporalio.api.common.v1 import Memo


class _WithMemo(Protocol):
    @property
    def memo(self) -> Memo: ...

    def ClearField(self, name: Literal["memo"], /) -> None: ...  # noqa: N802 - protobuf's name


def drop_empty_memo(message: _WithMemo) -> None:
    """Take the entries without a value out of a memo, and a memo without entries out of the message."""
    fields = message.memo.fields
    for name in [name for name, value in fields.items() if value.metadata.get("encoding") == b"binary/null"]:
        del fields[name]
    if not fields:
        message.ClearField("memo")


def copy_set(source: Message, target: Message, names: Iterable[str]) -> None:
    """Copy the messages of these names; unset ones stay unset, which reads differently from empty ones."""
    for name in names:
        if source.HasField(name):
            getattr(target, name).CopyFrom(getattr(source, name))
