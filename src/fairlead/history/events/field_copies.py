"""Copies fields between API messages; unset fields stay unset."""

from collections.abc import Iterable
from typing import Literal, Protocol

from google.protobuf.message import Message
from temporalio.api.common.v1 import Memo
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest


class _WithMemo(Protocol):
    @property
    def memo(self) -> Memo: ...

    def HasField(self, name: Literal["memo"], /) -> bool: ...  # noqa: N802 - protobuf's name

    def ClearField(self, name: Literal["memo"], /) -> None: ...  # noqa: N802 - protobuf's name


def drop_empty_memo(message: _WithMemo) -> None:
    """Remove null entries from the memo, and the memo if it is empty."""
    if not message.HasField("memo"):
        return
    fields = message.memo.fields
    for name in [name for name, value in fields.items() if value.metadata.get("encoding") == b"binary/null"]:
        del fields[name]
    if not fields:
        message.ClearField("memo")


def copy_set(source: Message, target: Message, names: Iterable[str]) -> None:
    """Copy these message fields. Unset fields stay unset, because an unset field differs from an empty one."""
    for name in names:
        if source.HasField(name):
            getattr(target, name).CopyFrom(getattr(source, name))


def without_internal_callbacks(
    request: StartWorkflowExecutionRequest,
) -> tuple[StartWorkflowExecutionRequest, list[bytes]]:
    """The request without internal callbacks, and their data, which is stored with the run and not in its events.

    The argument is not changed, because the request is sent again if the shard has moved.
    """
    callbacks = request.completion_callbacks
    watchers = [each.internal.data for each in callbacks if each.HasField("internal")] if callbacks else []
    if not watchers:
        return request, watchers
    shown = StartWorkflowExecutionRequest()
    shown.CopyFrom(request)
    del shown.completion_callbacks[:]
    shown.completion_callbacks.extend(each for each in request.completion_callbacks if not each.HasField("internal"))
    return shown, watchers
